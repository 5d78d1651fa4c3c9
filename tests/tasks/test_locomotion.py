"""The locomotion tasks: Gymnasium's without the entries that hold the velocity."""

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import uvd.tasks.locomotion  # noqa: F401  registers the tasks
from uvd.tasks.find import find_task

CHEETAH = "HalfCheetahNonExploitable-v0"
HUMANOID = "HumanoidNonExploitable-v0"
TERMINATING = "HumanoidNonExploitableTerminating-v0"
PRIVILEGED = ("HalfCheetahNonExploitablePrivileged-v0", "HumanoidNonExploitablePrivileged-v0")
# Ours, upstream's with its settings, the entries that upstream's observation has first, and which
# of those are hidden.
PAIRS = {
    CHEETAH: ("HalfCheetah-v5", {}, 17, [8]),
    HUMANOID: ("Humanoid-v5", {"terminate_when_unhealthy": False}, 45, [22, 23]),
    TERMINATING: ("Humanoid-v5", {}, 45, [22, 23]),
    PRIVILEGED[0]: ("HalfCheetah-v5", {}, 17, [8]),
    PRIVILEGED[1]: ("Humanoid-v5", {}, 45, [22, 23]),
}


def same_info(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_every_step_is_upstreams_but_for_the_hidden_entries(name: str, scale: float) -> None:
    upstream, settings, size, hidden = PAIRS[name]
    theirs, ours = gymnasium.make(upstream, **settings), gymnasium.make(name)
    assert ours.action_space == theirs.action_space
    ours.action_space.seed(7)
    for seed in (0, 1, None, None):  # without a seed the stream goes on
        obs, info = theirs.reset(seed=seed)
        twin, twin_info = ours.reset(seed=seed)
        same_info(info, twin_info)
        for _ in range(60):
            expected = [x for i, x in enumerate(obs[:size]) if i not in hidden]
            expected += [obs[i] for i in hidden] if name in PRIVILEGED else []
            np.testing.assert_array_equal(twin, expected)
            assert twin.dtype == obs.dtype == np.float64
            action = scale * ours.action_space.sample()
            obs, *rest, info = theirs.step(action)
            twin, *twin_rest, twin_info = ours.step(action)
            assert rest == twin_rest
            same_info(info, twin_info)
            if rest[1] or rest[2]:
                break


@pytest.mark.parametrize(("name", "size"), [(CHEETAH, 16), (HUMANOID, 43), (TERMINATING, 43)])
def test_spaces(name: str, size: int) -> None:
    env: Any = gymnasium.make(name).unwrapped
    assert env.observation_space.shape == env.reset(seed=0)[0].shape == (size,)
    described = env.observation_structure
    assert described["qpos"] + described["qvel"] == size


@pytest.mark.parametrize(
    ("name", "privileged", "others"), [(PRIVILEGED[0], 1, 16), (PRIVILEGED[1], 2, 43)]
)
def test_privileged_numbers_are_counted(name: str, privileged: int, others: int) -> None:
    task = find_task(name)
    assert (task.privileged_dim, task.obs_dim) == (privileged, others + privileged)


@pytest.mark.parametrize("name", [n for n in PAIRS if n not in PRIVILEGED])
def test_the_observation_is_blind_to_place_and_speed_in_the_plane(name: str) -> None:
    env: Any = gymnasium.make(name).unwrapped
    before, _ = env.reset(seed=0)
    plane = 1 if name == CHEETAH else 2
    qpos, qvel = env.data.qpos.copy(), env.data.qvel.copy()
    qpos[:plane] += 3.0
    qvel[:plane] += 5.0
    env.set_state(qpos, qvel)
    np.testing.assert_array_equal(env._get_obs(), before)
    for x in (qpos, qvel):  # and to nothing else
        for i in range(plane, len(x)):
            x[i] += 0.01
            env.set_state(qpos, qvel)
            assert (env._get_obs() != before).any()
            x[i] -= 0.01


def test_a_fall_costs_the_bonus_and_ends_the_episode_only_if_asked() -> None:
    ours, ends = gymnasium.make(HUMANOID), gymnasium.make(HUMANOID, terminate=True)
    action = np.zeros(17, np.float32)
    ours.reset(seed=0), ends.reset(seed=0)
    bonus, ended = [], []
    for _ in range(100):
        _, _, terminated, _, info = ours.step(action)
        assert not terminated
        bonus.append(info["reward_survive"])
        if not any(ended):
            ended.append(ends.step(action)[2])
    assert bonus[: len(ended)] == [5.0] * (len(ended) - 1) + [0.0]
    assert ended[-1]
    assert bonus[-1] == 0.0


@pytest.mark.parametrize("name", PAIRS)
def test_time_runs_out(name: str) -> None:
    assert gymnasium.spec(name).max_episode_steps == find_task(name).horizon == 1000


@pytest.mark.filterwarnings("ignore:.*infinity")  # the bounds are upstream's
@pytest.mark.parametrize("name", PAIRS)
def test_gymnasiums_checker(name: str) -> None:
    check_env(gymnasium.make(name).unwrapped, skip_render_check=True)


def test_specs_and_environments_can_be_copied() -> None:
    spec = pickle.loads(pickle.dumps(gymnasium.spec(TERMINATING)))
    assert gymnasium.make(spec).observation_space.shape == (43,)
    env: Any = gymnasium.make(HUMANOID, terminate=True, healthy_reward=2.0).unwrapped
    twin = copy.deepcopy(env)
    assert (twin._terminate_when_unhealthy, twin.healthy_reward) == (True, 2.0)
    np.testing.assert_array_equal(env.reset(seed=3)[0], twin.reset(seed=3)[0])


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (CHEETAH, "exclude_current_positions_from_observation"),
        (HUMANOID, "include_cvel_in_observation"),
    ],
)
def test_what_is_hidden_cannot_be_switched_on(name: str, setting: str) -> None:
    with pytest.raises(TypeError, match=setting):
        gymnasium.make(name, **{setting: True})


def test_vectors_of_environments() -> None:
    keywords = {"context": "spawn"}
    envs = gymnasium.make_vec(
        CHEETAH, num_envs=2, vectorization_mode="async", vector_kwargs=keywords
    )
    try:
        obs, _ = envs.reset(seed=[4, 5])
        single = gymnasium.make(CHEETAH)
        np.testing.assert_array_equal(obs[1], single.reset(seed=5)[0])
        actions = np.full((2, 6), 0.3, np.float32)
        np.testing.assert_array_equal(envs.step(actions)[0][1], single.step(actions[1])[0])
    finally:
        envs.close()


def r_squared(features: np.ndarray, target: np.ndarray) -> float:
    """Of a linear regression, on the data themselves."""
    x = np.column_stack([features, np.ones(len(target))])
    rest = target - x @ np.linalg.lstsq(x, target, rcond=None)[0]
    return 1 - rest.var() / target.var()


@pytest.mark.parametrize("name", [CHEETAH, HUMANOID])
def test_no_single_entry_holds_the_forward_speed(name: str) -> None:
    """In random play; bench/leaks.py measures the same with more of it (docs/locomotion.md)."""
    env: Any = gymnasium.make(name)
    env.action_space.seed(0)
    obs, speed = [], []
    for seed in range(12):
        env.reset(seed=seed)
        for _ in range(150):
            obs.append(env.step(env.action_space.sample())[0])
            speed.append(env.unwrapped.data.qvel[0])
    features, target = np.array(obs), np.array(speed)
    alone = [r_squared(x[:, None], target) for x in features.T]
    print({i: round(float(r), 3) for i, r in enumerate(alone)})  # shown where it fails
    assert max(alone) < 0.5  # measured: at most 0.40
    assert r_squared(features, target) < 0.9  # together they explain much, but not all
    hidden = np.column_stack([features, target])  # upstream's entries explain everything
    assert r_squared(hidden, target) > 0.999


@pytest.mark.parametrize("name", [CHEETAH, HUMANOID])
def test_the_camera_follows_the_body(name: str) -> None:
    def camera(**settings: Any) -> tuple[Any, Any]:
        env: Any = gymnasium.make(name, **settings).unwrapped
        return env.camera_name, env.camera_id

    assert camera() == ("track", None)
    assert camera(camera_id=-1) == (None, -1)
