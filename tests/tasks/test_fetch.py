import itertools
import math
from typing import Any

import gymnasium
import gymnasium_robotics
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import uvd.tasks.fetch as fetch
from uvd.core.errors import UserError
from uvd.tasks.noise import code_noise, paper_noise

gymnasium.register_envs(gymnasium_robotics)

TASKS = ["Push", "Slide"]
PAPER = ["FetchPush-v4", "FetchPushSparse-v0", "FetchSlide-v4", "FetchSlideNoise-v0"]


@pytest.fixture(scope="module", params=TASKS)
def pair(request) -> Any:
    """The upstream environment and ours."""
    theirs = gymnasium.make(f"Fetch{request.param}-v4").unwrapped
    return theirs, make(f"Fetch{request.param}-v4", redraw=False)


def make(name, **settings) -> Any:
    return gymnasium.make(f"uvd/{name}", **settings).unwrapped


def same(one, two):
    """Two observations, to the last bit."""
    assert one.keys() == two.keys()
    for key in one:
        assert one[key].dtype == two[key].dtype == np.float64
        np.testing.assert_array_equal(one[key], two[key])


def replay(theirs, ours, seed, act, steps=50):
    """Plays both and compares everything; the number of steps with the full model, and the end."""
    obs, _ = theirs.reset(seed=seed)
    same(obs, ours.reset(seed=seed)[0])
    near = 0
    for t in range(steps):
        action = np.asarray(act(t, obs), np.float32)
        obs, reward, terminated, truncated, info = theirs.step(action)
        twin, *rest = ours.step(action)
        same(obs, twin)
        assert rest == [reward, terminated, truncated, info]
        assert type(rest[0]) is type(reward)
        near += not ours._clear
    return near, obs


def test_random_play_is_upstreams_to_the_last_bit(pair):
    rng = np.random.default_rng(0)
    near = sum(replay(*pair, seed, lambda t, obs: rng.uniform(-1, 1, 4))[0] for seed in range(8))
    assert near < 0.2 * 400  # or it would not be fast


def test_playing_with_the_object_is_upstreams_to_the_last_bit(pair):
    rng = np.random.default_rng(1)
    moved = 0
    for seed in range(6):
        start = pair[1].reset(seed=seed)[0]["achieved_goal"]

        def towards_the_object(t, obs):
            way = obs["observation"][3:6] - obs["observation"][:3]
            return np.append(10 * way + rng.normal(0, 0.3, 3), 1.0).clip(-1, 1)

        _, obs = replay(*pair, seed, towards_the_object)
        moved += np.linalg.norm(obs["achieved_goal"] - start) > 0.05
    assert moved >= 4


def test_driving_into_every_corner_is_upstreams_to_the_last_bit(pair):
    ways = list(itertools.product((-1, 0, 1), repeat=3))
    if pair[1].setup.model == "slide.xml":  # the same robot
        ways = ways[::4]
    near = [replay(*pair, 3, lambda t, obs, way=way: (*way, 0), steps=35)[0] for way in ways]
    # Both models were needed, within one episode too.
    assert min(near) == 0
    assert max(near) > 25
    assert any(0 < n < 35 for n in near)


def test_links_that_touch_need_the_full_model(pair):
    """Back and up, the arm meets the head: the light model alone goes through it."""
    theirs, ours = pair
    holds, ours._clearance.holds = ours._clearance.holds, lambda rows: True
    try:
        with pytest.raises(AssertionError):
            replay(theirs, ours, 0, lambda t, obs: (-1, 0, 1, 0), steps=20)
    finally:
        ours._clearance.holds = holds
    near, _ = replay(theirs, ours, 0, lambda t, obs: (-1, 0, 1, 0), steps=20)
    assert near > 0


def test_a_touch_within_a_step_is_detected():
    """The clearance looks at every substep, not only at where a step ends."""
    env = make("FetchPush-v4")
    env.reset(seed=0)
    env.step(np.zeros(4, np.float32))
    clearance, rows = env._clearance, env._rows.copy()
    assert clearance.holds(rows)
    for column in np.flatnonzero(np.isfinite(clearance.low)):
        bad = rows.copy()
        bad[7, column] = clearance.low[column]
        assert not clearance.holds(bad)
    bad = rows.copy()
    bad[3, clearance.lift], bad[4, clearance.pan] = -1.0, 0.5
    assert not clearance.holds(bad)


def test_the_light_model_has_the_full_ones_masses_and_joints(pair):
    full, light = pair[1]._full, pair[1]._model
    assert full.nq == light.nq == 22
    for body in range(light.nbody):
        name = light.body(body).name
        if name != "robot0:mocap":  # it is put, not moved by forces
            assert light.body(name).mass == full.body(name).mass
            np.testing.assert_array_equal(light.body(name).inertia, full.body(name).inertia)
    np.testing.assert_array_equal(full.dof_damping, light.dof_damping)
    np.testing.assert_array_equal(full.jnt_range, light.jnt_range)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_beyond_their_space_are_clipped_as_upstream(pair, dtype):
    theirs, ours = pair
    theirs.reset(seed=5), ours.reset(seed=5)
    for action in np.random.default_rng(2).uniform(-3, 3, (5, 4)).astype(dtype):
        before = action.copy()
        same(theirs.step(action)[0], ours.step(action)[0])
        np.testing.assert_array_equal(action, before)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        ours.step(np.zeros(3))


def test_resets_without_a_seed_go_on_with_the_same_stream(pair):
    theirs, ours = pair
    same(theirs.reset(seed=9)[0], ours.reset(seed=9)[0])
    for _ in range(5):
        same(theirs.reset()[0], ours.reset()[0])


@pytest.mark.parametrize("reward_type", ["sparse", "dense"])
@pytest.mark.parametrize("shape", [(3,), (7, 3), (2, 5, 3)])
def test_rewards_of_batches_are_upstreams(reward_type, shape):
    theirs = gymnasium.make("FetchPush-v4", reward_type=reward_type).unwrapped
    ours = make("FetchPush-v4", reward_type=reward_type)
    rng = np.random.default_rng(0)
    achieved = rng.normal(size=shape)
    desired = achieved + rng.normal(0, 0.03, shape)
    expected = theirs.compute_reward(achieved, desired, {})
    got = ours.compute_reward(achieved, desired, {})
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype


@pytest.mark.filterwarnings("ignore:.*infinity")  # the bounds are upstream's
@pytest.mark.parametrize("name", [*PAPER, "FetchSlideNoiseCode-v0"])
def test_gymnasiums_checker(name):
    check_env(make(name), skip_render_check=True)


@pytest.mark.parametrize("name", PAPER)
def test_time_runs_out_and_nothing_terminates(name):
    env = gymnasium.make(f"uvd/{name}")
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


@pytest.mark.parametrize("radius", [0.05, 0.005])
def test_success_is_within_the_radius(radius):
    env = make("FetchPush-v4" if radius == 0.05 else "FetchPushSparse-v0")
    assert env.distance_threshold == radius
    obs, _ = env.reset(seed=0)
    for factor, success in [(0.9, True), (1.1, False)]:
        env.goal = obs["achieved_goal"] + (factor * radius, 0.0, 0.0)
        _, reward, _, _, info = env.step(np.zeros(4, np.float32))
        assert info["is_success"] == success
        assert reward == (0.0 if success else -1.0)


def test_starts_that_are_successes_are_redrawn():
    plain, redrawn = make("FetchPush-v4", redraw=False), make("FetchPush-v4")
    assert redrawn.redraw
    changed = 0
    for seed in range(60):
        old, new = plain.reset(seed=seed)[0], redrawn.reset(seed=seed)[0]
        distance = np.linalg.norm(old["achieved_goal"] - old["desired_goal"])
        assert np.linalg.norm(new["achieved_goal"] - new["desired_goal"]) >= 0.05
        if distance >= 0.05:
            same(old, new)
        else:
            changed += 1
            assert not np.array_equal(old["desired_goal"], new["desired_goal"])
    assert changed > 0


@pytest.mark.parametrize(
    ("name", "sigma"),
    [("FetchSlideNoise-v0", paper_noise), ("FetchSlideNoiseCode-v0", code_noise)],
)
def test_noise_is_drawn_from_the_environments_generator(name, sigma):
    noisy, plain = make(name, redraw=False), make("FetchSlide-v4", redraw=False)
    noisy.reset(seed=4), plain.reset(seed=4)
    stream, drawn = np.random.default_rng(0), []
    stream.bit_generator.state = noisy.np_random.bit_generator.state
    for action in np.random.default_rng(1).uniform(-1, 1, (10, 4)).astype(np.float32):
        drawn.append(stream.standard_normal(4))
        noisy_action = np.clip(action + sigma(action) * drawn[-1], -1, 1)
        same(noisy.step(action)[0], plain.step(noisy_action)[0])


def test_noise_has_the_papers_standard_deviation(monkeypatch):
    env = make("FetchSlideNoise-v0")
    env.reset(seed=0)
    monkeypatch.setattr(env, "_simulate", lambda: None)
    action, moves = np.array([0.8, -0.5, 0.0, -1.0], np.float32), []
    for _ in range(4000):
        hand = env._hand[0].copy()
        env.step(action)
        moves.append((env._mocap[0] - hand) / 0.05)
    sigma = 0.3**2 / (2 * math.e)
    np.testing.assert_allclose(np.mean(moves, 0), action[:3], atol=4 * sigma / 4000**0.5)
    np.testing.assert_allclose(np.std(moves, 0), sigma, rtol=0.05)


@pytest.mark.parametrize("version", ["2.3.7", "3.2.7", "3.3.5", "3.12.0", "4.0.0"])
def test_an_untried_mujoco_is_refused(version, monkeypatch):
    monkeypatch.setattr(mujoco, "__version__", version)
    with pytest.raises(UserError, match=r"mujoco>=3\.3\.6,<3\.12"):
        make("FetchPush-v4")


@pytest.mark.parametrize(
    ("setting", "nearest"),
    [({"task": "pish"}, "push"), ({"noise": "papre"}, "paper"), ({"reward_type": "x"}, "sparse")],
)
def test_unknown_settings_name_the_nearest(setting, nearest):
    with pytest.raises(UserError, match=nearest):
        fetch.FetchEnv(**setting)


def test_a_picture_of_the_scene():
    env = make("FetchPush-v4", render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    try:
        picture = env.render()
    except UserError:
        pytest.skip("neither EGL nor OSMesa")
    assert picture.shape == (480, 480, 3)
    assert picture.dtype == np.uint8
    red = (picture[..., 0] > 150) & (picture[..., 1:].max(-1) < 80)
    assert red.any()  # the goal
    same(env._observe(), obs)
    env.close()


def test_where_nothing_can_draw_one_line_says_what_to_do(monkeypatch):
    def fails(*args):
        raise RuntimeError("no context")

    monkeypatch.setattr(mujoco, "Renderer", fails)
    env = make("FetchPush-v4", render_mode="rgb_array")
    env.reset(seed=0)
    with pytest.raises(UserError, match="MUJOCO_GL"):
        env.render()
    assert make("FetchPush-v4").render() is None
