import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import uvd.tasks.gym as task_envs
from uvd.tasks import TASKS, make_task

GOAL_TASKS = [name for name in TASKS if name != "PointLoop-v0"]
# Settings under which random play meets its goals now and then.
EASY: dict[str, dict[str, Any]] = {
    "CliffWalk-v0": {"rows": 3, "cols": 3},
    "PointReach-v0": {"radius": 0.6},
    "PointCliff-v0": {"radius": 1.4},
    "PointSlide-v0": {"radius": 0.6},
}


def make(name, **settings) -> Any:
    return gymnasium.make(name, **settings)


def play(env, seed, steps=50):
    """Observations, rewards and infos of one episode of random, mostly full-force actions."""
    actions = np.random.default_rng(seed).uniform(-3, 3, (steps, 2)).clip(-1, 1)
    obs, info = env.reset(seed=seed)
    observations, rewards, infos = [obs], [], [info]
    for action in actions.astype(np.float32):
        obs, reward, _, _, info = env.step(action)
        observations.append(obs)
        rewards.append(reward)
        infos.append(info)
    return {key: np.stack([o[key] for o in observations]) for key in obs}, np.array(rewards), infos


@pytest.mark.parametrize("name", TASKS)
def test_gymnasiums_checker(name):
    check_env(make(name).unwrapped)


@pytest.mark.parametrize("name", EASY)
def test_compute_reward_is_the_reward_of_real_steps(name):
    env = make(name, **EASY[name])
    episodes = [play(env, seed) for seed in range(20)]
    obs = {key: np.stack([o[key][1:] for o, _, _ in episodes]) for key in episodes[0][0]}
    rewards = np.stack([r for _, r, _ in episodes])
    assert set(np.unique(rewards)) == {-1.0, 0.0}

    # Batches of any shape, and stored wider than they were made.
    compute = env.unwrapped.compute_reward
    again = compute(obs["achieved_goal"], obs["desired_goal"], {})
    assert again.shape == rewards.shape
    np.testing.assert_array_equal(again, rewards)
    wide = compute(obs["achieved_goal"].astype(float), obs["desired_goal"].astype(float), {})
    np.testing.assert_array_equal(wide, rewards)
    assert compute(obs["achieved_goal"][0, 0], obs["desired_goal"][0, 0], {}) == rewards[0, 0]

    success = np.array([[i["is_success"] for i in infos[1:]] for _, _, infos in episodes])
    np.testing.assert_array_equal(success, rewards == 0)
    # In hindsight every achieved goal was achieved.
    assert (compute(obs["achieved_goal"], obs["achieved_goal"], {}) == 0).all()


@pytest.mark.parametrize("name", GOAL_TASKS)
def test_spaces_contain_the_observations(name):
    env = make(name)
    for seed in range(3):
        obs, _, _ = play(env, seed)
        for key, space in env.observation_space.items():
            assert obs[key].dtype == np.float32
            assert (np.abs(obs[key]) <= space.high).all()


@pytest.mark.parametrize("name", ["CliffWalk-v0", "PointCliff-v0", "PointSlideNoise-v0"])
def test_a_seed_fixes_the_episode_noise_included(name):
    env, twin = make(name), make(name)
    first, _, _ = play(env, 3)
    again, _, _ = play(twin, 3)
    np.testing.assert_equal(first, again)
    left = np.array([-1.0, 0.0], np.float32)  # away from every cliff, where all paths are alike

    def path(seed):
        env.reset(seed=seed)
        return np.stack([env.step(left)[0]["observation"] for _ in range(20)])

    assert not np.array_equal(path(1), path(2))
    np.testing.assert_array_equal(path(1), path(1))
    assert not np.array_equal(path(1), path(None))


@pytest.mark.parametrize("name", TASKS)
def test_time_runs_out_and_nothing_terminates(name):
    env = make(name)
    env.reset(seed=0)
    steps = env.spec.max_episode_steps
    assert steps == (50 if name in GOAL_TASKS else 100)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(steps)]
    assert ends == [(False, False)] * (steps - 1) + [(False, True)]


def test_making_by_the_modules_name_is_enough():
    code = (
        "import gymnasium; env = gymnasium.make('uvd.tasks.gym:PointPush-v0', radius=0.2);"
        "print(env.spec.id, env.unwrapped.task.radius)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PointPush-v0", "0.2"]


def test_settings_reach_the_task():
    still = np.zeros(2, np.float32)
    for noise, moves in [(0.0, False), (0.3, True)]:
        env = make("PointCliff-v0", noise=noise)
        obs, _ = env.reset(seed=0)
        after = env.step(still)[0]
        assert np.array_equal(obs["observation"], after["observation"]) is not moves


def test_actions_beyond_their_space_are_clipped():
    env = make("PointReach-v0", disable_env_checker=True)
    obs, _ = env.reset(seed=0)
    after = env.step(np.array([50.0, 0.0], np.float32))[0]
    assert after["observation"][0] - obs["observation"][0] <= 0.1 + 1e-6


def test_environments_of_the_same_task_are_compiled_once(monkeypatch):
    traced = []

    def maker(radius=0.1):
        task = make_task("PointReach-v0", radius=radius)

        def step(*arguments):
            traced.append(radius)
            return task.step(*arguments)

        return task._replace(step=step)

    monkeypatch.setitem(TASKS, "Traced-v0", maker)
    for radius in (0.1, 0.1, 0.2):
        env = task_envs.TaskEnv("Traced-v0", radius=radius)
        env.reset(seed=0)
        env.step(np.zeros(2, np.float32))
    assert traced == [0.1, 0.2]


@pytest.mark.parametrize("name", TASKS)
def test_the_picture_shows_the_scene(name):
    env = make(name, render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    assert picture.shape == (256, 256, 3)
    assert picture.dtype == np.uint8

    def shows(colour):
        return bool((picture == colour).all(-1).any())

    assert shows(task_envs._POINT)
    assert shows(task_envs._GOAL)
    assert shows(task_envs._PUCK) == ("Push" in name or "Slide" in name)
    assert shows(task_envs._PIT) == ("Cliff" in name)
    if name == "CliffWalk-v0":  # y is up: the cliff is at the picture's bottom, in the middle
        assert (picture[-1, 128] == task_envs._PIT).all()
        assert (picture[0, 128] == task_envs._WHITE).all()
