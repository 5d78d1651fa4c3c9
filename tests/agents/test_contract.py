"""What every algorithm owes the loop: one trace, independent seeds, exact repetition and restore.

Each algorithm is compiled twice at a tiny size: for three seeds in calls of two cycles, and for one
seed in calls of one. All tests read the same few short runs. Imitators run on a task without goals,
with demonstrations of nothing in particular.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents import ALGORITHMS, Agent, Spec
from uvd.agents.agent import Demos
from uvd.agents.td3 import TD3Config
from uvd.core.nets import init_mlp
from uvd.core.policy import Norm, Policy, act
from uvd.training.loop import state_arrays, state_from_arrays
from uvd.training.on_device import make_program
from uvd.settings import build, flatten, shared
from uvd.tasks import make_task

SEEDS, WARM, CYCLES, CALLS = 3, 1, 2, 3
SMALL = {
    "hidden": (16, 16), "flow_hidden": (8, 8), "bijectors": 2, "batch": 32, "capacity": 60,
    "short": 40, "warmup": 20, "horizon": 3, "epochs": 2, "discriminator_steps": 2,
    "discriminator_hidden": (8, 8), "density_only": 0, "actor_start": 0,
}  # fmt: skip
TASK = make_task("PointReach-v0")._replace(horizon=8)
LOOP = make_task("PointLoop-v0")._replace(horizon=8)
LOSS = {"bc": "actor/loss"}  # of those without a critic
NO_SLOW_COPIES = {"bc", "gail"}
# A sum's, and a width that moves.
MOVES = {"horizon": 1, "flow_delay": 5, "smoothing_half": 60_000, "smoothing_end": 0.7}
OWN = {"kernel": MOVES, "kernel-humanoid": {**MOVES, "trials": 1}}


def spec_of(task):
    n = task.goal_dim
    norm = Norm(np.zeros(task.obs_dim), np.ones(task.obs_dim), np.zeros(n), np.ones(n))
    norm = jax.tree.map(lambda x: x.astype(np.float32), norm)
    spec = Spec(task.obs_dim, task.action_dim, n, task.success, norm, tuple(range(n)))
    if n:
        return spec
    rng = np.random.default_rng(0)
    demos = Demos(*(rng.uniform(-1, 1, (20, k)).astype(np.float32) for k in (4, 2, 4)))
    return dataclasses.replace(spec, demos=demos, live_obs=(0, 1, 2, 3), cycle=2 * task.horizon)


@jax.jit
def one_seed(learner, seed):
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, seed, 1), learner)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def near(a, b, atol):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=atol)


@jax.jit
def fresh(learner):
    """A copy to train on: a call gives up the buffers of its argument."""
    return jax.tree.map(jnp.copy, learner)


def run(program, learner, cycles=CYCLES, first=0, calls=CALLS):
    """Trains for some calls; the learner, all episodes and all metrics."""
    learner, played, logged = fresh(learner), [], []
    for call in range(calls):
        cycle = jnp.asarray(first + call * cycles, jnp.int32)
        learner, episodes, metrics = program.train(learner, cycle)
        played.append(episodes)
        logged.append(metrics)
    return learner, played, logged


class Made:
    """An algorithm's programs, and the run of three seeds that tests compare with."""

    def __init__(self, name, preset):
        known, small = flatten(ALGORITHMS[name].config()), {**SMALL, **OWN.get(preset, {})}
        config = build(name, preset, {k: v for k, v in small.items() if k in known})
        algorithm = ALGORITHMS[name]
        self.name, self.td3, self.on_policy = name, shared(config), algorithm.on_policy
        self.task = LOOP if algorithm.learns_from == "demos" else TASK
        self.loss = LOSS.get(name, "critic/loss")
        self.agent = algorithm.make(config, spec_of(self.task))
        self.many, self.one = self.program(CYCLES), self.program(1)
        self.start = self.many.init(0, SEEDS)
        self.end, self.played, self.logged = run(self.many, self.start)

    def program(self, cycles):
        return make_program(
            self.agent, self.task, spec_of(self.task), self.td3, 2, cycles, WARM, self.on_policy
        )


@pytest.fixture(scope="module", params=[*sorted(ALGORITHMS), "vdi kernel", "vdi kernel-humanoid"])
def made(request):
    name, _, preset = request.param.partition(" ")
    return Made(name, preset or "default")


def test_one_trace(made):
    assert made.many.traces == {"train": 1}


def test_metrics_are_finite_and_losses_wait_for_the_warm_up(made):
    updates = 1 if made.on_policy else round(2 * made.task.horizon * made.td3.updates_per_step)
    for call, metrics in enumerate(made.logged):
        assert made.loss in metrics
        if made.loss == "critic/loss":
            assert {"critic/q", "critic/target"} <= set(metrics)
        for name, values in metrics.items():
            assert np.isfinite(values).all(), name
            if not name.startswith("collect/"):
                assert values.shape == (CYCLES, SEEDS, updates)
        learned = np.asarray(metrics[made.loss]) != 0
        warm = np.arange(CYCLES) + call * CYCLES < WARM
        assert (learned == ~warm[:, None, None]).all()


def test_learning_moves_every_net(made):
    for path, leaf in jax.tree_util.tree_leaves_with_path(made.end.agent):
        name = jax.tree_util.keystr(path)
        # Without a delay uvd makes no copy; vdi's noise has a schedule of its own.
        if not any(still in name for still in ("norm", "flow_target", ".noise")):
            before = dict(jax.tree_util.tree_leaves_with_path(made.start.agent))[path]
            assert (np.asarray(leaf) != np.asarray(before)).any(), name


def test_seeds_and_cycles_differ(made):
    starts = np.concatenate([np.asarray(e.obs)[:, :, 0] for e in made.played], 1)
    starts = starts.reshape(-1, made.task.obs_dim)
    assert len(np.unique(starts, axis=0)) == SEEDS * CALLS * CYCLES * 2
    leaf = jax.tree.leaves(made.start.agent)[0]
    assert not np.array_equal(leaf[0], leaf[1])


def test_updates_are_numbered_from_the_end_of_the_warm_up_and_never_share_a_key():
    norm = spec_of(TASK).norm
    still = Policy(init_mlp(jax.random.key(0), (4, 2), 0.0), jax.tree.map(jnp.asarray, norm))
    agent = Agent(
        lambda key, spec: jnp.zeros(()),
        lambda state, ring, key, step: (
            state + 1,
            {"step": step, "rows": ring.last, "key": jax.random.uniform(key)},
        ),
        lambda state: still,
    )
    td3 = TD3Config(capacity=40, updates_per_step=0.25)  # 4 updates for 2 episodes of 8 steps
    program = make_program(agent, TASK, spec_of(TASK), td3, 2, 3, 2)
    learner, _, logged = run(program, program.init(5, 2), cycles=3, calls=2)
    metrics = {k: np.concatenate([np.asarray(m[k]) for m in logged])[2:] for k in logged[0]}
    assert (learner.agent == 4 * 4).all()  # cycles after the warm-up, updates in each
    np.testing.assert_array_equal(metrics["step"][:, 1].ravel(), np.arange(16))
    np.testing.assert_array_equal(metrics["rows"][:, 0, 0], [48, 64, 80, 96])
    assert len(np.unique(metrics["key"])) == 2 * 16


def test_vmapped_seeds_equal_a_loop(made):
    middle = made.one.init(1, 1)
    near(middle.agent, one_seed(made.start, 1).agent, 1e-7)
    same(jax.random.key_data(middle.key), jax.random.key_data(made.start.key[1:2]))
    for seed in range(SEEDS):
        start = middle if seed == 1 else one_seed(made.start, seed)
        alone, _, logged = run(made.one, start, cycles=1, calls=CYCLES * CALLS)
        near(alone.ring, one_seed(made.end, seed).ring, 1e-4)
        near(alone.agent, one_seed(made.end, seed).agent, 1e-4)
        together = np.concatenate([m[made.loss][:, seed] for m in made.logged])
        near(np.concatenate([m[made.loss][:, 0] for m in logged]), together, 1e-4)
    assert made.one.traces == {"train": 1}


def test_same_key_same_result(made):
    again, played, logged = run(made.many, made.start)
    same(state_arrays(again.agent), state_arrays(made.end.agent))
    same((played, logged), (made.played, made.logged))


def test_restore_continues_exactly(made):
    part, played, _ = run(made.many, made.start, calls=1)
    saved = state_arrays(part.agent)
    assert all(type(x) is np.ndarray for x in saved.values())
    restored = made.many.replay(fresh(made.start), played[0])
    same(restored.ring, part.ring)
    restored = restored._replace(agent=state_from_arrays(made.start.agent, saved))
    end, _, _ = run(made.many, restored, first=CYCLES, calls=CALLS - 1)
    same(state_arrays(end.agent), state_arrays(made.end.agent))
    same(end.ring, made.end.ring)
    assert made.many.traces == {"train": 1}


@pytest.mark.parametrize("made", ["td3"], indirect=True)  # a matter of the program alone
def test_grouping_of_cycles_does_not_matter(made):
    start = one_seed(made.start, 0)
    short, _, _ = run(made.one, start, cycles=1, calls=4)
    long, _, _ = run(made.program(4), start, cycles=4, calls=1)
    same(state_arrays(long.agent), state_arrays(short.agent))
    same(long.ring, short.ring)


def test_saved_policy_acts_the_same_in_numpy_and_jax(made):
    saved = state_arrays(made.end.agent)
    state = jax.tree.map(lambda x: x[1], state_from_arrays(made.start.agent, saved))
    policy = made.agent.policy(state)
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (50, made.task.obs_dim)).astype(np.float32)
    goal = rng.uniform(-1, 1, (50, made.task.goal_dim)).astype(np.float32)
    here = act(jax.tree.map(np.asarray, policy), obs, goal)
    assert isinstance(here, np.ndarray)
    np.testing.assert_allclose(here, act(policy, jnp.asarray(obs), jnp.asarray(goal)), atol=1e-6)


def test_no_gradient_reaches_the_slow_copies(made):
    if made.name in NO_SLOW_COPIES:
        assert not any("_target" in name for name in state_arrays(made.end.agent))
        return
    learner = jax.tree.map(lambda x: x[0], made.end)

    @jax.jit
    def gradient(state):
        def critic_loss(state):
            _, metrics = made.agent.update(state, learner.ring, jax.random.key(0), jnp.asarray(1))
            return metrics["critic/loss"]

        return jax.grad(critic_loss, allow_int=True)(state)

    slow, fast = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(learner.agent)):
        name = jax.tree_util.keystr(path)
        if "_opt" not in name and "norm" not in name and leaf.dtype != jax.dtypes.float0:
            (slow if "_target" in name else fast).append((name, float(abs(leaf).max())))
    assert len(slow) > 6
    assert all(size == 0 for _, size in slow), slow
    assert any(size > 0 for name, size in fast if ".critic" in name)
