"""F(g | s, a), the density of goals achieved after (s, a): a conditional RealNVP (section 3.2).

    x = (g - achieved now) / unit, of the goal dimensions that vary
    fit: one step up log F(x + width * noise | s, a, g, time code), over futures of recent (s, a)
    c F = density_scale * F / (peak of a Gaussian of that width)

The noise on the targets is the paper's spatial smoothing. In units of the smoothing kernel's peak,
F is the expectation of exp(-|g - achieved|² / 2 width²): a soft probability of success, at most 1.
This is the bound of the critic's targets; without smoothing it is the flow's (`Flow.log_bound`).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import Metrics, Spec
from uvd.agents.futures import SHORT_TERM, Context, draw_futures
from uvd.agents.goal_kernel import GoalKernel
from uvd.core import replay
from uvd.core.config import Count, Layers, NotNegative, Positive, Range, Size, require, validate
from uvd.core.flows import Params, make_flow
from uvd.core.nets import OptimiserName, gradient_step, make_optimiser
from uvd.core.policy import Norm, features
from uvd.core.replay import Ring


@dataclass(frozen=True)
class DensityConfig:
    """What the density models, how finely, and how it learns."""

    lookahead: Count = 1
    """T: how many steps ahead the density in the target looks (paper: 4)."""
    offsets: Literal["geometric", "uniform"] = "geometric"
    """How the density's targets are spread over 1..T."""
    smoothing: NotNegative = 0.3
    """Spatial smoothing: Gaussian noise on the density's targets, in normalised goal units. It
    narrows to four fifths of the success radius."""
    smoothing_half: Size = 6000
    """Updates in which the smoothing halves (0: it stays)."""
    density_scale: Positive = 1.0
    """c: factor on the density, in units of the bound that the smoothing sets (or of F itself)."""
    bijectors: Annotated[int, Range(0, 40)] = 0
    """Couplings of the flow: a resolution, the narrowest width is exp(-bijectors / 2) (0: as many
    as the narrowest smoothing asks for)."""
    flow_hidden: Layers = (64, 64)
    """Hidden layers of each coupling's net."""
    flow_lr: Positive = 1e-3
    """Learning rate of the density."""
    l2: NotNegative = 0.0
    """L2 regularisation of the density."""
    short: Count = 50_000
    """The density learns from so many of the newest transitions: the short replay buffer."""

    def __post_init__(self) -> None:
        validate(self)
        require(self.smoothing or self.bijectors, "without smoothing, bijectors must be given")


class GoalDensity:
    """F with its settings bound; goals are in the task's own units."""

    def __init__(self, config: DensityConfig, spec: Spec, optimiser: OptimiserName, gamma: float):
        self.config, self.gamma, self.obs_dim = config, gamma, spec.obs_dim
        self.kernel = GoalKernel(config.smoothing, config.smoothing_half, spec)
        context_dim = spec.obs_dim + spec.goal_dim + spec.action_dim + 1
        couplings = config.bijectors or max(6, 2 * math.ceil(-math.log(self.kernel.end)))
        self.flow = make_flow(self.kernel.dim, context_dim, couplings, config.flow_hidden)
        flow_bound = 1.0 if config.smoothing else math.exp(self.flow.log_bound)
        self.bound = config.density_scale * flow_bound
        self.optimiser = make_optimiser(optimiser, config.flow_lr, l2=config.l2)

    def scaled(self, log_f: jax.Array, step: jax.Array) -> jax.Array:
        """c F within its bound: in units of the peak of the smoothing's kernel at this update."""
        kernel = self.kernel
        unit = -kernel.log_peak(kernel.width(step)) if self.config.smoothing else 0.0
        log_scale = jnp.log(self.config.density_scale) + unit
        return jnp.exp(jnp.minimum(log_f + log_scale, jnp.log(self.bound)))

    def _inputs(self, norm: Norm, context: Context, time_code: jax.Array | float) -> jax.Array:
        code = jnp.broadcast_to(time_code, (*context.action.shape[:-1], 1))
        seen = features(norm, context.obs, context.intended)
        if self.config.lookahead == 1:  # one step ahead, the goal that is pursued does not matter
            seen = seen.at[..., self.obs_dim :].multiply(code != SHORT_TERM)
        return jnp.concatenate([seen, context.action, code], -1)

    def log_prob(
        self, flow: Params, norm: Norm, context: Context, goal: jax.Array,
        time_code: jax.Array | float = SHORT_TERM, noise: jax.Array | float = 0.0,
    ) -> jax.Array:  # fmt: skip
        """log F of each goal, moved by noise in normalised units."""
        x = self.kernel.relative(goal, context.achieved) + noise
        inputs = self._inputs(norm, context, time_code)
        return jax.vmap(self.flow.log_prob, (None, 0, 0))(flow, x, inputs)

    def sample(
        self, flow: Params, norm: Norm, key: jax.Array, context: Context, time_code: jax.Array
    ) -> jax.Array:
        """A goal for each context."""
        inputs = self._inputs(norm, context, time_code)
        keys = jax.random.split(key, len(inputs))
        x = jax.vmap(self.flow.sample, (None, 0, 0))(flow, keys, inputs)
        return self.kernel.moved(context.achieved, x)

    def fit(
        self, flow: Params, opt: optax.OptState, norm: Norm, ring: Ring, key: jax.Array,
        step: jax.Array, n: int, long_spans: bool, after_spans: bool,
    ) -> tuple[Params, optax.OptState, Metrics]:  # fmt: skip
        """One step of maximum likelihood on futures of n recent transitions (Alg. 1, 4-6)."""
        key_rows, key_short, key_long, key_noise = jax.random.split(key, 4)
        batch = replay.fetch(ring, replay.sample(ring, key_rows, n, self.config.short))

        def short_offset(left: jax.Array) -> jax.Array:
            limit = jnp.minimum(left, self.config.lookahead)
            if self.config.offsets == "geometric":
                return replay.geometric_offset(key_short, limit, self.gamma)
            return replay.uniform_offset(key_short, limit)

        seen = draw_futures(ring, batch, short_offset, key_long, long_spans, after_spans)
        width = jnp.where(seen.long, self.kernel.long_width(step), self.kernel.width(step))
        noise = width[:, None] * jax.random.normal(key_noise, (n, self.kernel.dim))

        def density_loss(flow: Params) -> tuple[jax.Array, Metrics]:
            log_f = self.log_prob(flow, norm, seen.context, seen.goal, seen.time_code, noise)
            n_short = jnp.maximum((~seen.long).sum(), 1)
            return -log_f.mean(), {
                "density/loss": -log_f.mean(),
                "density/log_f_short": jnp.where(seen.long, 0, log_f).sum() / n_short,
                "density/log_f_max": log_f.max(),
            }

        return gradient_step(density_loss, self.optimiser, flow, opt)
