"""Which goals UVD may learn with: those that tell nothing of what came after (s, a)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from uvd.agents import Spec
from uvd.agents.td3 import TD3Config
from uvd.agents.uvd import (
    GOALS,
    UVDConfig,
    choose_goals,
    density_step,
    long_horizon,
    make_density,
    make_uvd,
)
from uvd.core.policy import Norm
from uvd.core.replay import Episode, fetch, init_ring, insert_all
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import Grid

# Whether, given (s, a, g), s' on the cliff walk is still distributed as P(s' | s, a).
# Balanced goals are weighted, and as good as the density is: tested below, with an exact one.
UNBIASED = {
    "intended": True, "shuffled": True, "marginal": True, "density": True, "future": False,
}  # fmt: skip
GRID = Grid(slip=0.3)


def place(cells):
    return np.stack([cells % GRID.cols, cells // GRID.cols], -1).astype(np.float32)


@pytest.fixture(scope="module")
def walk():
    """Episodes of a goal-seeking, exploring walker in a ring, and a density trained on them."""
    rng = np.random.default_rng(0)
    policy = cliffwalk.greedy(cliffwalk.optimal_values(GRID))
    played = cliffwalk.simulate(GRID, policy, rng.choice(GRID.safe, 3000), 0.5, rng)
    n, (columns, rows) = len(played.goals), (GRID.cols, GRID.rows)
    episodes = Episode(
        jnp.asarray(place(played.states)),
        jnp.asarray(np.eye(5, dtype=np.float32)[played.actions]),
        jnp.asarray(place(played.states)),
        jnp.asarray(place(played.goals)),
        jnp.full(n, GRID.horizon, jnp.int32),
        jnp.zeros(n, bool),
        jnp.asarray((played.states[:, 1:] == played.goals[:, None]).any(1)),
    )
    ring = jax.jit(insert_all)(init_ring(n * (GRID.horizon + 1), 2, 5, 2), episodes)
    half = np.array([columns - 1, rows - 1], np.float32) / 2
    near = lambda achieved, goal: ((achieved - goal) ** 2).sum(-1) < 0.25  # noqa: E731
    spec = Spec(2, 5, 2, near, Norm(half, half, half, half), (0, 1))
    config = UVDConfig(
        TD3Config(hidden=(16, 16), batch=256), flow_hidden=(32, 32), bijectors=4, smoothing=0.2,
        flow_lr=5e-3,
    )  # fmt: skip
    density = make_density(config, spec)

    @jax.jit
    def train(state, ring):
        def body(state, i):
            key = jax.random.fold_in(jax.random.key(1), i)
            return density_step(config, density, state, ring, key, i)[0], None

        return jax.lax.scan(body, state, jnp.arange(200))[0]

    state = train(make_uvd(config, spec).init(jax.random.key(0), spec), ring)
    every = fetch(ring, ring.order[: ring.last])  # each transition once: draws are independent
    return density, state, ring, every


def chosen(walk, choice, key, intended=0.0, size=None):
    density, state, ring, every = walk
    config = UVDConfig(intended=intended, intended_early=intended)
    batch = jax.tree.map(lambda x: x[:size], every)
    draw = jax.jit(
        lambda key: choose_goals(choice, config, density, state, ring, batch, key, jnp.asarray(0))
    )
    return draw(key)


def cell_of(place):
    column, row = np.clip(np.round(np.asarray(place)), 0, [GRID.cols - 1, GRID.rows - 1]).T
    return (row * GRID.cols + column).astype(int)


@pytest.fixture(scope="module")
def goal_counts(walk):
    """How often each `[s, a, g, s']` occurs for a choice of goals; goals are the nearest cells."""
    every = walk[-1]

    @functools.cache
    def count(choice):
        goals = cell_of(chosen(walk, choice, jax.random.key(5)).goal)
        actions = np.argmax(every.action, -1)
        counts = np.zeros((GRID.cells, 5, GRID.cells, GRID.cells))
        np.add.at(counts, (cell_of(every.obs), actions, goals, cell_of(every.next_obs)), 1)
        return counts

    return count


def fit_to_dynamics(counts):
    """p-value of Pearson's test that s' follows P(s' | s, a) within every (s, a, g)."""
    P = cliffwalk.transitions(GRID)[:, :, None]
    expected = counts.sum(-1, keepdims=True) * P
    possible = np.broadcast_to(P > 0, counts.shape)
    assert counts[~possible].sum() == 0
    often = (np.where(possible, expected, np.inf).min(-1) >= 5) & (possible.sum(-1) > 1)
    statistic = ((counts - expected) ** 2 / np.where(expected > 0, expected, 1))[often].sum()
    freedom = (possible.sum(-1) - 1)[often].sum()
    assert freedom > 400
    return stats.chi2.sf(statistic, freedom)


@pytest.mark.parametrize("choice", UNBIASED)
def test_which_goals_are_unbiased(goal_counts, choice):
    assert {*UNBIASED, "balanced"} == {*GOALS}
    p = fit_to_dynamics(goal_counts(choice))
    assert (p > 1e-3) if UNBIASED[choice] else (p < 1e-12), p


def test_density_goals_are_likely_futures_of_the_action(goal_counts):
    """Unbiased, and yet they know the action: after a step right goals lie further right."""

    def step_right(choice):
        counts = goal_counts(choice).sum(-1)[:: GRID.cols]  # the cells of the first column
        columns = counts @ (np.arange(GRID.cells) % GRID.cols) / counts.sum(-1)
        return (columns[:-1, cliffwalk.RIGHT] - columns[:-1, cliffwalk.LEFT]).mean()

    assert step_right("density") > 0.2
    assert abs(step_right("marginal")) < 0.1


def test_share_of_intended_goals(walk):
    goals = chosen(walk, "density", jax.random.key(0), 0.2, 20_000)
    kept = (goals.goal == walk[-1].goal[:20_000]).all(-1)
    assert kept.mean() == pytest.approx(0.2, abs=0.012)
    assert (goals.weight == 1).all()


FORK = (0.7, 0.3)  # chances of the way up and the way down


def test_balanced_goals_are_unbiased_and_know_the_future():
    """A fork at random, then a walk up or down: weighted by the exact densities, the goal tells
    nothing of the way that was taken, though most goals are what was really achieved."""
    n, sigma = 40_000, 0.05
    rng = np.random.default_rng(0)
    side = np.where(rng.uniform(size=n) < FORK[0], 1.0, -1.0)
    end = side + rng.normal(scale=0.3, size=n)
    where = np.stack([0 * side, side, end], 1)[..., None].astype(np.float32)
    episodes = Episode(
        jnp.asarray(where), jnp.zeros((n, 2, 1)), jnp.asarray(where), jnp.full((n, 1), 9.0),
        jnp.full(n, 2, jnp.int32), jnp.zeros(n, bool), jnp.zeros(n, bool),
    )  # fmt: skip
    ring = jax.jit(insert_all)(init_ring(3 * n, 1, 1, 1), episodes)
    norm = jax.tree.map(jnp.float32, Norm(*np.array([[[0.0], [1.0]]] * 2).reshape(4, 1)))
    spec = Spec(1, 1, 1, lambda achieved, goal: achieved == goal, norm, (0,))
    config = UVDConfig(
        smoothing=0.02, smoothing_long=sigma, smoothing_half=0, futures=0.9, intended=0.0
    )
    density = make_density(config, spec)
    soon, late = long_horizon(jnp.asarray(1)), long_horizon(jnp.asarray(2))

    def spread(horizon, obs):  # from the fork's ways a last step with noise is made
        # From the fork two steps are left; from its ways one, after the action that led there.
        last = horizon == jnp.where(obs == 0, late, -soon)
        return jnp.where(last, jnp.hypot(0.3, sigma), sigma)[:, 0]

    def exact(params, norm, obs, action, achieved, goal, intended, horizon):
        width = spread(horizon, obs)
        up, down = (jax.scipy.stats.norm.pdf(goal[:, 0], m, width) for m in (1.0, -1.0))
        ahead = FORK[0] * up + FORK[1] * down
        return jnp.log(jnp.where(obs[:, 0] == 0, ahead, jnp.where(obs[:, 0] > 0, up, down)))

    def draw(params, norm, key, obs, action, achieved, intended, horizon):
        key_way, key_noise = jax.random.split(key)
        up = jax.random.uniform(key_way, (len(obs),)) < FORK[0]
        noise = spread(horizon, obs) * jax.random.normal(key_noise, (len(obs),))
        return (jnp.where(up, 1.0, -1.0) + noise)[:, None]

    density = density._replace(log_prob=exact, sample=draw)
    state = make_uvd(config, spec).init(jax.random.key(0), spec)
    batch = fetch(ring, 3 * jnp.arange(n))
    choose = jax.jit(
        lambda key: choose_goals(
            "balanced", config, density, state, ring, batch, key, jnp.asarray(0)
        )
    )
    goals = jax.tree.map(np.asarray, choose(jax.random.key(1)))
    goal, weight, went_up = goals.goal[:, 0], goals.weight, np.asarray(batch.next_obs)[:, 0] > 0
    assert weight.max() <= 10 + 1e-4
    assert weight.mean() == pytest.approx(1, abs=0.02)
    real = np.isin(goal, where).mean()
    assert real == pytest.approx(0.9, abs=0.02)
    for some in (goal > 0.5, goal < -0.5):
        weighted = (weight * went_up)[some].sum() / weight[some].sum()
        assert weighted == pytest.approx(FORK[0], abs=0.03)
    assert abs(went_up[goal > 0.5].mean() - FORK[0]) > 0.1  # without weights it tells


def test_shuffled_and_marginal_goals_come_from_where_they_should(walk):
    every, key = walk[-1], jax.random.key(3)
    shuffled = chosen(walk, "shuffled", key).goal
    intended = cell_of(every.goal)
    np.testing.assert_array_equal(np.sort(cell_of(shuffled)), np.sort(intended))
    same = (cell_of(shuffled) == intended).mean()
    assert same == pytest.approx((np.bincount(intended) ** 2).sum() / len(intended) ** 2, abs=0.01)
    marginal = cell_of(chosen(walk, "marginal", key).goal)
    visits = np.bincount(cell_of(every.achieved), minlength=GRID.cells) / len(marginal)
    np.testing.assert_allclose(
        np.bincount(marginal, minlength=GRID.cells) / len(marginal), visits, atol=0.005
    )
