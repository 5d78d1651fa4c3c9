"""An episode as a worker plays it, here without a process: its rows are what happened."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from uvd.collect.exploration import RANDOM_ACTIONS, Exploration
from uvd.collect.worker import EVAL, PROBE, TRAIN, Job, play
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.tasks.env import make_env
from uvd.tasks.find import find_task, with_previous_action

HORIZON = 10


def make_policy(obs=3, goal=2, action=2, seed=0, log_std=None):
    rng = np.random.default_rng(seed)
    w = tuple(rng.standard_normal(s).astype(np.float32) for s in [(obs + goal, 8), (8, action)])
    sizes = [(obs, 0), (obs, 1), (goal, 0), (goal, 1)]
    norm = Norm(*(np.full(n, value, np.float32) for n, value in sizes))
    return Policy(MLP(w, (np.zeros(8, np.float32), np.zeros(action, np.float32))), norm, log_std)


def episodes_of(task, policy, jobs):
    env = make_env(task)
    return [play(task, env, policy, job) for job in jobs]


def train_jobs(n, how=Exploration(), max_steps=0):  # noqa: B008
    return [Job(0, 0, TRAIN, i, how, max_steps) for i in range(n)]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_are_what_happened():
    task = find_task("envs:Line-v0", {"ends": True, "low": -3.0, "high": 0.5})
    policy = make_policy()
    episodes = episodes_of(task, policy, train_jobs(30))
    lengths = {int(e.length) for e in episodes}
    assert max(lengths) == HORIZON
    assert min(lengths) < HORIZON
    for e in episodes:
        n = e.length
        assert e.obs.shape == (n + 1, 3)
        assert e.achieved.shape == (n + 1, 2)
        assert e.action.shape == (n, 2)
        np.testing.assert_array_equal(e.obs[:, :2], e.achieved)
        np.testing.assert_allclose(e.obs[:, 2], np.arange(n + 1) / 10, atol=1e-6)
        goal = np.repeat(e.goal[None], n, 0)
        np.testing.assert_allclose(e.action, act(policy, e.obs[:-1], goal), atol=1e-5)
        # The environment undoes the rescaling: a step is a fifth of the action, and some noise.
        np.testing.assert_allclose(np.diff(e.achieved, axis=0), 0.2 * e.action, atol=0.1)
        outside = abs(e.achieved).max(-1) > 1
        assert e.terminated == outside[-1]  # a time limit is no end
        assert not outside[:-1].any()
        distance = np.linalg.norm(e.achieved[1:] - e.goal, axis=-1)
        np.testing.assert_array_equal(e.success, distance <= 0.25)
        np.testing.assert_array_equal(e.reward, np.zeros(n))  # goals decide
    assert any(e.success.any() for e in episodes)


@pytest.mark.parametrize("kind", ["sparse", "square"])
def test_success_follows_from_rewards_where_it_is_not_reported(kind):
    task = find_task("envs:Line-v0", {"kind": kind, "says": False})
    episodes = episodes_of(task, make_policy(), train_jobs(20))
    assert any(e.success.any() for e in episodes)
    for e in episodes:
        difference = e.achieved[1:] - e.goal
        widest = abs(difference).max(-1)
        size = np.linalg.norm(difference, axis=-1) if kind == "sparse" else widest
        np.testing.assert_array_equal(e.success, size <= 0.25)


def test_an_episode_depends_on_its_job_alone():
    task, policy = find_task("envs:Line-v0"), make_policy()
    noisy = Exploration(0.2, 0.3, 3)
    jobs = [
        Job(0, 0, TRAIN, 0, noisy), Job(0, 1, TRAIN, 0, noisy), Job(0, 0, EVAL, 0, noisy),
        Job(0, 0, TRAIN, 1, noisy),
    ]  # fmt: skip
    first = episodes_of(task, policy, jobs)
    for a, b in zip(first, episodes_of(task, policy, jobs[::-1])[::-1], strict=True):
        assert_same(a, b)
    assert len({tuple(e.obs[0]) for e in first}) == len(jobs)
    assert len({tuple(e.action.ravel()) for e in first}) == len(jobs)


def test_an_episode_is_cut_after_so_many_steps_and_does_not_terminate():
    task = find_task("envs:Line-v0", {"ends": True})
    whole, cut = (episodes_of(task, make_policy(), train_jobs(20, max_steps=n)) for n in (0, 4))
    assert {int(e.length) for e in cut} == {4} | {int(e.length) for e in whole if e.length < 4}
    for a, b in zip(whole, cut):
        np.testing.assert_array_equal(b.obs, a.obs[: b.length + 1])
        assert b.terminated == (a.terminated and a.length == b.length)


def test_noisy_actions_are_stored_unclipped_and_played_clipped():
    """The environment refuses actions outside its bounds."""
    task = find_task("envs:Line-v0")
    how = Exploration(2.0, store_unclipped=True)
    for e in episodes_of(task, make_policy(), train_jobs(5, how)):
        assert (abs(e.action) > 1).any()
        moves = np.diff(e.achieved, axis=0)
        np.testing.assert_allclose(moves, 0.2 * np.clip(e.action, -1, 1), atol=0.1)


def test_without_a_policy_exploration_alone_acts():
    task = find_task("envs:Line-v0")
    jobs = [Job(0, 0, PROBE, i, RANDOM_ACTIONS) for i in range(40)]
    action = np.concatenate([e.action for e in episodes_of(task, None, jobs)])
    assert action.std(0) == pytest.approx(3**-0.5, rel=0.1)
    action = np.concatenate([e.action for e in episodes_of(task, None, train_jobs(5))])
    np.testing.assert_array_equal(action, np.zeros_like(action))


def test_a_gaussian_policy_draws_its_actions_and_explores_no_further():
    task = with_previous_action(find_task("envs:Walk-v0", {"low": -0.5, "high": 0.5}))
    policy = make_policy(3, 0, 1, log_std=np.log(np.float32([0.8])))
    episodes = episodes_of(task, policy, train_jobs(40, Exploration(0.9, 1.0, 5)))
    for e in episodes:
        clipped = np.clip(e.action, -1, 1)
        np.testing.assert_array_equal(e.obs[0, 2:], [0])
        np.testing.assert_array_equal(e.obs[1:, 2:], clipped)
        np.testing.assert_allclose(e.obs[1:, 1], clipped[:, 0], atol=1e-6)  # as the step had it
        np.testing.assert_allclose(e.reward, e.obs[1:, 0], atol=1e-6)  # Walk's own
        assert e.goal.shape == (0,)
        assert not e.success.any()
    obs, action = (np.concatenate(x) for x in zip(*((e.obs[:-1], e.action) for e in episodes)))
    mean = act(policy, obs, np.zeros((len(obs), 0), np.float32))
    assert (action - mean).std() == pytest.approx(0.8, rel=0.15)
    assert abs(action).max() > 1


def test_the_policy_reads_no_privileged_numbers():
    task, policy = find_task("envs:PrivilegedWalk-v0"), make_policy(2, 0, 1)
    (e,) = episodes_of(task, policy, train_jobs(1))
    assert e.obs.shape == (e.length + 1, 3)
    np.testing.assert_allclose(e.obs[1:, 2], np.cumsum(e.reward), rtol=1e-5)
    expected = act(policy, e.obs[:-1, :2], np.zeros((e.length, 0), np.float32))
    np.testing.assert_allclose(e.action, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [
        ("Line-v0", "Fickle-v0", "the desired goal changed within an episode"),
        ("Line-v0", "Foggy-v0", "an observation or a goal is not finite"),
        ("Walk-v0", "Priceless-v0", "a reward is not finite"),
    ],
)
def test_what_cannot_be_learned_from_is_an_error(name, broken, says):
    """An environment may break its promises later than in the steps that it is examined by."""
    task = replace(find_task(f"envs:{name}"), spec=gym.spec(broken))
    with pytest.raises(ValueError, match=says):
        episodes_of(task, None, train_jobs(1))
