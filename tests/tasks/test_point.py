"""The point tasks' physics by hand, and the success of hand-written controllers.

The controllers are the calibration: the best possible success is at least theirs.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd import tasks
from uvd.tasks.point import World

KEY = jax.random.key(0)
make_task = functools.cache(tasks.make_task)  # so that the tests share what is compiled


def world(point, puck=(0.0, 0.0), velocity=(0.0, 0.0), puck_velocity=(0.0, 0.0), goal=(0.9, 0.9)):
    return World(*(jnp.array(v) for v in (point, velocity, puck, puck_velocity, goal)))


def step(task, state, action, key=KEY):
    return jax.jit(task.step)(state, jnp.array(action), key)


@functools.cache
def starts(name):
    return jax.jit(jax.vmap(make_task(name).reset))(jax.random.split(KEY, 1000))


def test_a_push_moves_the_puck_along_the_line_of_centres_by_the_overlap():
    task = make_task("PointPush-v0")
    # The point ends at (-0.06, -0.08), 0.1 from the puck: 0.05 of the contact distance overlap.
    pushed = step(task, world((-0.16, -0.08)), (1.0, 0.0))
    np.testing.assert_allclose(pushed.point, [-0.06, -0.08], atol=1e-6)
    np.testing.assert_allclose(pushed.puck, [0.05 * 0.6, 0.05 * 0.8], atol=1e-5)
    # It stops where it is left.
    left = step(task, pushed, (-1.0, 0.0))
    np.testing.assert_array_equal(left.puck, pushed.puck)


def test_the_puck_does_not_move_without_contact():
    task = make_task("PointPush-v0")
    near = step(task, world((-0.26, 0.0)), (1.0, 0.0))  # 0.16 away, contact is at 0.15
    np.testing.assert_array_equal(near.puck, [0, 0])
    resting = world((-0.8, 0.0), puck=(-0.5, 0.0))
    still = step(make_task("PointSlide-v0"), resting, (1.0, 0.0))
    np.testing.assert_array_equal(still.puck, resting.puck)


def test_walls_hold_point_and_puck():
    task = make_task("PointPush-v0")
    pushed = step(task, world((0.9, 0.0), puck=(1.0, 0.0)), (1.0, 0.0))
    np.testing.assert_array_equal(pushed.puck, [1, 0])
    np.testing.assert_array_equal(pushed.point, [1, 0])


def test_inside_the_pit_nothing_moves():
    task = make_task("PointCliff-v0")
    for place in [(0.0, -0.5), (-0.59, -0.21), (0.59, -1.0)]:
        state = world(place)
        np.testing.assert_array_equal(step(task, state, (1.0, 1.0)).point, state.point)
        assert task.observe(state)[2] == 1
    for place in [(0.0, -0.19), (-0.61, -0.5), (0.61, -0.5)]:
        state = world(place)
        assert not np.array_equal(step(task, state, (0.0, 1.0)).point, state.point)
        assert task.observe(state)[2] == 0


def test_no_goal_is_near_the_pit():
    task = make_task("PointCliff-v0")
    shore = jnp.stack([jnp.full(100, 0.6 - 1e-6), jnp.linspace(-1, -0.2, 100)], -1)
    assert not task.success(shore, starts(task.id).goal[:, None]).any()


def test_noise_has_the_set_standard_deviation():
    state, action, n = world((0.0, 0.3)), jnp.array([0.2, -0.4]), 20_000
    for noise in [0.5, 0.1]:
        task = make_task("PointCliff-v0", noise=noise)
        moves = jax.jit(jax.vmap(task.step, (None, None, 0)))
        moved = moves(state, action, jax.random.split(KEY, n)).point - state.point
        np.testing.assert_allclose(moved.mean(0), 0.1 * action, atol=5 * 0.1 * noise / n**0.5)
        np.testing.assert_allclose(moved.std(0), 0.1 * noise, rtol=0.03)


def test_without_noise_no_action_means_no_move():
    state = world((-0.8, -0.5))
    still = step(make_task("PointCliff-v0", noise=0.0), state, (0.0, 0.0))
    np.testing.assert_array_equal(still.point, state.point)


def slide_alone(task, state, steps):
    """Pucks of the steps while the point stays away."""

    def go(state, key):
        state = task.step(state, jnp.array([-1.0, 0.0]), key)
        return state, state

    return jax.jit(lambda s: jax.lax.scan(go, s, jax.random.split(KEY, steps)))(state)[1]


def test_a_free_puck_slows_by_the_glide_factor_and_slides_v_over_one_minus_glide():
    task, speed = make_task("PointSlide-v0"), np.array([0.06, -0.03])
    path = slide_alone(task, world((-0.9, 0.0), puck=(-0.2, 0.3), puck_velocity=speed), 200)
    np.testing.assert_allclose(path.puck_velocity[:3], speed * 0.9 ** np.c_[1:4], rtol=1e-5)
    np.testing.assert_allclose(path.puck[0], [-0.2 + 0.06, 0.3 - 0.03], atol=1e-6)
    np.testing.assert_allclose(path.puck[-1], [-0.2 + 0.6, 0.3 - 0.3], atol=1e-5)


def test_the_wall_stops_the_puck():
    task = make_task("PointSlide-v0")
    path = slide_alone(task, world((-0.9, 0.0), puck=(0.5, 0.0), puck_velocity=(0.12, 0.0)), 60)
    assert float(path.puck[:, 0].max()) == 1
    np.testing.assert_array_equal(path.puck[-1], [1, 0])


def test_a_strike_gives_the_puck_the_points_speed_along_the_line_of_centres():
    task = make_task("PointSlide-v0")
    # At full throttle and at top speed already, the point moves 0.15 and is 0.05 from the puck.
    state = world((-0.7, 0.0), puck=(-0.5, 0.0), velocity=(0.15, 0.0))
    struck = step(task, state, (1.0, 0.0))
    np.testing.assert_allclose(struck.point, [-0.55, 0], atol=1e-6)
    np.testing.assert_allclose(struck.puck, [-0.55 + 0.1 + 0.15, 0], atol=1e-5)
    np.testing.assert_allclose(struck.puck_velocity, [0.9 * 0.15, 0], atol=1e-5)
    # A glancing blow, contact at 45 degrees, passes on only the part along the normal.
    glancing = world((-0.7, -0.05), puck=(-0.5, 0.0), velocity=(0.15, 0.0))
    struck = step(task, glancing, (1.0, 0.0))
    np.testing.assert_allclose(struck.puck_velocity, [0.9 * 0.075] * 2, atol=1e-5)
    # A puck that is faster already is left alone.
    flying = world((-0.7, 0.0), (-0.5, 0.0), velocity=(0.1, 0.0), puck_velocity=(0.2, 0.0))
    np.testing.assert_allclose(step(task, flying, (1.0, 0.0)).puck_velocity, [0.18, 0], atol=1e-6)


def test_the_point_never_crosses_the_border():
    task, state = make_task("PointSlideNoise-v0"), world((-0.4, 0.0), puck=(-0.5, 0.5))
    states = jax.jit(
        lambda s: jax.lax.scan(
            lambda s, key: (task.step(s, jnp.array([1.0, 0.3]), key),) * 2,
            s,
            jax.random.split(KEY, 200),
        )[1]
    )(state)
    assert float(states.point[:, 0].max()) == pytest.approx(-0.3)
    assert float(jnp.abs(states.point).max()) <= 1
    # Held back by the border it has no velocity across it.
    np.testing.assert_allclose(states.velocity[-1, 0], 0, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "scale", "sigma"),
    [
        ("none", 1.0, 0.0),
        ("paper", 1.0, 0.04 / (2 * math.e)),
        ("code", 1.0, 0.245 / math.e),
        ("code", 2.0, 0.49 / math.e),
    ],
)
def test_slide_noise_acts_on_the_action(noise, scale, sigma):
    task, n = make_task("PointSlideNoise-v0", noise=noise, noise_scale=scale), 20_000
    moves = jax.jit(jax.vmap(task.step, (None, None, 0)))
    state, action = world((-0.8, 0.0), puck=(-0.5, 0.0)), jnp.array([0.7, 0.0])
    velocity = moves(state, action, jax.random.split(KEY, n)).velocity
    # From rest one step reaches the share 0.4 of the velocity asked for, 0.15 times the action.
    noisy = velocity[:, 1] / (0.4 * 0.15)  # the other component reaches its limit now and then
    np.testing.assert_allclose(noisy.mean(), 0, atol=5 * sigma / n**0.5 + 1e-6)
    np.testing.assert_allclose(noisy.std(), sigma, rtol=0.03, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["PointReach-v0", "PointCliff-v0", "PointPush-v0", "PointSlide-v0"]
)
def test_resets_are_in_bounds_and_never_at_the_goal(name):
    task = make_task(name)
    states = starts(name)
    achieved = jax.vmap(task.achieved)(states)
    assert not task.success(achieved, states.goal).any()
    for places in (states.point, states.puck, states.goal):
        assert (jnp.abs(places) <= 1).all()
    assert not states.velocity.any()
    assert not states.puck_velocity.any()


@pytest.mark.parametrize("name", ["PointPush-v0", "PointSlide-v0"])
def test_resets_leave_room_between_point_and_puck(name):
    states = starts(name)
    assert (jnp.linalg.norm(states.point - states.puck, axis=-1) > 0.15).all()


def test_the_sparse_task_starts_as_its_twin():
    one, two = (starts(name) for name in ("PointPush-v0", "PointPushSparse-v0"))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def play(task, controller, episodes=100):
    """Success ``[e, t]`` and states ``[e, t]`` after each step.

    The controller has an agent's inputs, the observation and the goal, and no memory.
    """

    def episode(key):
        key_reset, key_steps = jax.random.split(key)
        start = task.reset(key_reset)

        def step(state, key):
            action = jnp.clip(controller(task.observe(state), task.goal(state)), -1, 1)
            state = task.step(state, action, key)
            return state, (task.success(task.achieved(state), task.goal(state)), state)

        return jax.lax.scan(step, start, jax.random.split(key_steps, task.horizon))[1]

    return jax.jit(jax.vmap(episode))(jax.random.split(KEY, episodes))


def success(name, controller, **settings):
    """Share of 100 episodes at the goal at the final step."""
    reached, _ = play(make_task(name, **settings), controller)
    return float(reached[:, -1].mean())


def directions(start, end):
    """Unit vectors from start to end and across."""
    way = (end - start) / (jnp.linalg.norm(end - start) + 1e-6)
    return way, jnp.array([-way[1], way[0]])


def straight(action):
    """Scales an action into its bounds; clipping would turn it."""
    return action / jnp.maximum(1, jnp.abs(action).max())


def reach(obs, goal):
    return (goal - obs[:2]) / 0.1


def push(obs, goal):
    """Circles to behind the puck, then walks until the puck is at the goal."""
    point, puck = obs[:2], obs[2:4]
    way, across = directions(puck, goal)
    along, side = (point - puck) @ way, (point - puck) @ across
    angle = jnp.arctan2(side, -along)  # zero is right behind
    angle = angle - jnp.clip(angle, -0.45, 0.45)
    around = puck + 0.19 * (jnp.sin(angle) * across - jnp.cos(angle) * way)
    through = goal - 0.15 * way
    lined_up = (along < 0) & (jnp.abs(side) < 0.02)
    action = jnp.where(lined_up, straight((through - point) / 0.1), (around - point) / 0.1)
    return jnp.where(jnp.linalg.norm(goal - puck) < 0.004, 0.0, action)


def pass_at(height):
    """Rises on the near side, passes the pit at a height and comes down on the far side."""

    def walk(obs, goal):
        point = obs[:2]
        rise = (point[0] < -0.6) & (point[1] < height - 0.1)
        above = jnp.where(rise, jnp.array([-0.75, height]), jnp.array([0.8, height]))
        return (jnp.where(point[0] < 0.68, above, goal) - point) / 0.1

    return walk


def strike(obs, goal):
    """Lines up behind the puck, then hits it at the speed that lets it stop at the goal."""
    top, keep, contact, glide = 0.15, 0.6, 0.1, 0.9
    point, velocity, puck, puck_velocity = obs[:2], top * obs[2:4], obs[4:6], top * obs[8:]
    way, across = directions(puck, goal)
    along, side = (point - puck) @ way, (point - puck) @ across
    # Hit on this step, the puck goes from point + v + contact by v / (1 - glide).
    speed = jnp.maximum((goal - point) @ way - contact, 0) / (1 + 1 / (1 - glide))
    hit = speed * way - 0.5 * side * across
    line_up = jnp.clip(0.5 * (puck - 0.35 * way - point), -0.1, 0.1)
    sliding = jnp.linalg.norm(puck_velocity) > 1e-4
    ready = (jnp.abs(side) < 0.006) & (along < -0.08)
    enough = sliding & ((goal - puck - puck_velocity / (1 - glide)) @ way < 0.02)
    wanted = jnp.where(enough, 0.0, jnp.where(ready | sliding, hit, line_up))
    return straight((wanted - keep * velocity) / ((1 - keep) * top))


@pytest.mark.parametrize(
    ("name", "controller"),
    [("PointReach-v0", reach), ("PointPushSparse-v0", push), ("PointSlide-v0", strike)],
)
def test_a_controller_solves_the_task(name, controller):
    assert success(name, controller) > 0.9  # the sparse one is PointPush with a smaller radius


def test_at_the_cliff_the_detour_is_safe_and_the_short_way_falls():
    assert success("PointCliff-v0", pass_at(0.3)) > 0.9
    assert success("PointCliff-v0", pass_at(-0.15)) < 0.3
    assert success("PointCliff-v0", pass_at(-0.15), noise=0.0) > 0.9


def test_noise_spoils_the_strike():
    assert success("PointSlideNoise-v0", strike) < 0.6
