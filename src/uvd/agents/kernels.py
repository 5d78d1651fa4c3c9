"""Kernel densities over demonstrated steps: what is compared, and by which kernels.

    F(t | s, a) = exp(-|t - x|^2 / 2 width^2)           x: the agent's step, as `match` says
    d(t)        = mean of F(t | s, a) over the agent's newest steps

One step ahead and under spatial smoothing, the density of what follows a step is a Gaussian around
what did follow. Nothing has to be fitted, so d can be that of the newest policy. Densities are in
units of the kernel's peak: at its centre they are 1, whatever its width.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from uvd.agents.agent import DemoSteps, Spec, demonstrations
from uvd.core import replay
from uvd.core.errors import UserError, nearest
from uvd.core.policy import Norm
from uvd.core.replay import Batch, Ring

Match = Literal["auto", "pairs", "changes", "states"]
SMALLEST_CHANGE = 0.01  # in normalised units: a change varies by at least so much
MAX_POINTS = 500  # demonstrated points for a width: of more, so many at equal distances
WIDTHS = 1e-3, 1e2  # the narrowest and the widest, in normalised units
NEAR = 0.05  # share of the agent's steps that count as near a demonstrated point


def resolve_match(match: Match, demos: DemoSteps) -> Match:
    """`auto` is the richest that the demonstrations offer; what they do not offer is refused."""
    if match == "auto":
        if demos.action is not None:
            return "pairs"
        return "states" if demos.next_obs is None else "changes"
    if match not in get_args(Match):
        raise nearest(str(match), get_args(Match), "match")
    if match == "pairs" and demos.action is None:
        raise UserError("no actions, which match = pairs needs (changes does without)")
    if match == "changes" and demos.next_obs is None:
        raise UserError(
            "match = changes needs the state after each chosen step, and the last one has none: "
            "leave it out (--every, --offset)"
        )
    return match


def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """`[len(x), len(y)]`, as one product."""
    # In full precision: near points are a small difference of large numbers.
    across = jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.maximum((x**2).sum(-1)[:, None] + (y**2).sum(-1) - 2 * across, 0)


class Kernels:
    """Gaussian kernels over what is compared, in normalised units.

    `pairs`: (s, a), an action's columns as they are. `changes`: (s, s' - s), a change in units of
    how much it varies in the demonstrations. `states`: the state that a step leads to.
    """

    def __init__(self, match: Match, spec: Spec) -> None:
        demos = demonstrations(spec)
        self.match, self.columns = resolve_match(match, demos), spec.columns
        self.demo_points = self._compared(*demos)  # [demonstrated steps, columns]

    def _compared(
        self, obs: jax.Array, action: jax.Array | None, next_obs: jax.Array | None
    ) -> jax.Array:
        """The columns that are compared, in the task's own units."""
        state = obs[..., self.columns]
        if self.match == "pairs" and action is not None:
            return jnp.concatenate([state, action], -1)
        if self.match == "changes" and next_obs is not None:
            return jnp.concatenate([state, next_obs[..., self.columns] - state], -1)
        return state

    def _normalised(self, norm: Norm, x: jax.Array) -> jax.Array:
        shift, scale = norm.obs_shift[self.columns], norm.obs_scale[self.columns]
        state, rest = jnp.split(x, [len(self.columns)], -1)
        if self.match == "changes":
            deviation = self.demo_points[:, len(self.columns) :].std(0)
            rest = rest / jnp.maximum(2 * deviation, SMALLEST_CHANGE * scale)
        return jnp.concatenate([(state - shift) / scale, rest], -1)

    def log_f(self, width: jax.Array, norm: Norm, batch: Batch, demos: jax.Array) -> jax.Array:
        """log F(t | s, a) of demonstrated points t one step ahead, `[len(demos), batch]`."""
        obs = batch.next_obs if self.match == "states" else batch.obs
        centre = self._normalised(norm, self._compared(obs, batch.action, batch.next_obs))
        return -squared_distances(self._normalised(norm, demos), centre) / (2 * width**2)

    def _visited(self, norm: Norm, ring: Ring, newest: int) -> tuple[jax.Array, jax.Array]:
        """The agent's newest steps as points, and which of them there are."""
        row, exists = replay.newest(ring, newest)
        after = ring.obs[replay.later(ring, row, 1)]
        obs = after if self.match == "states" else ring.obs[row]
        return self._normalised(norm, self._compared(obs, ring.action[row], after)), exists

    def log_d(self, width: jax.Array | float, norm: Norm, ring: Ring, newest: int) -> jax.Array:
        """log d of each demonstrated point under the newest steps of the agent."""
        visited, exists = self._visited(norm, ring, newest)

        def log_sum(point: jax.Array) -> jax.Array:
            squared = squared_distances(point[None], visited)[0]
            return jax.nn.logsumexp(-squared / (2 * width**2), where=exists)

        log_sums = jax.lax.map(log_sum, self._normalised(norm, self.demo_points))
        return log_sums - jnp.log(jnp.maximum(exists.sum(), 1))

    def _squared(self, norm: Norm, ring: Ring, newest: int) -> tuple[jax.Array, jax.Array]:
        """Distances of demonstrated points to the newest steps; of very many points some."""
        visited, exists = self._visited(norm, ring, newest)
        points = self.demo_points[:: -(-len(self.demo_points) // MAX_POINTS)]
        squared = squared_distances(self._normalised(norm, points), visited)
        return jnp.where(exists, squared, jnp.inf), jnp.maximum(exists.sum(), 1)

    def width_for(self, mean_log_d: float, norm: Norm, ring: Ring, newest: int) -> jax.Array:
        """The width under which the mean of log d is this: the nearer the agent, the narrower."""
        squared, count = self._squared(norm, ring, newest)

        def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = ends
            middle = (low + high) / 2
            log_d = jax.nn.logsumexp(-squared / (2 * jnp.exp(2 * middle)), axis=1) - jnp.log(count)
            wide = log_d.mean() >= mean_log_d
            return jnp.where(wide, low, middle), jnp.where(wide, middle, high)

        ends = jnp.log(jnp.array(WIDTHS))
        return jnp.exp(jax.lax.fori_loop(0, 16, halve, (ends[0], ends[1]))[1])

    def closeness(self, norm: Norm, ring: Ring, newest: int) -> jax.Array:
        """Minus the mean logarithm of the distance within which a twentieth of the newest steps
        lies: a measure that needs no width."""
        squared, _ = self._squared(norm, ring, newest)
        nearest = jnp.sort(squared, 1)[:, max(round(NEAR * squared.shape[1]), 1) - 1]
        return -0.5 * jnp.log(jnp.clip(nearest, WIDTHS[0] ** 2, WIDTHS[1] ** 2)).mean()
