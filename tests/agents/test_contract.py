"""What every algorithm owes the loop: one trace, independent seeds, exact repetition and restore.

Each algorithm is compiled twice at a tiny size: for three seeds in calls of two cycles, and for one
seed in calls of one. All tests read the same few short runs. Imitators run on a task without goals,
with demonstrations of nothing in particular.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import unit_norm
from uvd.agents import ALGORITHMS, Spec
from uvd.agents.agent import DemoSteps
from uvd.core.config import flatten
from uvd.core.policy import act
from uvd.settings import build
from uvd.tasks import make_task
from uvd.training.learner import Schedule, state_arrays, state_from_arrays
from uvd.training.on_device import make_device_program

SEEDS, ENVS, HORIZON = 3, 2, 8
WARM, PER_CALL, CALLS = 1, 2, 3
CYCLES = PER_CALL * CALLS
SMALL = {
    "hidden": (16, 16), "flow_hidden": (8, 8), "bijectors": 2, "batch": 32, "capacity": 60,
    "short": 40, "warmup": 20, "horizon": 3, "epochs": 2, "discriminator_steps": 2,
    "discriminator_hidden": (8, 8), "density_only": 0, "actor_start": 0, "refresh": 5,
}  # fmt: skip
OWN = {"uvd": {"horizon": 1, "flow_delay": 3}, "vdi": {"flow_delay": 5}}
# Some cases differ in settings of the run.
CASES = {**{name: {} for name in sorted(ALGORITHMS)}, "kdi, confirmed": {"confirm_cycles": 1}}
GOALS = make_task("PointReach-v0")._replace(horizon=HORIZON)
REWARDS = make_task("PointLoop-v0")._replace(horizon=HORIZON)


def spec_of(task):
    n, steps = task.goal_dim, ENVS * HORIZON
    norm = unit_norm(task.obs_dim, n)
    spec = Spec(task.obs_dim, task.action_dim, n, task.success, norm, tuple(range(n)))
    if n:
        return spec
    rng = np.random.default_rng(0)
    demos = DemoSteps(*(rng.uniform(-1, 1, (20, k)).astype(np.float32) for k in (4, 2, 4)))
    return dataclasses.replace(spec, demos=demos, varying_obs=(0, 1, 2, 3), cycle_steps=steps)


def schedule_of(updates, per_call):
    return Schedule(ENVS * HORIZON, updates, WARM, per_call, per_call, CYCLES)


def one_seed(learner, seed):
    return jax.tree.map(lambda x: x[seed : seed + 1], learner)


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_near(a, b, atol=1e-4):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=atol)


def train(program, learner, per_call=PER_CALL, first=0, cycles=CYCLES):
    """Trains for some cycles; the learner, all episodes and all metrics."""
    learner, played, logged = jax.tree.map(jnp.copy, learner), [], []
    for cycle in range(first, first + cycles, per_call):
        learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
        played.append(episodes)
        logged.append(jax.tree.map(np.asarray, metrics))
    return learner, played, jax.tree.map(lambda *x: np.concatenate(x), *logged)


class Made:
    """An algorithm's programs, and the run of three seeds that tests compare with."""

    def __init__(self, case):
        self.name = case.split(",")[0]
        algorithm = ALGORITHMS[self.name]
        self.task = REWARDS if algorithm.learns_from == "demos" else GOALS
        known, small = flatten(algorithm.config()), {**SMALL, **OWN.get(self.name, {})}
        given = {name: x for name, x in small.items() if name in known}
        config = build(self.name, self.task.id, given={**given, "envs": ENVS, **CASES[case]})
        self.spec, self.collect = spec_of(self.task), algorithm.collect(config.settings)
        self.agent, self.run = algorithm.make(config.settings, self.spec), config.run
        self.updates = round(ENVS * HORIZON * self.collect.updates_per_step)
        if algorithm.on_policy:
            self.updates = 1
        self.many, self.one = self.program(PER_CALL), self.program(1)
        T = time.process_time()
        self.start = self.many.init(0, SEEDS)
        print("init", time.process_time() - T); T = time.process_time()
        self.end, self.played, self.logged = train(self.many, self.start)
        print("train", time.process_time() - T)

    def program(self, per_call):
        schedule = schedule_of(self.updates, per_call)
        return make_device_program(
            self.agent, self.task, self.spec, self.collect, self.run, schedule
        )

    @property
    def loss(self):
        return "actor/loss" if self.name == "bc" else "critic/loss"


@pytest.fixture(scope="module", params=CASES)
def made(request):
    return Made(request.param)


def test_one_trace(made):
    assert made.many.traces == {"train": 1}


def test_metrics_are_finite_and_losses_wait_for_the_warm_up(made):
    assert made.loss in made.logged
    if made.loss == "critic/loss":
        assert {"critic/q", "critic/target"} <= made.logged.keys()
    for name, values in made.logged.items():
        assert np.isfinite(values).all(), name
        per_cycle = name.startswith(("collect/", "select/"))
        assert values.shape == (CYCLES, SEEDS) if per_cycle else (CYCLES, SEEDS, made.updates)
    learned = made.logged[made.loss] != 0
    assert (learned == (np.arange(CYCLES) >= WARM)[:, None, None]).all()


def test_learning_moves_every_net(made):
    before = dict(jax.tree_util.tree_leaves_with_path(made.start.state.agent))
    for path, leaf in jax.tree_util.tree_leaves_with_path(made.end.state.agent):
        name = jax.tree_util.keystr(path)
        if "norm" not in name and name != ".width":  # feature ranges; KDI's width falls slowly
            assert (np.asarray(leaf) != np.asarray(before[path])).any(), name


def test_seeds_and_cycles_differ(made):
    starts = np.concatenate([np.asarray(e.obs)[:, :, 0] for e in made.played], 1)
    starts = starts.reshape(-1, made.task.obs_dim)
    assert len(np.unique(starts, axis=0)) == SEEDS * CYCLES * ENVS
    leaf = jax.tree.leaves(made.start.state.agent)[0]
    assert not np.array_equal(leaf[0], leaf[1])


def test_vmapped_seeds_equal_a_loop(made):
    T = time.process_time()
    for seed in range(SEEDS):
        alone, _, logged = train(made.one, one_seed(made.start, seed), per_call=1)
        together = one_seed(made.end, seed)
        assert_near(alone.ring, together.ring)
        assert_near(alone.state, together.state)
        assert_near(logged[made.loss][:, 0], made.logged[made.loss][:, seed])
        print("one", seed, time.process_time() - T); T = time.process_time()
    assert made.one.traces == {"train": 1}


def test_a_seed_starts_the_same_wherever_it_stands(made):
    T = time.process_time()
    other = one_seed(made.many.init(1, SEEDS), 0)
    assert_near(other.state, one_seed(made.start, 1).state, 1e-7)
    assert_same(jax.random.key_data(other.key), jax.random.key_data(made.start.key[1:2]))
    print("starts", time.process_time() - T); T = time.process_time()


def test_same_key_same_result(made):
    T = time.process_time()
    again, played, logged = train(made.many, made.start)
    assert_same(state_arrays(again.state), state_arrays(made.end.state))
    assert_same((played, logged), (made.played, made.logged))
    print("again", time.process_time() - T); T = time.process_time()


def test_restore_continues_exactly(made):
    T = time.process_time()
    part, played, _ = train(made.many, made.start, cycles=PER_CALL)
    saved = state_arrays(part.state)
    assert all(type(x) is np.ndarray for x in saved.values())
    empty = jax.tree.map(jnp.copy, made.start._replace(state=()))
    restored = made.many.replay(empty, played[0])
    assert_same(restored.ring, part.ring)
    print("replay", time.process_time() - T); T = time.process_time()
    restored = restored._replace(state=state_from_arrays(made.start.state, saved))
    end, _, _ = train(made.many, restored, first=PER_CALL, cycles=CYCLES - PER_CALL)
    assert_same(state_arrays(end.state), state_arrays(made.end.state))
    assert_same(end.ring, made.end.ring)
    assert made.many.traces == {"train": 1}
    print("rest", time.process_time() - T); T = time.process_time()


@pytest.mark.parametrize("made", ["td3"], indirect=True)  # a matter of the program alone
def test_grouping_of_cycles_does_not_matter(made):
    start = one_seed(made.start, 0)
    short, _, _ = train(made.one, start, per_call=1, cycles=4)
    long, _, _ = train(made.program(4), start, per_call=4, cycles=4)
    assert_same(state_arrays(long.state), state_arrays(short.state))
    assert_same(long.ring, short.ring)


def test_saved_policy_acts_the_same_in_numpy_and_jax(made):
    T = time.process_time()
    saved = state_arrays(made.end.state.agent)
    state = jax.tree.map(lambda x: x[1], state_from_arrays(made.start.state.agent, saved))
    policy = made.agent.policy(state)
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (50, made.task.obs_dim)).astype(np.float32)
    goal = rng.uniform(-1, 1, (50, made.task.goal_dim)).astype(np.float32)
    here = act(jax.tree.map(np.asarray, policy), obs, goal)
    assert isinstance(here, np.ndarray)
    np.testing.assert_allclose(here, act(policy, jnp.asarray(obs), jnp.asarray(goal)), atol=1e-6)
    print("policy", time.process_time() - T); T = time.process_time()


def test_no_gradient_reaches_the_slow_copies(made):
    T = time.process_time()
    names = state_arrays(made.end.state.agent)
    if not any("_target" in name for name in names):
        assert made.name in ("bc", "gail")
        return
    learner = jax.tree.map(lambda x: x[0], made.end)

    @jax.jit
    def gradient(state):
        def critic_loss(state):
            _, metrics = made.agent.update(state, learner.ring, jax.random.key(0), jnp.asarray(1))
            return metrics["critic/loss"]

        return jax.grad(critic_loss, allow_int=True)(state)

    slow, fast = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(learner.state.agent)):
        name = jax.tree_util.keystr(path)
        if "_opt" not in name and "norm" not in name and leaf.dtype != jax.dtypes.float0:
            (slow if "_target" in name else fast).append((name, float(abs(leaf).max())))
    assert len(slow) > 6
    assert all(size == 0 for _, size in slow), slow
    assert any(size > 0 for name, size in fast if ".critic" in name)
    print("gradient", time.process_time() - T); T = time.process_time()
