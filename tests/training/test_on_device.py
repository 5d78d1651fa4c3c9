"""The program of a JAX task: which policy plays which cycle, with which noise, and what is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from counting import UNIT, counting_agent, expected_run, updates_of
from uvd.collect.exploration import CollectConfig
from uvd.collect.worker import EVAL, FRESH
from uvd.core.episode import Episode
from uvd.settings import RunSettings
from uvd.tasks import make_task
from uvd.training.learner import Schedule
from uvd.training.on_device import make_device_program

HORIZON, ENVS, SEEDS = 5, 3, 2
# The point stays where it is; the reward is the action.
TASK = make_task("PointLoop-v0")._replace(
    horizon=HORIZON, action_dim=1, obs_dim=2,
    step=lambda s, a, key: s, observe=lambda s: s.point, reward=lambda s, a, after: a[0],
)  # fmt: skip
QUIET = CollectConfig(noise=0, random=0, hold=1, capacity=200)


def schedule_of(cycles, updates, warm, per_call):
    return Schedule(HORIZON * ENVS, updates, warm, per_call, per_call, cycles)


def program_of(agent, collect, schedule, **run):
    settings = RunSettings(seeds=SEEDS, envs=ENVS, **run)
    return make_device_program(agent, TASK, collect, settings, schedule)


def train_all(program, schedule, first_seed=0):
    """The learners, all episodes `[seed, episode, ...]`, and the metrics of all cycles."""
    learner, episodes, metrics = program.init(first_seed, SEEDS), [], []
    for cycle in range(0, schedule.total, schedule.per_call):
        learner, new, row = program.train(learner, jnp.asarray(cycle, jnp.int32))
        episodes.append(jax.tree.map(np.asarray, new))
        metrics.append(jax.tree.map(np.asarray, row))
    stacked = jax.tree.map(lambda *x: np.concatenate(x, 1), *episodes)
    return learner, stacked, jax.tree.map(lambda *x: np.concatenate(x), *metrics)


def actions_by_cycle(episodes: Episode):
    """`[seed, cycle, everything in it]`"""
    return episodes.action.reshape(SEEDS, -1, ENVS * HORIZON)


@pytest.fixture(scope="module")
def plain():
    """Six cycles, two in a call, the first without learning; each has three updates."""
    schedule = schedule_of(6, 3, 1, 2)
    program = program_of(counting_agent(2, 0, 1), QUIET, schedule)
    return program, schedule, train_all(program, schedule)


def test_the_newest_policy_plays_and_updates_are_counted(plain):
    program, _, (learner, episodes, metrics) = plain
    played, _ = expected_run(6, 1, 3, 0)
    actions = actions_by_cycle(episodes)
    expected = np.broadcast_to(UNIT * np.array(played)[:, None], actions.shape)
    np.testing.assert_allclose(actions, expected, atol=1e-6)
    assert np.asarray(learner.state.agent).tolist() == [15, 15]
    assert not metrics["step"][0].any(), "the warm-up has no updates"
    steps = np.arange(15).reshape(5, 1, 3)
    np.testing.assert_array_equal(metrics["step"][1:], np.tile(steps, (1, SEEDS, 1)))
    rows = HORIZON * ENVS * np.arange(2, 7)
    np.testing.assert_array_equal(metrics["rows"][1:, 0, 0], rows)
    np.testing.assert_allclose(metrics["collect/return"][:, 0], UNIT * 5 * np.array(played))
    assert len(np.unique(metrics["key"][1:])) == 5 * SEEDS * 3, "updates share random numbers"
    assert program.traces["train"] == 1


def test_logged_episodes_restore_the_buffer(plain):
    program, _, (learner, episodes, _) = plain
    again = program.replay(program.init(0, SEEDS), episodes)
    jax.tree.map(np.testing.assert_array_equal, again.ring, learner.ring)


def test_a_seed_is_the_same_in_any_run(plain):
    program, schedule, (_, episodes, metrics) = plain
    _, others, other_metrics = train_all(program, schedule, first_seed=1)
    np.testing.assert_array_equal(others.obs[0], episodes.obs[1])
    np.testing.assert_array_equal(other_metrics["key"][:, 0], metrics["key"][:, 1])
    assert not np.array_equal(others.obs[1], episodes.obs[0])


def test_evaluations_have_fixed_starts_and_no_noise(plain):
    program, _, (learner, _, _) = plain
    first, again = (program.evaluate(learner.state, EVAL, 4) for _ in range(2))
    np.testing.assert_allclose(first["eval/return"], [HORIZON * 15 * UNIT] * 2, rtol=1e-5)
    np.testing.assert_array_equal(first["eval/return"], again["eval/return"])
    noisy = program_of(counting_agent(2, 0, 1, log_std=jnp.zeros(1)), QUIET, plain[1])
    np.testing.assert_allclose(
        noisy.evaluate(learner.state, FRESH, 4)["eval/return"], first["eval/return"], rtol=1e-5
    )


def test_noise_is_that_of_the_updates_made_before_a_cycle():
    """Random actions in the warm-up; 1 in two cycles, of 0 and 20 updates; then 0.05."""
    collect = CollectConfig(
        noise=1.0, late_noise=0.05, late_updates=20, random=0.0, hold=1, warmup_random=True,
        store_unclipped=True, capacity=1000,
    )  # fmt: skip
    schedule = schedule_of(5, 20, 1, 5)
    agent = counting_agent(2, 0, 1)._replace(update=lambda state, ring, key, step: (state, {}))
    _, episodes, _ = train_all(program_of(agent, collect, schedule), schedule)
    actions = actions_by_cycle(episodes).swapaxes(0, 1).reshape(5, -1)
    assert abs(actions[0]).max() <= 1
    stds = actions.std(1)
    np.testing.assert_allclose(stds, [3**-0.5, 1, 1, 0.05, 0.05], rtol=0.35)
    assert abs(actions[1:3]).max() > 1, "clipped before they are stored"


def test_the_policy_with_the_best_score_is_kept_and_evaluated():
    """Every score is that of the policy which played the newest cycle."""
    peak, confirm = 100, 2
    schedule = schedule_of(8, 3, 1, 1)
    agent = counting_agent(2, 0, 1, peak)
    program = program_of(agent, QUIET, schedule, confirm_cycles=confirm)
    played, bests = expected_run(8, 1, 3, peak, confirm)
    learner, actions, kept = program.init(0, SEEDS), [], []
    for cycle in range(8):
        learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
        actions.append(np.asarray(episodes.action)[..., 0])
        best = learner.state.best
        kept.append(updates_of(best.net)[0] if best.found.all() else None)
    expected = np.broadcast_to(UNIT * np.array(played)[:, None, None, None], np.shape(actions))
    np.testing.assert_allclose(actions, expected, atol=1e-6)
    assert kept == bests
    assert len(set(bests)) >= 3, "nothing was to be chosen"
    assert bests[-1] != played[-1]
    returns = program.evaluate(learner.state, EVAL, 3)["eval/return"]
    np.testing.assert_allclose(returns, [HORIZON * bests[-1] * UNIT] * SEEDS, rtol=1e-5)
    np.testing.assert_allclose(metrics["select/best"], -abs(bests[-1] - peak), atol=1e-3)
    np.testing.assert_allclose(metrics["select/score"], -abs(played[-1] - peak), atol=1e-3)
