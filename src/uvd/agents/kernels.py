"""VDI's densities without learning: Gaussian kernels around what was met.

One step ahead and under spatial smoothing, the density of what follows is a Gaussian around what
did follow; the agent's own density d is the mean of such Gaussians over its short memory. Nothing
has to be fitted, so d can be that of the policy of this very moment (docs/vdi.md, "Without flows").

Densities are in units of the kernel's peak: at its centre they are 1, whatever its width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.agents.agent import Spec, demonstrations
from uvd.core import replay
from uvd.core.policy import Norm
from uvd.core.replay import Batch, Ring
from uvd.errors import UserError


class Kernels(NamedTuple):
    """Kernels around all that is shown, or around what was met: they are symmetric."""

    shown: jax.Array  # [shown, columns], in the task's own units
    log_d: Callable[..., jax.Array]  # (width, norm, ring, newest steps) -> [shown]
    log_f: Callable[..., jax.Array]  # (width, norm, batch, t [batch, columns]) -> [batch]
    log_f_all: Callable[..., jax.Array]  # (width, norm, batch) -> [shown, batch]


def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """`[len(x), len(y)]`, as one product."""
    # In full precision: near points are a small difference of large numbers.
    across = jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.maximum((x**2).sum(-1)[:, None] + (y**2).sum(-1) - 2 * across, 0)


def make_kernels(spec: Spec, pairs: bool) -> Kernels:
    """Kernels over the observation's live columns in normalised units.

    Of states they are around s'. Of pairs they are around (s, a) itself, an action's columns
    counting as they are.
    """
    demos = demonstrations(spec)
    if pairs and demos.action is None:
        raise UserError("no actions, which the setting pairs needs (preset kernel has it)")

    def compared(obs: jax.Array, action: Any) -> jax.Array:
        x = obs[..., spec.columns]
        return jnp.concatenate([x, action], -1) if pairs else x

    shown = compared(demos.obs, demos.action)

    def points(norm: Norm, x: jax.Array) -> jax.Array:
        state, action = jnp.split(x, [len(spec.columns)], -1)
        state = (state - norm.obs_shift[spec.columns]) / norm.obs_scale[spec.columns]
        return jnp.concatenate([state, action], -1)

    def centre(norm: Norm, batch: Batch) -> jax.Array:
        return points(norm, compared(batch.obs if pairs else batch.next_obs, batch.action))

    def log_d(width: Any, norm: Norm, ring: Ring, newest: int) -> jax.Array:
        row, there = replay.newest(ring, newest)
        met = points(norm, compared(ring.obs[row], ring.action[row]))

        def of(one: jax.Array) -> jax.Array:
            apart = squared_distances(one[None], met)[0]
            return jax.nn.logsumexp(-apart / (2 * width**2), where=there)

        log_sum = jax.lax.map(of, points(norm, shown))
        return log_sum - jnp.log(jnp.maximum(there.sum(), 1))

    def log_f(width: jax.Array, norm: Norm, batch: Batch, t: jax.Array) -> jax.Array:
        apart = centre(norm, batch) - points(norm, t)
        return -(apart**2).sum(-1) / (2 * width**2)

    def log_f_all(width: jax.Array, norm: Norm, batch: Batch) -> jax.Array:
        return -squared_distances(points(norm, shown), centre(norm, batch)) / (2 * width**2)

    return Kernels(shown, log_d, log_f, log_f_all)
