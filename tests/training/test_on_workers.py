"""The program of an environment: which policy plays which cycle, exact quotas, and what is kept."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from counting import UNIT, counting_agent, expected_run, updates_of
from uvd.collect.exploration import CollectConfig
from uvd.collect.worker import EVAL, Job, play
from uvd.collect.workers import Workers
from uvd.core.episode import Episode, to_records
from uvd.settings import RunSettings
from uvd.tasks.env import make_env
from uvd.tasks.find import find_task
from uvd.training.learner import Schedule
from uvd.training.on_workers import make_env_program

HORIZON, ENVS, QUOTA, SEEDS = 10, 3, 30, 2
QUIET = CollectConfig(noise=0, random=0, hold=1, capacity=200)


@pytest.fixture(scope="module")
def pools():
    """A pool of workers for each environment and its settings, started when first needed."""
    made = {}

    def pool(name, **settings):
        key = (name, *settings.items())
        if key not in made:
            made[key] = Workers(find_task(f"envs:{name}-v0", settings), 2)
        return made[key]

    yield pool
    for workers in made.values():
        workers.close()


def program_of(
    agent, workers, total, updates=3, warm=1, collect=QUIET, on_policy=False, quota=QUOTA, **run
):
    task = workers.task
    settings = RunSettings(**{"seeds": SEEDS, "envs": ENVS, **run})
    schedule = Schedule(quota, updates, warm, 1, 1, total)
    return make_env_program(agent, task, collect, settings, schedule, workers, on_policy)


class Cycle(NamedTuple):
    """A cycle's episodes and metrics, and a copy of the learner's state and buffer after it."""

    episodes: Episode
    metrics: dict[str, np.ndarray]
    state: Any
    ring: Any


def train_cycles(program, learner, cycles):
    """Trains; gives the learner, whose arrays are given away at its next cycle, and all cycles."""
    done = []
    for cycle in cycles:
        learner, *rest = program.train(learner, jnp.asarray(cycle, jnp.int32))
        done.append(Cycle(*jax.tree.map(np.array, (*rest, learner.state, learner.ring))))
    return learner, done


def replayed(program, cycles, first_seed=0):
    """A fresh learner with the episodes of these cycles, and the state after the last."""
    learner = program.init(first_seed, SEEDS)
    for cycle in cycles:
        learner = program.replay(learner, cycle.episodes)
    return learner._replace(state=jax.tree.map(jnp.asarray, cycles[-1].state))


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def kept_policies(cycles):
    """The best policy after each cycle, as its number of updates; None before there is one."""
    bests = [cycle.state.best for cycle in cycles]
    return [updates_of(best.net)[0] if best.found.all() else None for best in bests]


def first_actions(episodes):
    """The first action of every episode, of each seed."""
    return [record["action"][:, 0, 0] for record in to_records(episodes)]


@pytest.mark.parametrize("ends", [False, True])
def test_a_cycle_is_played_by_the_policy_of_the_cycle_before_the_last(pools, ends):
    """The quota is met exactly on average: what an episode exceeds it by is owed less later."""
    workers = pools("Line", ends=ends, noise=0.2)  # so that episodes end early
    program = program_of(counting_agent(3, 2, 2), workers, 6)
    played, _ = expected_run(6, 1, 3, 0, ahead=True)
    learner, cycles = train_cycles(program, program.init(5, SEEDS), range(6))
    starts, updates = [[], []], []
    for number, cycle in enumerate(cycles):
        for seed, record in enumerate(to_records(cycle.episodes)):
            np.testing.assert_allclose(record["action"][:, 0], UNIT * played[number], atol=1e-6)
            starts[seed] += [tuple(obs[0]) for obs in record["obs"]]
        total = cycle.ring.last
        assert (QUOTA * (number + 1) <= total).all()
        assert (total < QUOTA * (number + 1) + (HORIZON if ends else 1)).all()
        lengths = cycle.episodes.length
        assert ends == (lengths[lengths > 0].min() < HORIZON)
        if number >= 1:
            np.testing.assert_array_equal(cycle.metrics["rows"][0], total[:, None].repeat(3, 1))
            updates.append(cycle.metrics["step"][0, 1])
            assert len(np.unique(cycle.metrics["key"])) == SEEDS * 3
    assert len({*starts[0], *starts[1]}) == len(starts[0]) + len(starts[1]), "an episode twice"
    np.testing.assert_array_equal(np.concatenate(updates), np.arange(15))
    assert cycles[-1].state.agent.tolist() == [15, 15]
    assert program.traces == {"train": 1, "insert": 1}
    assert_equal(replayed(program, cycles, 5).ring, learner.ring)


def test_a_seed_is_the_same_in_any_run(pools):
    workers = pools("Line", ends=True, noise=0.2)
    collect = CollectConfig(noise=0.3, random=0.2, capacity=200)
    records = []
    for first in (0, 1):
        program = program_of(counting_agent(3, 2, 2), workers, 3, collect=collect, first_seed=first)
        _, cycles = train_cycles(program, program.init(first, SEEDS), range(3))
        records.append([to_records(cycle.episodes) for cycle in cycles])
    for (_, second), (first, _) in zip(*records, strict=True):
        assert_equal(first, second)


def test_noise_is_that_of_the_updates_of_the_policy_that_plays(pools):
    """Random in the warm-up. The policies of the next two cycles have 0 updates, then 20, 40: of
    these only the last has more than `late_updates`."""
    collect = CollectConfig(
        noise=1.0, late_noise=0.05, late_updates=20, random=0.0, hold=1, warmup_random=True,
        store_unclipped=True, capacity=200,
    )  # fmt: skip
    still = counting_agent(2, 0, 1)._replace(update=lambda state, ring, key, step: (state, {}))
    workers = pools("Walk", prize=0.5)
    program = program_of(still, workers, 5, 20, collect=collect, envs=3)

    _, cycles = train_cycles(program, program.init(0, SEEDS), range(5))
    whole = [cycle.episodes.action.ravel() for cycle in cycles]
    stds = [x[x != 0].std() for x in whole]  # zeros pad the shorter episodes
    np.testing.assert_allclose(stds, [3**-0.5, 1, 1, 1, 0.05], rtol=0.3)
    assert abs(whole[0]).max() <= 1
    assert abs(np.concatenate(whole[1:4])).max() > 1, "clipped before they are stored"


def test_a_resumed_cycle_is_played_with_the_same_policy_and_noise(pools):
    """A stop loses the episodes that were played ahead; a resumed run plays the same again."""
    collect = CollectConfig(
        noise=0.6, late_noise=0.05, late_updates=4, random=0, hold=1, capacity=200
    )
    workers = pools("Line", ends=True, noise=0.2)
    program = program_of(counting_agent(3, 2, 2), workers, 6, collect=collect)
    _, cycles = train_cycles(program, program.init(0, SEEDS), range(6))
    for number in (3, 4, 5):
        program.close()  # the episodes that were played ahead are lost
        _, (again,) = train_cycles(program, replayed(program, cycles[:number]), [number])
        assert_equal(again, cycles[number])


@pytest.mark.parametrize(("peak", "confirm"), [(6, 0), (100, 2)])
def test_the_policy_with_the_best_score_is_kept_and_evaluated(pools, peak, confirm):
    """Every score is that of the policy which played the newest cycle, one cycle behind."""
    workers = pools("Walk", prize=0.5)
    agent = counting_agent(2, 0, 1, peak)
    program = program_of(agent, workers, 8, confirm_cycles=confirm)
    played, bests = expected_run(8, 1, 3, peak, confirm, ahead=True)
    learner, cycles = train_cycles(program, program.init(0, SEEDS), range(8))
    for number, cycle in enumerate(cycles):
        for actions in first_actions(cycle.episodes):
            np.testing.assert_allclose(actions, UNIT * played[number], atol=1e-6)
    assert kept_policies(cycles) == bests
    assert len(set(bests)) >= 2
    assert bests[-1] != played[-1]

    policy = jax.tree.map(np.asarray, agent.policy(jnp.asarray(float(bests[-1]))))
    env = make_env(workers.task)
    alone = [play(workers.task, env, policy, Job(0, 0, EVAL, i)).reward.sum() for i in range(4)]
    returns = program.evaluate(learner.state, EVAL, 4)["eval/return"]
    np.testing.assert_allclose(returns, [np.mean(alone)] * SEEDS, rtol=1e-5)


def test_scores_of_cut_episodes_do_not_count(pools):
    """The best policy would be the first one, but it plays no more when episodes are whole."""
    cuts = {"episode_steps": 4, "late_episode_steps": 7, "late_steps": 3 * QUOTA}
    program = program_of(counting_agent(3, 2, 2, peak=0), pools("Line", ends=False), 6, **cuts)
    played, bests = expected_run(6, 1, 3, peak=0, ahead=True, first_counted=3)
    _, cycles = train_cycles(program, program.init(0, SEEDS), range(6))
    lengths = [cycle.episodes.length for cycle in cycles]
    assert [{*length[length > 0].tolist()} for length in lengths] == [{4}] * 3 + [{7}] * 3
    assert not any(cycle.episodes.terminated.any() for cycle in cycles), "a cut is no end"
    assert kept_policies(cycles) == bests == [None] * 3 + [3] * 3
    assert played[2] == 0


def test_an_on_policy_agent_learns_once_a_cycle_from_its_own_episodes(pools):
    workers = pools("Walk", prize=0.5)
    agent = counting_agent(2, 0, 1)
    program = program_of(agent, workers, 4, updates=1, on_policy=True)
    learner, cycles = train_cycles(program, program.init(0, SEEDS), range(4))
    for number, (episodes, metrics, _, ring) in enumerate(cycles):
        for actions in first_actions(episodes):
            np.testing.assert_allclose(actions, UNIT * max(number - 1, 0), atol=1e-6)
        if number >= 1:
            np.testing.assert_array_equal(metrics["step"], np.full((1, SEEDS, 1), number - 1))
            np.testing.assert_array_equal(metrics["rows"][0, :, 0], ring.last)
    assert cycles[-1].state.agent.tolist() == [3, 3]
    # Gone on with from a log, it plays and learns the same.
    _, (again,) = train_cycles(program, replayed(program, cycles[:3]), [3])
    assert_equal(again, cycles[3])
    # A Gaussian policy is evaluated by its mean.
    gaussian = counting_agent(2, 0, 1, log_std=jnp.zeros(1))
    other = program_of(gaussian, workers, 4, updates=1, on_policy=True)
    returns = [p.evaluate(learner.state, EVAL, 3)["eval/return"] for p in (program, other)]
    np.testing.assert_array_equal(*returns)


def test_a_cycle_may_be_shorter_than_an_episode(pools):
    """Steps are owed and paid in whole episodes of 10; a cycle of 4 without one learns only, and
    its score, of episodes of another policy, decides nothing."""
    agent = counting_agent(3, 2, 2, peak=0)
    program = program_of(agent, pools("Line", ends=False), 8, updates=1, quota=4)
    learner = program.init(0, SEEDS)
    total, lengths, bests = 0, [], []
    for cycle in range(8):
        learner, episodes, metrics = program.train(learner, jnp.asarray(cycle))
        if episodes is None:
            assert "collect/success_ever" not in metrics
        else:
            np.testing.assert_array_equal(episodes.length, [[10]] * SEEDS)
            total += 10
        lengths.append(0 if episodes is None else 10)
        assert 0 <= total - 4 * (cycle + 1) < 10
        bests.append(learner.state.best.score.tolist())
    assert lengths == [10, 0, 10, 0, 0, 10, 0, 10]  # where 4, 12, 24 and 32 steps are owed
    assert learner.state.agent.tolist() == [7, 7], "an update a cycle after the warm-up"
    for cycle, length in enumerate(lengths):
        if cycle and not length:
            assert bests[cycle] == bests[cycle - 1]
