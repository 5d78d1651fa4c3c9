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

COMPARE = ("states", "pairs", "changes")
STILL = 0.01  # in normalised units: a change that varies less than this counts as if it did


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


def make_kernels(spec: Spec, compare: str) -> Kernels:
    """Kernels over what is compared, in normalised units.

    `states`: the observation's live columns; what follows a step is s'. `pairs`: (s, a), an
    action's columns counting as they are. `changes`: (s, s' - s), a change counting by how much it
    varies in what is shown. The last two are of the step itself.
    """
    demos, live = demonstrations(spec), spec.columns
    if compare == "pairs" and demos.action is None:
        raise UserError("no actions, which compare = pairs needs (changes does without)")
    if compare == "changes" and demos.next_obs is None:
        raise UserError(
            "what each chosen step led to, which compare = changes needs, is not there for the "
            "last one: leave it out (--every, --offset)"
        )

    def compared(obs: jax.Array, action: Any, after: Any) -> jax.Array:
        state = obs[..., live]
        if compare == "states":
            return state
        beside = action if compare == "pairs" else after[..., live] - state
        return jnp.concatenate([state, beside], -1)

    shown = compared(*demos)

    def points(norm: Norm, x: jax.Array) -> jax.Array:
        shift, scale = norm.obs_shift[live], norm.obs_scale[live]
        state, beside = jnp.split(x, [len(live)], -1)
        if compare == "changes":
            varies = shown[:, len(live) :].std(0)
            beside = beside / jnp.maximum(2 * varies, STILL * scale)
        return jnp.concatenate([(state - shift) / scale, beside], -1)

    def centre(norm: Norm, batch: Batch) -> jax.Array:
        obs = batch.next_obs if compare == "states" else batch.obs
        return points(norm, compared(obs, batch.action, batch.next_obs))

    def log_d(width: Any, norm: Norm, ring: Ring, newest: int) -> jax.Array:
        row, there = replay.newest(ring, newest)
        after = replay.later(ring, row, 1)
        met = points(norm, compared(ring.obs[row], ring.action[row], ring.obs[after]))

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
