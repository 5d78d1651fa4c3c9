"""From an id to a task, and the previous action in observations."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.tasks import TASKS, Task
from uvd.tasks.env import EnvTask
from uvd.tasks.find import RENAMED, current_id, find_task, with_previous_action


def test_ids_are_found_in_order():
    assert isinstance(find_task("PointPush-v0"), Task)
    assert find_task("FetchPush-v4").spec.id == "uvd/FetchPush-v4"  # ours is the faster one
    gym.register("uvd/Twice-v0", "envs:Line", max_episode_steps=5)
    gym.register("Twice-v0", "envs:Line", max_episode_steps=9)
    try:
        assert find_task("Twice-v0").horizon == 5
    finally:
        del gym.registry["uvd/Twice-v0"], gym.registry["Twice-v0"]


@pytest.mark.parametrize("module", ["", "uvd.tasks.locomotion:"])
@pytest.mark.parametrize("old", RENAMED)
def test_an_old_id_finds_the_renamed_task_with_a_notice(old, module, capsys):
    current_id.cache_clear()
    task = find_task(module + old)
    assert task is find_task(module + RENAMED[old])
    assert task.id == module + RENAMED[old]
    assert task.privileged_dim > 0
    notice = capsys.readouterr().err
    assert notice == f"{old} is now called {RENAMED[old]}\n"
    assert not RENAMED.keys() & {*TASKS, *gym.registry}


def test_previous_action_of_a_built_in_task():
    plain = find_task("PointLoop-v0")
    task = with_previous_action(plain)
    state = task.reset(jax.random.key(0))
    np.testing.assert_array_equal(task.observe(state)[4:], [0, 0])
    action = jnp.array([0.3, -0.7])
    after = task.step(state, action, jax.random.key(1))
    np.testing.assert_array_equal(task.observe(after)[4:], action)
    plain_after = plain.step(state[0], action, jax.random.key(1))
    np.testing.assert_array_equal(task.observe(after)[:4], plain.observe(plain_after))
    assert task.reward(state, action, after) == plain.reward(state[0], action, plain_after)
    assert task.obs_dim == plain.obs_dim + 2 == 6


def test_previous_action_of_an_environment():
    plain = find_task("envs:Walk-v0")
    task = with_previous_action(plain)
    assert isinstance(task, EnvTask)
    assert task is with_previous_action(plain)
    assert (plain.obs_dim, task.obs_dim) == (2, 3)
    obs, action = np.array([0.1, 0.2]), np.float32([0.5])
    np.testing.assert_array_equal(plain.split(obs, action)[0], np.float32([0.1, 0.2]))
    np.testing.assert_array_equal(task.split(obs, action)[0], np.float32([0.1, 0.2, 0.5]))
