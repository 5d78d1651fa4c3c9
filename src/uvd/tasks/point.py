"""Point tasks: the paper's experiments in miniature, in pure JAX.

A point moves in the square [-1, 1]². Depending on the task it walks, pushes a puck, or strikes one
so that it slides. Each stands for one claim of the paper: PointCliff for Figure 1, PointPush and
PointPushSparse for Figures 2a and 2c, PointSlide and PointSlideNoise for Figures 2b and 2d.
docs/tasks.md explains how the constants were chosen.
"""

import math
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.tasks.noise import find_noise
from uvd.tasks.task import Task, register

HORIZON = 50
PIT = (-0.6, 0.6, -0.2)  # PointCliff's: left, right, top


class World(NamedTuple):
    """Positions and velocities of point and puck (zero where unused), and the goal; each [2]."""

    point: jax.Array
    velocity: jax.Array
    puck: jax.Array
    puck_velocity: jax.Array
    goal: jax.Array


def _task(name: str, about: str, obs_dim: int, radius: float, *functions: Any) -> Task:
    """`functions` are reset, step, observe and achieved."""
    task = Task(name, about, obs_dim, 2, 2, HORIZON, radius, *functions)
    return task._replace(goal=attrgetter("goal"))


def _box(key: jax.Array, low: tuple[float, float], high: tuple[float, float]) -> jax.Array:
    return jax.random.uniform(key, (2,), minval=jnp.array(low), maxval=jnp.array(high))


def _world(point: jax.Array, puck: jax.Array, goal: jax.Array) -> World:
    zero = jnp.zeros(2)
    return World(point, zero, puck, zero, goal)


def _away_from(goal: jax.Array, start: jax.Array, radius: float, reach: float) -> jax.Array:
    """Moves a goal that the start already satisfies out to a distance of two radii."""
    gap = goal - start
    distance = jnp.linalg.norm(gap) + 1e-6
    moved = start + gap / distance * 2 * radius
    moved = jnp.where(jnp.abs(moved) > reach, 2 * start - moved, moved)
    return jnp.where(distance < 1.5 * radius, moved, goal)


@register("PointReach-v0")
def point_reach(radius: float = 0.05) -> Task:
    """Walk to a goal."""
    speed = 0.1

    def reset(key: jax.Array) -> World:
        key_point, key_goal = jax.random.split(key)
        point = _box(key_point, (-1, -1), (1, 1))
        goal = _away_from(_box(key_goal, (-0.9, -0.9), (0.9, 0.9)), point, radius, 1.0)
        return _world(point, jnp.zeros(2), goal)

    def step(s: World, action: jax.Array, key: jax.Array) -> World:
        return s._replace(point=jnp.clip(s.point + speed * action, -1, 1))

    point = attrgetter("point")
    return _task("PointReach-v0", "walk to a goal", 2, radius, reset, step, point, point)


@register("PointCliff-v0")
def point_cliff(radius: float = 0.15, noise: float = 0.5) -> Task:
    """Walk around a pit, with noisy steps: along the edge is short, further up is safe.

    The paper's Figure 1 in continuous space. A point in the pit never moves again, so it cannot
    reach the goal. `noise` is the standard deviation of what is added to every action.
    """
    speed = 0.1
    pit_left, pit_right, pit_top = PIT

    def in_pit(p: jax.Array) -> jax.Array:
        return (p[0] > pit_left) & (p[0] < pit_right) & (p[1] < pit_top)

    def reset(key: jax.Array) -> World:
        key_point, key_goal = jax.random.split(key)
        point = _box(key_point, (-0.9, -0.7), (-0.75, -0.4))
        return _world(point, jnp.zeros(2), _box(key_goal, (0.75, -0.7), (0.85, -0.4)))

    def step(s: World, action: jax.Array, key: jax.Array) -> World:
        drift = noise * jax.random.normal(key, (2,))
        moved = jnp.clip(s.point + speed * (action + drift), -1, 1)
        return s._replace(point=jnp.where(in_pit(s.point), s.point, moved))

    def observe(s: World) -> jax.Array:
        return jnp.append(s.point, in_pit(s.point).astype(jnp.float32))

    about = "walk around a pit, with noisy steps (Figure 1)"
    return _task("PointCliff-v0", about, 3, radius, reset, step, observe, attrgetter("point"))


def _point_push(name: str, about: str, radius: float) -> Task:
    speed, contact = 0.1, 0.15

    def reset(key: jax.Array) -> World:
        key_point, key_puck, key_goal = jax.random.split(key, 3)
        puck = _box(key_puck, (-0.6, -0.6), (0.6, 0.6))
        angle = jax.random.uniform(key_point, maxval=2 * math.pi)
        point = puck + 0.3 * jnp.array([jnp.cos(angle), jnp.sin(angle)])
        # The start does not depend on the task's radius: the sparse task starts the same way.
        goal = _away_from(_box(key_goal, (-0.7, -0.7), (0.7, 0.7)), puck, 0.1, 0.8)
        return _world(point, puck, goal)

    def step(s: World, action: jax.Array, key: jax.Array) -> World:
        point = jnp.clip(s.point + speed * action, -1, 1)
        gap = s.puck - point
        distance = jnp.linalg.norm(gap) + 1e-6
        # Quasi-static: the puck gives way along the line of centres and has no velocity.
        puck = jnp.where(distance < contact, point + gap / distance * contact, s.puck)
        return s._replace(point=point, puck=jnp.clip(puck, -1, 1))

    def observe(s: World) -> jax.Array:
        return jnp.concatenate([s.point, s.puck, s.puck - s.point])

    return _task(name, about, 6, radius, reset, step, observe, attrgetter("puck"))


@register("PointPush-v0")
def point_push(radius: float = 0.1) -> Task:
    """Push a puck to a goal (Figure 2a in miniature)."""
    return _point_push("PointPush-v0", "push a puck to a goal (Figure 2a)", radius)


@register("PointPushSparse-v0")
def point_push_sparse(radius: float = 0.01) -> Task:
    """The same with a tenth of the radius: a hundredth of the goal's area (Figure 2c)."""
    about = "the same, a hundredth of the area (Figure 2c)"
    return _point_push("PointPushSparse-v0", about, radius)


def _point_slide(
    name: str, about: str, radius: float, noise: str, noise_scale: float = 1.0
) -> Task:
    sigma = find_noise(noise)
    top_speed, response, contact, glide, border = 0.15, 0.4, 0.1, 0.9, -0.3

    def reset(key: jax.Array) -> World:
        key_point, key_puck, key_goal = jax.random.split(key, 3)
        puck = _box(key_puck, (-0.55, -0.15), (-0.45, 0.15))
        point = puck + _box(key_point, (-0.35, -0.1), (-0.2, 0.1))
        return _world(point, puck, _box(key_goal, (0.1, -0.4), (0.8, 0.4)))

    def step(s: World, action: jax.Array, key: jax.Array) -> World:
        spread = noise_scale * sigma(action) if sigma else jnp.zeros(())
        noisy_action = jnp.clip(action + spread * jax.random.normal(key, (2,)), -1, 1)
        velocity = s.velocity + response * (top_speed * noisy_action - s.velocity)
        # The point cannot leave its side of the border; the puck can.
        limit = jnp.array([border, 1.0])
        point = jnp.clip(s.point + velocity, -1, limit)
        velocity = point - s.point
        gap = s.puck - point
        distance = jnp.linalg.norm(gap) + 1e-6
        normal = gap / distance
        # Inelastic strike: along the normal the puck takes the point's speed if that is larger.
        push = jnp.maximum((velocity - s.puck_velocity) @ normal, 0.0)
        hit = distance < contact
        puck_velocity = s.puck_velocity + jnp.where(hit, push, 0.0) * normal
        puck = jnp.where(hit, point + normal * contact, s.puck) + puck_velocity
        return World(point, velocity, jnp.clip(puck, -1, 1), glide * puck_velocity, s.goal)

    def observe(s: World) -> jax.Array:
        return jnp.concatenate(
            [s.point, s.velocity / top_speed, s.puck, s.puck - s.point, s.puck_velocity / top_speed]
        )

    return _task(name, about, 10, radius, reset, step, observe, attrgetter("puck"))


@register("PointSlide-v0")
def point_slide(radius: float = 0.1) -> Task:
    """Strike a puck so that it slides to a goal out of reach (Figure 2b in miniature)."""
    about = "strike a puck to slide to a goal (Figure 2b)"
    return _point_slide("PointSlide-v0", about, radius, "none")


@register("PointSlideNoise-v0")
def point_slide_noise(radius: float = 0.1, noise: str = "code", noise_scale: float = 1.0) -> Task:
    """The same with noise that grows with the action (Figure 2d), times `noise_scale`; `noise`:
    code, paper or none."""
    about = "the same, noise grows with the action (Figure 2d)"
    return _point_slide("PointSlideNoise-v0", about, radius, noise, noise_scale)
