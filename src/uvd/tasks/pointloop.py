"""PointLoop: a point is to run round a circle. Imitation in miniature, in pure JAX.

There are no goals. The reward is how fast the point moves counter-clockwise near the circle.
The task comes with a scripted expert, so what an imitator should visit is known.

The observation holds the velocity beside the position: actions are accelerations, so a policy
without it could not hold a course; and positions alone do not say which way round to go.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.tasks.task import Task, register

HORIZON = 100
RADIUS = 0.6
TURN = 0.15  # radians that the expert advances in a step
PUSH, DRAG = 0.02, 0.1  # acceleration of a full action; share of the velocity lost in a step
SPEED = RADIUS * TURN  # observed velocities are in this unit
WIDTH = 0.1  # the reward falls off over this distance from the circle


class Runner(NamedTuple):
    """Where the point is, and how far it moved in the last step; each [2]."""

    point: jax.Array
    velocity: jax.Array


@register("PointLoop-v0")
def point_loop(spread: float = 0.1) -> Task:
    """Run round a circle; starts lie up to `spread` off it, anywhere along it, at rest."""

    def reset(key: jax.Array) -> Runner:
        key_angle, key_off = jax.random.split(key)
        angle = jax.random.uniform(key_angle, maxval=2 * jnp.pi)
        distance = RADIUS + spread * jax.random.uniform(key_off, minval=-1.0)
        return Runner(distance * jnp.array([jnp.cos(angle), jnp.sin(angle)]), jnp.zeros(2))

    def step(s: Runner, action: jax.Array, key: jax.Array) -> Runner:
        point = jnp.clip(s.point + (1 - DRAG) * s.velocity + PUSH * action, -1, 1)
        return Runner(point, point - s.point)

    def observe(s: Runner) -> jax.Array:
        return jnp.concatenate([s.point, s.velocity / SPEED])

    def reward(s: Runner, action: jax.Array, after: Runner) -> jax.Array:
        """The angle of a step, in the expert's; less off the circle."""
        (x, y), (u, v) = s.point, after.point
        arc = jnp.arctan2(x * v - y * u, x * u + y * v) / TURN
        off = (jnp.linalg.norm(after.point) - RADIUS) / WIDTH
        return arc * jnp.exp(-0.5 * off**2)

    about = "run round a circle; rewards, no goals (imitation in miniature)"
    return Task("PointLoop-v0", about, 4, 2, 0, HORIZON, 0.0, reset, step, observe, reward=reward)


def expert(obs: Any) -> Any:
    """The scripted expert's action for one observation: TURN radians on, back towards the circle.

    On the circle it needs four fifths of a full action.
    """
    point, velocity = obs[:2], obs[2:] * SPEED
    distance = jnp.linalg.norm(point) + 1e-6
    cos, sin = jnp.cos(TURN), jnp.sin(TURN)
    ahead = jnp.array([[cos, -sin], [sin, cos]]) @ point / distance
    aim = (distance + 0.3 * (RADIUS - distance)) * ahead
    return jnp.clip((aim - point - (1 - DRAG) * velocity) / PUSH, -1, 1)
