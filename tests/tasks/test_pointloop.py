"""PointLoop: its reward by hand, its expert on the circle, and the distance between visits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import energy_distance as in_one_dimension

from uvd.experiments.pointloop import make_demos, visited
from uvd.experiments.statistics import energy_distance
from uvd.formats import load_demos, write_npz
from uvd.program import random_rollouts
from uvd.tasks import make_task
from uvd.tasks.pointloop import RADIUS, SPEED, TURN, Runner
from uvd.tasks.task import with_previous_action

TASK = make_task("PointLoop-v0")


@pytest.fixture(scope="module")
def demos():
    return make_demos(20)


def at(angle, distance=RADIUS):
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
    assert [t.obs.shape for t in demos] == [(101, 4)] * 20
    later = np.stack([t.obs[20:] for t in demos])
    np.testing.assert_allclose(np.linalg.norm(later[..., :2], axis=-1), RADIUS, atol=2e-3)
    chord = 2 * np.sin(TURN / 2) / TURN
    np.testing.assert_allclose(np.linalg.norm(later[..., 2:], axis=-1), chord, atol=5e-3)
    returns = [t.reward.sum() for t in demos]
    assert 96 < min(returns) <= max(returns) < 100
    starts = np.stack([t.obs[0] for t in demos])
    assert len(np.unique(starts, axis=0)) == 20
    assert (starts[:, 2:] == 0).all()
    again = make_demos(20)
    np.testing.assert_array_equal(visited(demos), visited(again))


def test_demonstrations_are_what_the_task_does(demos):
    """Played again from its first state, an episode of actions gives the same rows."""
    t = demos[3]
    state = Runner(jnp.asarray(t.obs[0, :2]), jnp.asarray(t.obs[0, 2:] * SPEED))
    step = jax.jit(lambda s, a: (TASK.step(s, a, jax.random.key(0)),))
    for i in range(10):
        (after,) = step(state, t.action[i])
        np.testing.assert_allclose(TASK.observe(after), t.obs[i + 1], atol=1e-5)
        assert TASK.reward(state, t.action[i], after) == pytest.approx(t.reward[i], abs=1e-4)
        state = after


def test_distance_between_visits(demos):
    random = random_rollouts(TASK, jax.random.key(0), 20)
    far = np.asarray(random.obs).reshape(-1, 4)
    expert = visited(demos)
    assert energy_distance(expert, expert) == 0
    assert energy_distance(expert, visited(make_demos(20, seed=1))) < 0.05
    assert energy_distance(far, expert) > 0.35
    assert float(random.reward.sum(1).mean()) < 10
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=50), rng.normal(0.5, 2, size=70)
    assert energy_distance(x[:, None], y[:, None]) == pytest.approx(in_one_dimension(x, y))


def test_demonstrations_are_written_and_read(demos, tmp_path):
    write_npz(demos[:2], tmp_path / "loop")
    read = load_demos(tmp_path / "loop", "uvd.tasks.gym:PointLoop-v0")
    np.testing.assert_array_equal(read.trajectories[1].obs, demos[1].obs)


def test_previous_action_in_the_observation():
    task = with_previous_action(TASK)
    state = task.reset(jax.random.key(0))
    np.testing.assert_array_equal(task.observe(state)[4:], [0, 0])
    action = jnp.array([0.3, -0.7])
    after = task.step(state, action, jax.random.key(1))
    np.testing.assert_array_equal(task.observe(after)[4:], action)
    plain = TASK.step(state[0], action, jax.random.key(1))
    np.testing.assert_array_equal(task.observe(after)[:4], TASK.observe(plain))
    assert task.reward(state, action, after) == TASK.reward(state[0], action, plain)
    assert task.obs_dim == 6
