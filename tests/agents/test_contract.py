"""What every algorithm owes the loop: one trace, independent seeds, exact repetition and restore.

Each algorithm is compiled once, at a tiny size, for three seeds in calls of two cycles. All tests
read the same few short runs. Imitators run on a task without goals, with demonstrations of nothing
in particular.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import unit_norm
from uvd.agents import ALGORITHMS, Spec, kdi
from uvd.agents.agent import DemoSteps
from uvd.core.config import flatten
from uvd.core.policy import act
from uvd.settings import build
from uvd.tasks import make_task
from uvd.training.learner import Schedule, state_arrays, state_from_arrays
from uvd.training.on_device import make_device_program

SEEDS, ENVS, HORIZON = 3, 2, 8
WARM, PER_CALL, CYCLES = 1, 2, 6
SMALL = {
    "hidden": (8,), "flow_hidden": (8,), "bijectors": 2, "batch": 32, "capacity": 60, "short": 40,
    "epochs": 2, "discriminator_hidden": (8,), "discriminator_steps": 2, "density_only": 0,
    "actor_start": 0, "flow_delay": 3,
}  # fmt: skip
CASES = sorted(ALGORITHMS)
GOALS = make_task("PointReach-v0")._replace(horizon=HORIZON)
REWARDS = make_task("PointLoop-v0")._replace(horizon=HORIZON)
# What the program does with any algorithm is tested with the one that compiles soonest.
any_algorithm = pytest.mark.parametrize("made", ["td3"], indirect=True)


def spec_of(task):
    n = task.goal_dim
    norm = unit_norm(task.obs_dim, n)
    spec = Spec(task.obs_dim, task.action_dim, n, task.success, norm, tuple(range(n)))
    if n:
        return spec
    rng = np.random.default_rng(0)
    demos = DemoSteps(*(rng.uniform(-1, 1, (20, k)).astype(np.float32) for k in (4, 2, 4)))
    return replace(spec, demos=demos, varying_obs=(0, 1, 2, 3), cycle_steps=ENVS * HORIZON)


class Made:
    """An algorithm's program, and the run of three seeds that tests compare with."""

    def __init__(self, name):
        self.name = name
        algorithm = ALGORITHMS[name]
        self.task = REWARDS if algorithm.learns_from == "demos" else GOALS
        known = flatten(algorithm.config())
        given = {name: value for name, value in SMALL.items() if name in known}
        given |= {"envs": ENVS, "confirm_cycles": 1}
        config = build(self.name, self.task.id, given=given)
        self.run, self.collect = config.run, algorithm.collect(config.settings)
        self.updates = round(ENVS * HORIZON * self.collect.updates_per_step)
        if algorithm.on_policy:
            self.updates = 1
        self.agent = algorithm.make(config.settings, spec_of(self.task))
        self.program = self.make_program(PER_CALL)
        self.start = on_host(self.program.init(0, SEEDS))
        self.end, self.played, self.logged = train(self.program, self.start)
        self.loss = next(x for x in ("critic/loss", "actor/loss") if x in self.logged)

    def make_program(self, per_call):
        schedule = Schedule(ENVS * HORIZON, self.updates, WARM, per_call, per_call, CYCLES)
        return make_device_program(self.agent, self.task, self.collect, self.run, schedule)


@pytest.fixture(scope="module", params=CASES)
def made(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kdi, "REFRESH", 10)  # several times within these few updates
        yield Made(request.param)


def on_host(learner):
    """With NumPy arrays: a call does not use them up, and to index one compiles nothing."""
    arrays = jax.tree.map(np.asarray, learner._replace(key=()))
    return arrays._replace(key=learner.key)


def train(program, learner, per_call=PER_CALL, first=0, cycles=CYCLES):
    """Trains for some cycles; the learner, the episodes of each call, the metrics of all cycles."""
    learner, played, logged = learner._replace(key=jnp.copy(learner.key)), [], []
    for cycle in range(first, first + cycles, per_call):
        learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
        played.append(jax.tree.map(np.asarray, episodes))
        logged.append(jax.tree.map(np.asarray, metrics))
    return on_host(learner), played, jax.tree.map(lambda *x: np.concatenate(x), *logged)


def seeds_of(learner, seeds):
    return jax.tree.map(lambda x: x[np.array(seeds)], learner)


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_near(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-4)


def test_metrics_are_finite_and_losses_wait_for_the_warm_up(made):
    if made.loss == "critic/loss":
        assert {"critic/q", "critic/target"} <= made.logged.keys()
    for name, values in made.logged.items():
        assert np.isfinite(values).all(), name
        per_cycle = name.startswith(("collect/", "select/"))
        assert values.shape == (CYCLES, SEEDS) if per_cycle else (CYCLES, SEEDS, made.updates)
    learned = made.logged[made.loss] != 0
    assert (learned == (np.arange(CYCLES) >= WARM)[:, None, None]).all()


def test_learning_moves_every_number_but_the_feature_ranges(made):
    before, after = state_arrays(made.start.state.agent), state_arrays(made.end.state.agent)
    for name, value in after.items():
        changed = (value != before[name]).reshape(SEEDS, -1).any(1)
        assert changed.all() if ".norm" not in name else not changed.any(), name


def test_slow_copies_are_slow(made):
    before, after = state_arrays(made.start.state.agent), state_arrays(made.end.state.agent)
    moved = {
        name: np.linalg.norm(x - before[name]) for name, x in after.items() if "_opt" not in name
    }
    slow = [name for name in moved if ".actor_target" in name or ".critic_target" in name]
    assert len(slow) in (0, 8)  # weights and biases of an actor and of critics, two layers each
    for name in slow:
        assert moved[name] < 0.9 * moved[name.replace("_target", "")], name


def test_a_best_policy_is_found_where_cycles_are_scored(made):
    if made.agent.score is None:
        assert made.end.state.best == ()
        return
    assert made.end.state.best.found.all()
    score = made.logged["select/score"][WARM:]
    assert (np.ptp(score, 0) > 0).all()
    assert (made.logged["select/best"][WARM:] <= score.max(0)).all()


def test_seeds_and_cycles_differ(made):
    starts = np.concatenate([np.asarray(e.obs)[:, :, 0] for e in made.played], 1)
    starts = starts.reshape(-1, made.task.obs_dim)
    assert len(np.unique(starts, axis=0)) == SEEDS * CYCLES * ENVS
    leaf = jax.tree.leaves(made.start.state.agent)[0]
    assert not np.array_equal(leaf[0], leaf[1])


def test_a_seed_does_not_depend_on_the_others(made):
    """Two of the seeds at other places, one of them twice."""
    seeds = [2, 0, 0]
    end, _, logged = train(made.program, seeds_of(made.start, seeds))
    expected = seeds_of(made.end, seeds)
    assert_same(state_arrays(end.state), state_arrays(expected.state))
    assert_same(end.ring, expected.ring)
    assert_same(logged, {name: x[:, seeds] for name, x in made.logged.items()})


def test_same_key_same_result(made):
    again, played, logged = train(made.program, made.start)
    assert_same(state_arrays(again.state), state_arrays(made.end.state))
    assert_same((played, logged), (made.played, made.logged))


def test_restore_continues_exactly(made):
    part, played, _ = train(made.program, made.start, cycles=PER_CALL)
    saved = state_arrays(part.state)
    assert all(type(x) is np.ndarray for x in saved.values())
    empty = made.start._replace(state=(), key=jnp.copy(made.start.key))
    restored = made.program.replay(empty, played[0])
    assert_same(restored.ring, part.ring)
    restored = restored._replace(state=state_from_arrays(made.start.state, saved))
    end, _, _ = train(made.program, restored, first=PER_CALL, cycles=CYCLES - PER_CALL)
    assert_same(state_arrays(end.state), state_arrays(made.end.state))
    assert_same(end.ring, made.end.ring)


def test_a_saved_policy_acts_the_same_in_numpy_and_jax(made):
    saved = state_arrays(made.end.state.agent)
    state = state_from_arrays(made.start.state.agent, saved)
    policy = made.agent.policy(jax.tree.map(lambda x: np.asarray(x)[1], state))
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (50, made.task.obs_dim)).astype(np.float32)
    goal = rng.uniform(-1, 1, (50, made.task.goal_dim)).astype(np.float32)
    here = act(jax.tree.map(np.asarray, policy), obs, goal)
    assert isinstance(here, np.ndarray)
    np.testing.assert_allclose(here, jax.jit(act)(policy, obs, goal), atol=1e-6)


def test_one_trace_served_all_of_these_calls(made):
    assert made.program.traces == {"train": 1}


@any_algorithm
def test_vmapped_seeds_equal_a_loop(made):
    one = made.make_program(1)
    for seed in range(SEEDS):
        alone, _, logged = train(one, seeds_of(made.start, [seed]), per_call=1)
        together = seeds_of(made.end, [seed])
        assert_near(alone.ring, together.ring)
        assert_near(alone.state, together.state)
        assert_near(logged[made.loss][:, 0], made.logged[made.loss][:, seed])
    assert one.traces == {"train": 1}


@any_algorithm
def test_grouping_of_cycles_does_not_matter(made):
    end, _, logged = train(made.make_program(3), made.start, per_call=3)
    assert_same(state_arrays(end.state), state_arrays(made.end.state))
    assert_same(end.ring, made.end.ring)
    assert_same(logged, made.logged)


@any_algorithm
def test_no_gradient_reaches_the_slow_copies(made):
    """The critic step is the same in all algorithms with slow copies."""
    learner = jax.tree.map(lambda x: jnp.asarray(x[0]), made.end)

    @jax.jit
    def gradient(state):
        def critic_loss(state):
            step = jnp.asarray(1)
            return made.agent.update(state, learner.ring, jax.random.key(0), step)[1][made.loss]

        return jax.grad(critic_loss, allow_int=True)(state)

    sizes = gradient(learner.state.agent)
    for copies in (sizes.actor_target, sizes.critic_target):
        assert not any(x.any() for x in jax.tree.leaves(copies))
    assert all(x.any() for x in jax.tree.leaves(sizes.critic))
