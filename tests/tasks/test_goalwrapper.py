"""Goals for an environment that has none."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

import uvd
from uvd.tasks.env import EnvTask


def make_env(**settings):
    env = gym.make("Pendulum-v1", **settings)
    return uvd.GoalWrapper(
        env, lambda obs: obs[:2], Box(np.float32([-1, -1]), np.float32([1, 0.5])), 0.3
    )


def test_goals_come_from_the_box_and_repeat_for_a_seed() -> None:
    env = make_env()
    goals = np.array([env.reset(seed=k)[0]["desired_goal"] for k in range(200)])
    assert (goals >= -1).all()
    assert (goals <= [1, 0.5]).all()
    assert goals.min(0).max() < -0.9
    np.testing.assert_allclose(goals.max(0), [1, 0.5], atol=0.1)
    np.testing.assert_array_equal(env.reset(seed=3)[0]["desired_goal"], goals[3])
    assert not np.array_equal(env.reset()[0]["desired_goal"], goals[3]), "a new goal each episode"


def test_steps_are_those_of_the_environment_and_rewards_those_of_the_goal() -> None:
    env, plain = make_env(), gym.make("Pendulum-v1")
    first, _ = env.reset(seed=0)
    np.testing.assert_array_equal(first["observation"], plain.reset(seed=0)[0])
    rewards = []
    for k in range(200):
        action = np.array([2.0 if k % 20 < 10 else -2.0], np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        after, _, _, expected, _ = plain.step(action)
        np.testing.assert_array_equal(obs["observation"], after)
        np.testing.assert_array_equal(obs["achieved_goal"], after[:2].astype(np.float64))
        np.testing.assert_array_equal(obs["desired_goal"], first["desired_goal"])
        near = np.hypot(*(obs["achieved_goal"] - obs["desired_goal"])) <= 0.3
        assert (reward, info["is_success"]) == (0.0 if near else -1.0, near)
        assert (terminated, truncated) == (False, expected)
        rewards.append(reward)
    pairs = np.zeros((3, 2)), np.array([[0.2, 0.2], [0.3, 0.0], [0.3, 0.1]])
    np.testing.assert_array_equal(env.compute_reward(*pairs, {}), [0, 0, -1])


def test_uvd_accepts_it_as_a_task(monkeypatch) -> None:
    from uvd.tasks.find import find_task

    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    gym.register("Swing-v0", "test_goalwrapper:make_env", max_episode_steps=50)
    task = find_task("Swing-v0")
    assert isinstance(task, EnvTask)
    assert (task.obs_dim, task.action_dim, task.goal_dim, task.horizon) == (3, 1, 2, 50)
    assert task.achieved_in_obs
    assert task.reward.radius == 0.3
