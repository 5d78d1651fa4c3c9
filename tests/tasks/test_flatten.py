"""Choices, switches and parts become one vector, in play, in goals and in demonstrations."""

import numpy as np

from uvd.collect.exploration import RANDOM_ACTIONS
from uvd.collect.worker import TRAIN, Job, play
from uvd.tasks.env import batch_reward, make_env
from uvd.tasks.find import find_task


def episodes_of(name):
    task = find_task(name)
    env = make_env(task)
    return task, [play(task, env, None, Job(0, 0, TRAIN, i, RANDOM_ACTIONS)) for i in range(20)]


def test_an_observation_of_parts_is_one_vector():
    task, episodes = episodes_of("envs:Mixed-v0")
    assert (task.obs_dim, task.goal_dim) == (5, 0)
    obs = np.concatenate([e.obs for e in episodes])
    np.testing.assert_array_equal(obs[:, 3], obs[:, 0] > 0)
    np.testing.assert_array_equal(obs[:, 2], 1 - obs[:, 3])
    np.testing.assert_array_equal(obs[:, 4], obs[:, 1] > 0)
    assert 0 < obs[:, 3].mean() < 1


def test_goals_of_choices_are_vectors_with_the_environments_rewards():
    task, episodes = episodes_of("envs:Rooms-v0")
    assert (task.obs_dim, task.goal_dim) == (5, 4)
    assert task.achieved_in_obs
    assert (task.reward.low, task.reward.high, task.reward.sparse) == (-1, 0, True)
    achieved, goal, success = (
        np.concatenate(x)
        for x in zip(
            *((e.achieved[1:], np.tile(e.goal, (e.length, 1)), e.success) for e in episodes)
        )
    )
    assert 0 < success.mean() < 1
    np.testing.assert_array_equal(success, (achieved == goal).all(1))
    np.testing.assert_array_equal(batch_reward(make_env(task), achieved, goal), success - 1.0)
    np.testing.assert_array_equal(task.success(achieved, goal), success)
