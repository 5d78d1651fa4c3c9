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

    log_d: Callable[..., jax.Array]  # (width, norm, ring, newest steps) -> [shown]
    ratio: Callable[..., jax.Array]  # (width, norm, batch, log_unit [shown]) -> [batch]


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

    def points(norm: Norm, obs: jax.Array, action: Any) -> jax.Array:
        x = ((obs - norm.obs_shift) / norm.obs_scale)[..., spec.columns]
        return jnp.concatenate([x, action], -1) if pairs else x

    def log_d(width: Any, norm: Norm, ring: Ring, newest: int) -> jax.Array:
        row, there = replay.newest(ring, newest)
        met = points(norm, ring.obs[row], ring.action[row])

        def of(one: jax.Array) -> jax.Array:
            apart = squared_distances(one[None], met)[0]
            return jax.nn.logsumexp(-apart / (2 * width**2), where=there)

        log_sum = jax.lax.map(of, points(norm, demos.obs, demos.action))
        return log_sum - jnp.log(jnp.maximum(there.sum(), 1))

    def ratio(width: jax.Array, norm: Norm, batch: Batch, log_unit: jax.Array) -> jax.Array:
        here = points(norm, batch.obs if pairs else batch.next_obs, batch.action)
        apart = squared_distances(points(norm, demos.obs, demos.action), here)
        return jnp.exp(-apart / (2 * width**2) - log_unit[:, None]).mean(0)

    return Kernels(log_d, ratio)
