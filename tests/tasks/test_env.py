"""Which environments are accepted, which are refused and why, and what their rewards are."""

import subprocess
import sys

import numpy as np
import pytest

from small_tasks import goal_pairs
from uvd.core.errors import UserError
from uvd.tasks.env import batch_reward, make_env
from uvd.tasks.find import find_task


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FetchPsh-v4", "unknown task 'FetchPsh-v4'; nearest: FetchPush-v4"),
        ("PointPsh-v0", "nearest: PointPush-v0"),
        ("CartPole-v1", r"CartPole-v1 cannot be trained on: its actions are Discrete\(2\)"),
        ("no_such_module:Line-v0", "cannot import 'no_such_module'"),
        ("envs:NoGoal-v0", "NoGoal-v0 does not play: TypeError"),
        ("envs:Wall-v0", r"its observation is a box of shape \(2, 2\), not a box of one dim"),
        ("envs:Torn-v0", "gives observations of other shapes than its observation_space says"),
        ("envs:Priceless-v0", "gives rewards that are not finite"),
        ("envs:Keyless-v0", "no 'desired_goal'"),
        ("envs:Picture-v0", r"its observation is a box of shape \(8, 8, 3\)"),
        ("envs:Buttons-v0", r"its actions are Discrete\(4\), not a box"),
        ("envs:Unbounded-v0", "its actions are unbounded"),
        ("envs:Whole-v0", "its actions are of int64, not real numbers"),
        ("envs:Foggy-v0", "Foggy-v0: its observation is not finite"),
        ("envs:Fickle-v0", "changes the desired goal within an episode"),
        ("envs:Rewardless-v0", "it has no compute_reward"),
        ("envs:Single-v0", "compute_reward fails on batches"),
        ("envs:Silent-v0", "does not say what success is"),
        ("envs:Endless-v0", "no time limit: register it with max_episode_steps"),
    ],
)
def test_unsuitable_environments_are_refused_in_one_line(name, message):
    with pytest.raises(UserError, match=message) as caught:
        find_task(name)
    assert "\n" not in str(caught.value)


def test_settings_are_the_environments_own():
    assert find_task("envs:Endless-v0", {"max_episode_steps": "7"}).horizon == 7
    with pytest.raises(UserError, match="unexpected keyword argument 'colour'"):
        find_task("envs:Line-v0", {"colour": "red"})
    task = find_task("envs:Line-v0", {"kind": "one", "low": "-3"})
    assert make_env(task).unwrapped.kind == "one"
    assert task.low.tolist() == [-3, -3]
    assert find_task("envs:Line-v0", {"low": "-3", "kind": "one"}) is task  # examined once


@pytest.mark.parametrize(
    ("name", "kind", "sparse", "radius", "distance"),
    [
        ("envs:Line-v0", "sparse", True, 0.25, False),
        ("envs:Line-v0", "one", True, 0.25, False),
        ("envs:Line-v0", "square", True, None, False),
        ("envs:Line-v0", "distance", False, None, True),
        ("envs:Line-v0", "dense", False, None, False),
        ("FetchReach-v4", "", True, 0.05, False),
        ("FetchReachDense-v4", "", False, 0.05, True),
        ("PointMaze_UMaze-v3", "", True, 0.45, False),
    ],
)
def test_rewards_are_recognised(name, kind, sparse, radius, distance):
    task = find_task(name, {"kind": kind} if kind else {})
    rule = task.reward
    assert (rule.sparse, rule.radius, rule.distance) == (sparse, radius, distance)
    achieved, goal = goal_pairs(task.goal_dim)
    rewards = batch_reward(make_env(task), achieved, goal)
    assert rule.low <= rewards.min()
    assert rewards.max() <= rule.high
    if sparse:
        assert (rule.low, rule.high) == (rewards.min(), rewards.max())
        assert 0 < (rewards == rule.high).mean() < 1
        np.testing.assert_array_equal(task.success(achieved, goal), rewards == rule.high)
    elif radius is None:
        with pytest.raises(UserError, match="success is unknown"):
            task.success(achieved[0], goal[0])


def test_success_in_an_episode_is_as_reported_or_follows_from_the_rewards():
    goal = np.float32([0.5, 0.0])
    achieved = goal + np.float32([[0, 0], [0.3, 0], [0.2, 0], [0.2, 0.2]])
    for kind, expected in [("sparse", [False, True, False]), ("square", [False, True, True])]:
        task = find_task("envs:Line-v0", {"kind": kind, "says": False})
        success = task.episode_success(achieved, goal, None)
        assert success.dtype == bool
        assert success.tolist() == expected
        reported = np.array([True, False, True])
        assert task.episode_success(achieved, goal, reported).tolist() == reported.tolist()


@pytest.mark.parametrize(("name", "in_obs"), [("envs:Line-v0", True), ("envs:Blind-v0", False)])
def test_an_achieved_goal_that_is_not_observed_is_appended(name, in_obs):
    task = find_task(name)
    assert task.achieved_in_obs == in_obs
    obs, _ = make_env(task).reset(seed=0)
    assert obs["observation"].shape == (task.obs_dim,) == (3 if in_obs else 5,)
    if not in_obs:
        np.testing.assert_array_equal(obs["observation"][3:], obs["achieved_goal"])


def test_actions_between_the_environments_bounds_and_one():
    task = find_task("envs:Line-v0", {"low": -3.0, "high": 0.5})
    actions = np.float32([[-1, -1], [0, 0], [1, 1]])
    own = task.env_action(actions)
    np.testing.assert_allclose(own[:, 0], [-3, -1.25, 0.5])
    np.testing.assert_allclose(task.unit_action(own), actions)
    np.testing.assert_array_equal(task.unit_action(np.float32([9, -9])), [1, -1])
    for name in ("envs:Line-v0", "PointPush-v0"):  # [-1, 1] already
        plain = find_task(name)
        assert plain.env_action(actions) is actions
        np.testing.assert_array_equal(plain.unit_action(2 * actions), actions)


def test_worker_processes_need_no_jax():
    modules = ", ".join(f"uvd.tasks.{m}" for m in ("env", "locomotion", "fetch"))
    code = f"import sys, {modules}; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
