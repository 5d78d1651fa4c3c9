"""F(g | s, a), the density of goals achieved after (s, a): a conditional RealNVP (section 3.2).

It models the goal relative to what is achieved now, in normalised units, over the goal dimensions
that vary. Its training targets carry Gaussian noise of standard deviation `smoothing` (the paper's
spatial smoothing). In units of that kernel's peak, F is the expectation of
exp(-|g - achieved|² / 2 smoothing²): a soft probability of success, at most 1. This is the bound of
the critic's targets; without smoothing it is the flow's own (`Flow.log_bound`). The smoothing
narrows to the size of the task's goals, and no further.

One flow answers for several time spans. Its input `time_code` says which: the T steps of the
critic's target (`SHORT_TERM`), exactly so many steps after (s, a) (`long_term`), or so many steps
after s' (`after_outcome`), where what follows no longer depends on a.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from uvd.agents.agent import Metrics, Spec
from uvd.core import replay
from uvd.core.config import Count, Layers, NotNegative, Positive, Range, Size, require, validate
from uvd.core.flows import Params, make_flow
from uvd.core.nets import OptimiserName, make_optimiser
from uvd.core.policy import Norm, features
from uvd.core.replay import Batch, Ring
from uvd.core.schedule import halving


@dataclass(frozen=True)
class DensityConfig:
    """What the density models, how finely, and how it learns."""

    horizon: Count = 1
    """T: how many steps ahead the density in the target looks (paper: 4)."""
    offsets: Literal["geometric", "uniform"] = "geometric"
    """How the density's targets are spread over 1..T."""
    smoothing: NotNegative = 0.3
    """Spatial smoothing: Gaussian noise on the density's targets, in normalised goal units."""
    smoothing_half: Size = 6000
    """Updates in which the smoothing halves (0: it stays)."""
    smoothing_end: NotNegative = 0.0
    """The smoothing never falls below this (0: four fifths of the success radius)."""
    smoothing_long: NotNegative = 0.05
    """The smoothing of the long time spans never falls below this: what differs by less is taken
    for the same when goals are drawn or balanced."""
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
    flow_delay: Size = 0
    """Updates between copies of the density into the one that targets use (0: no copy)."""
    short: Count = 50_000
    """The density learns from so many of the newest transitions: the short replay buffer."""

    def __post_init__(self) -> None:
        validate(self)
        require(self.smoothing or self.bijectors, "without smoothing, bijectors must be given")
        require(
            self.horizon <= self.short,
            f"horizon = {self.horizon} is longer than short = {self.short}",
        )


SHORT_TERM = 0.0  # the time code of the T steps of the critic's target


def long_term(offset: jax.Array) -> jax.Array:
    """The time code of exactly `offset` steps after (s, a)."""
    return 1 + jnp.log(offset.astype(jnp.float32)) / 2


def after_outcome(offset: jax.Array) -> jax.Array:
    """The time code of `offset` steps after s', given s' and the action that led there."""
    return -long_term(offset)


class Context(NamedTuple):
    """Where the density looks from."""

    obs: jax.Array
    action: jax.Array
    achieved: jax.Array
    intended: jax.Array  # the goal that is pursued

    @classmethod
    def before(cls, batch: Batch) -> "Context":
        """The transitions' own (s, a)."""
        return cls(batch.obs, batch.action, batch.achieved, batch.goal)

    @classmethod
    def after(cls, batch: Batch) -> "Context":
        """s', with the action that led there."""
        return cls(batch.next_obs, batch.action, batch.next_achieved, batch.goal)


def goal_unit(spec: Spec) -> np.ndarray:
    """What counts as 1 in each dimension: its half-range, or where success is a distance, the mean
    of these, so that the kernel is round as the goal is."""
    scale = np.asarray(spec.norm.goal_scale)[list(spec.varying_goal)]
    return scale if spec.radius is None else np.full_like(scale, scale.mean())


def narrowest_width(config: DensityConfig, spec: Spec) -> float:
    """The smoothing in the end, in normalised goal units: as set, or by the success radius."""
    if not config.smoothing_half:
        return config.smoothing
    radius = 0.1 if spec.radius is None else spec.radius / float(goal_unit(spec)[0])
    return min(config.smoothing_end or 0.8 * radius, config.smoothing)


class GoalDensity:
    """F with its settings bound; goals are in the task's own units."""

    def __init__(self, config: DensityConfig, spec: Spec, optimiser: OptimiserName, gamma: float):
        self.config, self.gamma, self.obs_dim = config, gamma, spec.obs_dim
        self.columns, self.unit = jnp.array(spec.varying_goal), jnp.asarray(goal_unit(spec))
        self.dim, self.end = len(spec.varying_goal), narrowest_width(config, spec)
        context_dim = spec.obs_dim + spec.goal_dim + spec.action_dim + 1
        couplings = config.bijectors or max(6, 2 * math.ceil(-math.log(self.end)))
        self.flow = make_flow(self.dim, context_dim, couplings, config.flow_hidden)
        flow_bound = 1.0 if config.smoothing else math.exp(self.flow.log_bound)
        self.bound = config.density_scale * flow_bound
        self.optimiser = make_optimiser(optimiser, config.flow_lr, l2=config.l2)

    def width(self, step: jax.Array) -> jax.Array:
        """The smoothing's width at an update."""
        return halving(self.config.smoothing, self.config.smoothing_half, self.end, step)

    def long_width(self, step: jax.Array) -> jax.Array:
        """The same of the long time spans."""
        return jnp.maximum(self.width(step), self.config.smoothing_long)

    def _log_peak(self, width: jax.Array) -> jax.Array:
        return -self.dim * jnp.log(width * math.sqrt(2 * math.pi))

    def scaled(self, log_f: jax.Array, step: jax.Array) -> jax.Array:
        """c F within its bound: in units of the peak of the smoothing's kernel at this update."""
        unit = -self._log_peak(self.width(step)) if self.config.smoothing else 0.0
        log_scale = jnp.log(self.config.density_scale) + unit
        return jnp.exp(jnp.minimum(log_f + log_scale, jnp.log(self.bound)))

    def _relative(self, goal: jax.Array, achieved: jax.Array) -> jax.Array:
        return (goal - achieved)[..., self.columns] / self.unit

    def _inputs(self, norm: Norm, context: Context, time_code: jax.Array | float) -> jax.Array:
        code = jnp.broadcast_to(time_code, (*context.action.shape[:-1], 1))
        seen = features(norm, context.obs, context.intended)
        if self.config.horizon == 1:  # one step ahead, the goal that is pursued does not matter
            seen = seen.at[..., self.obs_dim :].multiply(code != SHORT_TERM)
        return jnp.concatenate([seen, context.action, code], -1)

    def log_prob(
        self, flow: Params, norm: Norm, context: Context, goal: jax.Array,
        time_code: jax.Array | float = SHORT_TERM, noise: jax.Array | float = 0.0,
    ) -> jax.Array:  # fmt: skip
        """log F of each goal, moved by noise in normalised units."""
        x = self._relative(goal, context.achieved) + noise
        inputs = self._inputs(norm, context, time_code)
        return jax.vmap(self.flow.log_prob, (None, 0, 0))(flow, x, inputs)

    def sample(
        self, flow: Params, norm: Norm, key: jax.Array, context: Context, time_code: jax.Array
    ) -> jax.Array:
        """A goal for each context."""
        inputs = self._inputs(norm, context, time_code)
        keys = jax.random.split(key, len(inputs))
        x = jax.vmap(self.flow.sample, (None, 0, 0))(flow, keys, inputs)
        return context.achieved.at[:, self.columns].add(x * self.unit)

    def log_kernel(self, goal: jax.Array, achieved: jax.Array, step: jax.Array) -> jax.Array:
        """The density of goals where exactly `achieved` follows, under the long smoothing."""
        width = self.long_width(step)
        squared = ((self._relative(goal, achieved) / width) ** 2).sum(-1)
        return -squared / 2 + self._log_peak(width)

    def blur(self, goal: jax.Array, key: jax.Array, step: jax.Array) -> jax.Array:
        """Goals with noise that fades as the smoothing narrows."""
        noise = (self.width(step) - self.end) * jax.random.normal(key, (len(goal), self.dim))
        return goal.at[:, self.columns].add(noise * self.unit)

    def fit(
        self, flow: Params, opt: optax.OptState, norm: Norm, ring: Ring, key: jax.Array,
        step: jax.Array, n: int, long_spans: bool, after_spans: bool,
    ) -> tuple[Params, optax.OptState, Metrics]:  # fmt: skip
        """One step of maximum likelihood on n recent transitions (Alg. 1, 4-6).

        With `long_spans` half of them train the long time spans; with `after_spans`, half of those
        look from s'. Goals are drawn from these spans; the target needs neither.
        """
        key_rows, key_short, key_long, key_noise = jax.random.split(key, 4)
        batch = replay.fetch(ring, replay.sample(ring, key_rows, n, self.config.short))
        left = ring.steps_left[batch.row]
        limit = jnp.minimum(left, self.config.horizon)
        if self.config.offsets == "geometric":
            ahead = replay.geometric_offset(key_short, limit, self.gamma)
        else:
            ahead = replay.uniform_offset(key_short, limit)
        place = jnp.arange(n)
        long = (place % 2 == 1) & long_spans
        offset = jnp.where(long, replay.uniform_offset(key_long, left), ahead)
        goal = replay.future(ring, batch.row, offset)
        width = jnp.where(long, self.long_width(step), self.width(step))
        noise = width[:, None] * jax.random.normal(key_noise, (n, self.dim))
        after = long & (place % 4 == 3) & (offset > 1) & after_spans
        later = after_outcome(jnp.maximum(offset - 1, 1))
        time_code = jnp.select([after, long], [later, long_term(offset)], SHORT_TERM)[:, None]
        context = jax.tree.map(
            lambda a, b: jnp.where(after[:, None], a, b),
            Context.after(batch),
            Context.before(batch),
        )

        def density_loss(flow: Params) -> tuple[jax.Array, jax.Array]:
            log_f = self.log_prob(flow, norm, context, goal, time_code, noise)
            return -log_f.mean(), log_f

        (loss, log_f), grads = jax.value_and_grad(density_loss, has_aux=True)(flow)
        updates, opt = self.optimiser.update(grads, opt, flow)
        n_short = jnp.maximum((~long).sum(), 1)
        return (
            optax.apply_updates(flow, updates),
            opt,
            {
                "density/loss": loss,
                "density/log_f_short": jnp.where(long, 0, log_f).sum() / n_short,
                "density/log_f_max": log_f.max(),
            },
        )
