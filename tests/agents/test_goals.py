"""The choices of goals: which of them tell nothing of what came after (s, a), and their shares."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from small_tasks import KEY, compiled, filled, goal_spec, insert_episodes, make_ring
from uvd.agents import Spec
from uvd.agents.futures import long_term
from uvd.agents.goal_density import DensityConfig, GoalDensity
from uvd.agents.goals import CHOICES, GoalsConfig, Source, choose_goals
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.policy import Norm
from uvd.core.replay import fetch
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import Grid

# Whether, given (s, a, g), s' on the cliff walk is still distributed as P(s' | s, a).
# Balanced goals are weighted, and as good as the density is: tested below, with an exact one.
UNBIASED = {"intended": True, "shuffled": True, "density": True, "future": False}
GRID = Grid(slip=0.3)
STEP = jnp.asarray(0)
LATE = jnp.asarray(10**6)  # the share of intended goals is the last one


def place(cells):
    return np.stack([cells % GRID.cols, cells // GRID.cols], -1).astype(np.float32)


@pytest.fixture(scope="module")
def walk():
    """Episodes of a goal-seeking, exploring walker in a replay buffer, and a density fitted to
    them."""
    rng = np.random.default_rng(0)
    policy = cliffwalk.greedy(cliffwalk.optimal_values(GRID))
    played = cliffwalk.simulate(GRID, policy, rng.choice(GRID.safe, 2500), 0.5, rng)
    n, (columns, rows) = len(played.goals), (GRID.cols, GRID.rows)
    achieved = place(played.states)
    episodes = Episode(
        obs=achieved,
        action=np.eye(5, dtype=np.float32)[played.actions],
        achieved=achieved,
        goal=place(played.goals),
        length=np.full(n, GRID.horizon, np.int32),
        terminated=np.zeros(n, bool),
        success=played.states[:, 1:] == played.goals[:, None],
        reward=np.zeros((n, GRID.horizon), np.float32),
    )
    ring = insert_episodes(episodes)
    half = np.array([columns - 1, rows - 1], np.float32) / 2
    spec = Spec(2, 5, 2, lambda a, g: (a == g).all(-1), Norm(half, half, half, half), (0, 1))
    config = DensityConfig(flow_hidden=(32,), bijectors=2, smoothing=0.2, flow_lr=1e-2)
    density = GoalDensity(config, spec, "adam", 0.98)

    @compiled
    def train(flow):
        def body(carry, i):
            key = jax.random.fold_in(jax.random.key(1), i)
            return density.fit(*carry, spec.norm, ring, key, i, 256, True, True)[:2], None

        carry = flow, density.optimiser.init(flow)
        return jax.lax.scan(body, carry, jnp.arange(200))[0][0]

    flow = train(filled(jax.eval_shape(density.flow.init, KEY)))
    # Each transition once: draws are independent.
    every = fetch(ring, np.asarray(ring.order)[: int(ring.last)])
    return Source(density, flow, spec.norm, ring, every, LATE, 0.5)


@pytest.fixture(scope="module")
def goals(walk):
    """Goals of all transitions by each choice."""

    def choose(choice):
        return compiled(lambda key: choose_goals(choice, walk, key))(jax.random.key(5))

    return {choice: choose(choice) for choice in UNBIASED}


def cell_of(place):
    column, row = np.clip(np.round(np.asarray(place)), 0, [GRID.cols - 1, GRID.rows - 1]).T
    return (row * GRID.cols + column).astype(int)


@pytest.fixture(scope="module")
def goal_counts(walk, goals):
    """How often each `[s, a, g, s']` occurs for a choice of goals; goals are the nearest cells."""
    batch = walk.batch
    index = cell_of(batch.obs), np.argmax(batch.action, -1), cell_of(batch.next_obs)

    def count(choice):
        counts = np.zeros((GRID.cells, 5, GRID.cells, GRID.cells))
        np.add.at(counts, (*index[:2], cell_of(goals[choice].goal), index[2]), 1)
        return counts

    return {choice: count(choice) for choice in UNBIASED}


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
    assert {*UNBIASED, "balanced"} == {*CHOICES}
    p = fit_to_dynamics(goal_counts[choice])
    assert (p > 1e-3) if UNBIASED[choice] else (p < 1e-12), p


def test_density_goals_are_likely_futures_of_the_action(goal_counts):
    """Unbiased, and yet they know the action: after a step right goals lie further right."""

    def step_right(choice):
        counts = goal_counts[choice].sum(-1)[:: GRID.cols]  # the cells of the first column
        columns = counts @ (np.arange(GRID.cells) % GRID.cols) / counts.sum(-1)
        return (columns[:-1, cliffwalk.RIGHT] - columns[:-1, cliffwalk.LEFT]).mean()

    assert step_right("density") > 0.2
    assert abs(step_right("shuffled")) < 0.1


def test_share_of_intended_goals(walk, goals):
    """A fifth of the density's and of the future goals is replaced by the intended ones."""
    kept = (goals["density"].goal == walk.batch.goal).all(-1)
    assert kept.mean() == pytest.approx(0.2, abs=0.012)
    for choice in UNBIASED:
        assert (goals[choice].weight == 1).all()
    np.testing.assert_array_equal(goals["intended"].goal, walk.batch.goal)


def test_shuffled_goals_are_those_of_other_transitions(walk, goals):
    shuffled, intended = cell_of(goals["shuffled"].goal), cell_of(walk.batch.goal)
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(intended))
    same = (shuffled == intended).mean()
    assert same == pytest.approx((np.bincount(intended) ** 2).sum() / len(intended) ** 2, abs=0.01)


FORK = (0.7, 0.3)  # chances of the way up and the way down
SIGMA, LAST_STEP = 0.05, 0.3  # the long smoothing; the noise of the last step


class ForkDensity(GoalDensity):
    """The exact density of the fork below, instead of a flow."""

    def _width(self, context, time_code):
        """From the fork two steps are left; from its ways one, after the action that led there."""
        one, two = long_term(jnp.asarray(1)), long_term(jnp.asarray(2))
        last = time_code == jnp.where(context.obs == 0, two, -one)
        return jnp.where(last, jnp.hypot(LAST_STEP, SIGMA), SIGMA)[:, 0]

    def log_prob(self, flow, norm, context, goal, time_code=0.0, noise=0.0):
        width = self._width(context, time_code)
        up, down = (jax.scipy.stats.norm.pdf(goal[:, 0], side, width) for side in (1.0, -1.0))
        fork = FORK[0] * up + FORK[1] * down
        at = context.obs[:, 0]
        return jnp.log(jnp.where(at == 0, fork, jnp.where(at > 0, up, down)))

    def sample(self, flow, norm, key, context, time_code):
        key_way, key_noise = jax.random.split(key)
        up = jax.random.uniform(key_way, (len(time_code),)) < FORK[0]
        noise = self._width(context, time_code) * jax.random.normal(key_noise, up.shape)
        return (jnp.where(up, 1.0, -1.0) + noise)[:, None]


def test_balanced_goals_are_unbiased_and_know_the_future():
    """A fork at random, then a walk up or down: weighted by the exact densities, the goal tells
    nothing of the way that was taken, though most goals are what was really achieved."""
    n = 40_000
    rng = np.random.default_rng(0)
    side = np.where(rng.uniform(size=n) < FORK[0], 1.0, -1.0)
    end = side + LAST_STEP * rng.normal(size=n)
    where = np.stack([0 * side, side, end], 1)[..., None].astype(np.float32)
    ring = make_ring(where, np.zeros((n, 2, 1)), where, np.full((n, 1), 9.0))
    spec = goal_spec(obs=1, action=1, goal_scale=(1.0,), varying=(0,))
    config = DensityConfig(smoothing=0.02, smoothing_half=0, bijectors=2)
    density = ForkDensity(config, spec, "adam", 0.98)
    source = Source(density, (), spec.norm, ring, fetch(ring, 3 * np.arange(n)), STEP, 0.9)
    choose = compiled(lambda key: CHOICES["balanced"](source, key))
    goals = jax.tree.map(np.asarray, choose(jax.random.key(1)))
    goal, weight, went_up = goals.goal[:, 0], goals.weight, side > 0
    assert weight.max() <= 10 + 1e-4
    assert weight.mean() == pytest.approx(1, abs=0.02)
    real = np.isin(goal, where).mean()
    assert real == pytest.approx(0.9, abs=0.02)
    # Goals of one step ahead, and of two
    near = (abs(goal - 1) < 0.1) | (abs(goal + 1) < 0.1)
    for some in (goal > 0.5, goal < -0.5, (goal > 0.5) & near, (goal > 0.5) & ~near):
        weighted = (weight * went_up)[some].sum() / weight[some].sum()
        assert weighted == pytest.approx(FORK[0], abs=0.03)
    assert abs(went_up[goal > 0.5].mean() - FORK[0]) > 0.1  # without weights it tells
    # Weighted, goals are distributed as the density's: half of them one step ahead, half two.
    above = (weight * (goal > 0)).sum() / weight.sum()
    assert above == pytest.approx(FORK[0], abs=0.02)
    spread = ((weight * (abs(goal) - 1) ** 2).sum() / weight.sum()) ** 0.5
    assert spread == pytest.approx(((SIGMA**2 + LAST_STEP**2) / 2) ** 0.5, rel=0.05)


HORIZON = 8


def counting_source(episodes, density):
    """Achieved goals that tell (episode, step): 100 e + t. The intended ones are -1."""
    mark = (100.0 * np.arange(episodes)[:, None] + np.arange(HORIZON + 1))[..., None]
    shape = (episodes, HORIZON, 2)
    ring = make_ring(np.repeat(mark, 3, -1), np.zeros(shape), mark, -np.ones((episodes, 1)))
    batch = fetch(ring, np.asarray(ring.order)[: int(ring.last)])
    return Source(density, (), None, ring, batch, STEP, 0.5)


class TimeCodes(GoalDensity):
    """Samples that are the time code."""

    def sample(self, flow, norm, key, context, time_code):
        return time_code


def test_density_goals_are_drawn_for_all_offsets_alike():
    spec = goal_spec(goal_scale=(1.0,), varying=(0,))
    source = counting_source(200, TimeCodes(DensityConfig(bijectors=2), spec, "adam", 0.98))
    goals = compiled(lambda key: CHOICES["density"](source, key))(KEY)
    left = HORIZON - np.asarray(source.batch.achieved)[:, 0] % 100
    offset = np.exp(2 * (np.asarray(goals.goal)[:, 0] - 1)).round().astype(int)
    for n in range(1, HORIZON + 1):
        counts = np.bincount(offset[left == n], minlength=n + 1)
        assert counts[0] == 0
        assert len(counts) == n + 1
        assert n == 1 or stats.chisquare(counts[1:]).pvalue > 1e-4


def test_early_share_of_intended_goals():
    """The difference between both shares halves with the smoothing; without half-life, none."""
    spec = goal_spec(goal_scale=(1.0,), varying=(0,))
    for half, cases in ((100, {0: 0.6, 100: 0.4, 10_000: 0.2}), (0, {0: 0.2})):
        density = GoalDensity(DensityConfig(bijectors=2, smoothing_half=half), spec, "adam", 0.98)
        source = counting_source(1000, density)

        @compiled
        def share(step, source=source):
            goals = choose_goals("future", source._replace(step=step), KEY)
            return (goals.goal == -1).mean()

        for step, expected in cases.items():
            assert float(share(step)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("td_goals", "actor_goals", "long_spans", "after_spans"),
    [
        ("intended", "future", False, False),
        ("density", "future", True, False),
        ("shuffled", "density", True, False),
        ("balanced", "future", True, True),
        ("intended", "balanced", True, True),
    ],
)
def test_which_spans_the_choices_need(td_goals, actor_goals, long_spans, after_spans):
    config = GoalsConfig(td_goals=td_goals, actor_goals=actor_goals)
    assert config.needs_long_spans == long_spans
    assert config.needs_after_spans == after_spans


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"td_goals": "futures"}, "unknown td_goals 'futures'; nearest: future"),
        ({"futures": 1.0}, "futures = 1.0 must be below 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        replace(GoalsConfig(), **settings)


def test_intended_goals_among_balanced_ones_count_fully_and_true_futures_are_blurred():
    n = 4000
    side = np.where(np.random.default_rng(0).uniform(size=n) < FORK[0], 1.0, -1.0)
    where = np.stack([0 * side, side, side], 1)[..., None].astype(np.float32)
    ring = make_ring(where, np.zeros((n, 2, 1)), where, np.full((n, 1), 9.0))
    spec = goal_spec(obs=1, action=1, goal_scale=(1.0,), varying=(0,))
    config = DensityConfig(smoothing=0.3, smoothing_half=100, bijectors=2)
    density = ForkDensity(config, spec, "adam", 0.98)
    source = Source(density, (), spec.norm, ring, fetch(ring, 3 * np.arange(n)), STEP, 0.99)
    goals = compiled(lambda key: choose_goals("balanced", source, key))(KEY)
    kept = goals.goal[:, 0] == 9
    assert kept.mean() == pytest.approx(0.6, abs=0.03)
    assert (goals.weight[kept] == 1).all()
    assert (goals.weight[~kept] != 1).any()
    spread = (goals.goal[~kept, 0] - side[~kept]).std()
    assert spread == pytest.approx(0.3 - density.kernel.end, rel=0.1)
