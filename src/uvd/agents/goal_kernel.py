"""The spatial smoothing of the goal density: a Gaussian kernel over goals (appendix A.1).

Its unit is a dimension's half-range, or where success is a distance, the mean of these, so that the
kernel has the same width in every direction, as the goal has. It narrows to the size of the task's
goals, and no further.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Spec
from uvd.core.schedule import halving

RADIUS_SHARE = 0.8  # of the success radius: the width at which the smoothing ends
NARROWEST_LONG = 0.05  # of the long time spans: at less, flows are compared by their errors


class GoalKernel:
    """The kernel of a task; goals are in the task's own units, widths in the kernel's."""

    def __init__(self, smoothing: float, half: int, spec: Spec) -> None:
        scale = np.asarray(spec.norm.goal_scale)[list(spec.varying_goal)]
        unit = scale if spec.radius is None else np.full_like(scale, scale.mean())
        self.start, self.half = smoothing, half
        self.columns, self.unit = jnp.array(spec.varying_goal), jnp.asarray(unit)
        self.dim = len(unit)
        radius = 0.1 if spec.radius is None else spec.radius / float(unit[0])
        self.end = min(RADIUS_SHARE * radius, smoothing) if half else smoothing

    def width(self, step: jax.Array) -> jax.Array:
        """The width at an update."""
        return halving(self.start, self.half, self.end, step)

    def long_width(self, step: jax.Array) -> jax.Array:
        """The same of the long time spans."""
        return jnp.maximum(self.width(step), NARROWEST_LONG)

    def log_peak(self, width: jax.Array) -> jax.Array:
        """The logarithm of the kernel's density at its centre."""
        return -self.dim * jnp.log(width * math.sqrt(2 * math.pi))

    def relative(self, goal: jax.Array, achieved: jax.Array) -> jax.Array:
        """How far a goal lies from what is achieved, in the dimensions that vary."""
        return (goal - achieved)[..., self.columns] / self.unit

    def moved(self, goal: jax.Array, x: jax.Array) -> jax.Array:
        """Goals moved by x: the inverse of `relative`."""
        return goal.at[:, self.columns].add(x * self.unit)

    def log_prob(self, goal: jax.Array, achieved: jax.Array, step: jax.Array) -> jax.Array:
        """The density of goals where exactly `achieved` follows, under the long smoothing."""
        width = self.long_width(step)
        squared = ((self.relative(goal, achieved) / width) ** 2).sum(-1)
        return -squared / 2 + self.log_peak(width)

    def blur(self, goal: jax.Array, key: jax.Array, step: jax.Array) -> jax.Array:
        """Goals with noise that fades as the kernel narrows."""
        noise = (self.width(step) - self.end) * jax.random.normal(key, (len(goal), self.dim))
        return self.moved(goal, noise)
