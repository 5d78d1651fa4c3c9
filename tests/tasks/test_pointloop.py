"""PointLoop: its reward by hand, its expert on the circle, and the distance between visits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance as in_one_dimension

from uvd.demos.files import load_demos
from uvd.tasks import make_task
from uvd.tasks.pointloop import RADIUS, SPEED, TURN, Runner

TASK = make_task("PointLoop-v0")


@pytest.fixture(scope="module")
def demos():
    return load_demos("pointloop-expert").trajectories


def visited(trajectories):
    """All states of some episodes, `[N, obs]`."""
    return np.concatenate([t.obs for t in trajectories])


def energy_distance(x, y):
    """Székely's distance between the distributions of two samples of rows, `[N, D]` and `[M, D]`.

    The root of 2 E|X - Y| - E|X - X'| - E|Y - Y'|: zero only where they are the same.
    """
    between, of_x, of_y = (cdist(a, b).mean() for a, b in ((x, y), (x, x), (y, y)))
    return np.sqrt(max(2 * between - of_x - of_y, 0.0))


def at(angle, distance):
    return Runner(distance * jnp.array([jnp.cos(angle), jnp.sin(angle)]), jnp.zeros(2))


@pytest.mark.parametrize(
    ("turn", "distance", "earned"),
    [
        (TURN, RADIUS, 1.0),
        (2 * TURN, RADIUS, 2.0),
        (-TURN, RADIUS, -1.0),  # the wrong way round
        (0.0, RADIUS, 0.0),
        (TURN, RADIUS + 0.1, np.exp(-0.5)),  # off the circle
        (TURN, RADIUS - 0.2, np.exp(-2.0)),
    ],
)
def test_reward_by_hand(turn, distance, earned):
    start = 3.1  # the turn crosses the half circle, where angles jump
    reward = TASK.reward(at(start, distance), jnp.zeros(2), at(start + turn, distance))
    assert reward == pytest.approx(earned, abs=1e-4)


def test_the_expert_runs_on_the_circle(demos):
    assert [t.obs.shape for t in demos] == [(100, 4)] * 20
    later = np.stack([t.obs[20:] for t in demos])
    np.testing.assert_allclose(np.linalg.norm(later[..., :2], axis=-1), RADIUS, atol=2e-3)
    chord = 2 * np.sin(TURN / 2) / TURN
    np.testing.assert_allclose(np.linalg.norm(later[..., 2:], axis=-1), chord, atol=5e-3)
    returns = [t.reward.sum() for t in demos]
    assert 96 < min(returns) <= max(returns) < 100
    starts = np.stack([t.obs[0] for t in demos])
    assert len(np.unique(starts, axis=0)) == 20
    assert (starts[:, 2:] == 0).all()


def test_demonstrations_are_what_the_task_does(demos):
    """Played again from its first state, an episode of actions gives the same rows."""
    t = demos[3]
    state = Runner(jnp.asarray(t.obs[0, :2]), jnp.asarray(t.obs[0, 2:] * SPEED))
    for i in range(10):
        after = TASK.step(state, t.action[i], jax.random.key(0))
        np.testing.assert_allclose(TASK.observe(after), t.obs[i + 1], atol=1e-5)
        assert TASK.reward(state, t.action[i], after) == pytest.approx(t.reward[i], abs=1e-4)
        state = after


def test_distance_between_visits(demos):
    def random_states(key):
        def step(state, key):
            action = jax.random.uniform(key, (2,), minval=-1.0)
            after = TASK.step(state, action, key)
            return after, (TASK.observe(after), TASK.reward(state, action, after))

        return jax.lax.scan(step, TASK.reset(key), jax.random.split(key, TASK.horizon))[1]

    random, rewards = jax.jit(jax.vmap(random_states))(jax.random.split(jax.random.key(0), 8))
    expert = visited(demos[:8])
    assert energy_distance(expert, expert) == 0
    assert energy_distance(expert, visited(demos[8:16])) < 0.1
    assert energy_distance(np.asarray(random).reshape(-1, 4), expert) > 0.35
    assert float(rewards.sum(1).mean()) < 10
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=50), rng.normal(0.5, 2, size=70)
    assert energy_distance(x[:, None], y[:, None]) == pytest.approx(in_one_dimension(x, y))
