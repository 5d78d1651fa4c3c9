"""VDI's densities of states: F(t | s, a) and d(s), conditional RealNVPs fitted together.

    draw recent (s, a), the state t that follows up to T steps later, and Gaussian noise
    one step up  log F((t - s) / unit + noise | s, a) + log d(s / unit + noise)

Both are over the N columns of an observation that vary. Logits are averaged over them (appendix B):
F and d, and so Q, stand for their N-th roots, and where TD discounts Q by gamma, times ahead are
drawn with gamma^N.
"""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import Metrics, Spec
from uvd.core import replay
from uvd.core.config import Count, Layers, NotNegative, Positive, Range, validate
from uvd.core.flows import Params, make_flow
from uvd.core.nets import OptimiserName, gradient_step, make_optimiser
from uvd.core.policy import Norm, normalised
from uvd.core.replay import Ring


@dataclass(frozen=True)
class StateFlowConfig:
    """What the densities model, how finely, and how they learn."""

    lookahead: Count = 4
    """T: how many steps ahead F looks; TD carries its value further."""
    smoothing: NotNegative = 0.1
    """Spatial smoothing: Gaussian noise on the densities' samples, in normalised units."""
    bijectors: Annotated[int, Range(1, 40)] = 5
    """Couplings of both flows: a resolution, the narrowest width is exp(-bijectors / 2)."""
    flow_hidden: Layers = (64, 64)
    """Hidden layers of each coupling's net."""
    flow_lr: Positive = 1e-3
    """Learning rate of the densities."""
    l2: NotNegative = 1e-5
    """L2 regularisation of the densities."""
    short: Count = 50_000
    """The densities learn from so many of the newest transitions: the short replay buffer."""

    def __post_init__(self) -> None:
        validate(self)


class FlowParams(NamedTuple):
    """Parameters of both flows, stacked: they learn in the same products."""

    nets: Params  # [2, ...]

    @property
    def future(self) -> Params:
        """Those of F(t | s, a)."""
        return jax.tree.map(lambda x: x[0], self.nets)

    @property
    def state(self) -> Params:
        """Those of d(s), whose context is zero."""
        return jax.tree.map(lambda x: x[1], self.nets)


class StateFlows:
    """Both flows with their settings bound; observations are in the task's own units."""

    def __init__(
        self, config: StateFlowConfig, spec: Spec, optimiser: OptimiserName, lr_half: int
    ) -> None:
        self.config, self.columns, self.dim = config, spec.columns, len(spec.columns)
        self.context_dim, width = spec.obs_dim + spec.action_dim, config.smoothing
        self.flow = make_flow(self.dim, self.context_dim, config.bijectors, config.flow_hidden)
        peak = -self.dim * math.log(width * math.sqrt(2 * math.pi)) if width else math.inf
        self.log_bound = min(self.flow.log_bound, peak) / self.dim
        self.optimiser = make_optimiser(optimiser, config.flow_lr, lr_half, config.l2)

    def init(self, key: jax.Array) -> FlowParams:
        """Fresh flows: identities."""
        return FlowParams(jax.vmap(self.flow.init)(jax.random.split(key)))

    def _log_prob(self, params: Params, x: jax.Array, context: jax.Array) -> jax.Array:
        return jax.vmap(self.flow.log_prob, (None, 0, 0))(params, x, context) / self.dim

    def _change(
        self, norm: Norm, obs: jax.Array, action: jax.Array, target: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What F models, and its context."""
        x = (target - obs)[..., self.columns] / norm.obs_scale[self.columns]
        return x, jnp.concatenate([normalised(norm, obs), action], -1)

    def _place(self, norm: Norm, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What d models, and its context."""
        x = ((obs - norm.obs_shift) / norm.obs_scale)[..., self.columns]
        return x, jnp.zeros((len(obs), self.context_dim))

    def log_f(
        self, future: Params, norm: Norm, obs: jax.Array, action: jax.Array, target: jax.Array
    ) -> jax.Array:
        """log F(target | obs, action), within its bound; targets are whole observations."""
        log_f = self._log_prob(future, *self._change(norm, obs, action, target))
        return jnp.minimum(log_f, self.log_bound)

    def log_d(self, state: Params, norm: Norm, obs: jax.Array) -> jax.Array:
        """log d(obs)."""
        return self._log_prob(state, *self._place(norm, obs))

    def fit(
        self, flows: FlowParams, opt: optax.OptState, norm: Norm, ring: Ring, key: jax.Array,
        n: int, gamma: float,
    ) -> tuple[FlowParams, optax.OptState, Metrics]:  # fmt: skip
        """One step of maximum likelihood of both on n recent transitions (Alg. 2, 4-8)."""
        key_rows, key_offset, key_noise = jax.random.split(key, 3)
        batch = replay.fetch(ring, replay.sample(ring, key_rows, n, self.config.short))
        limit = jnp.minimum(ring.steps_left[batch.row], self.config.lookahead)
        offset = replay.geometric_offset(key_offset, limit, gamma**self.dim)
        target = ring.obs[replay.later(ring, batch.row, offset)]
        noise = jax.random.normal(key_noise, (2, n, self.dim)) * self.config.smoothing
        change, context = self._change(norm, batch.obs, batch.action, target)
        place, none = self._place(norm, batch.obs)
        x, context = jnp.stack([change, place]), jnp.stack([context, none])

        def density_loss(flows: FlowParams) -> tuple[jax.Array, Metrics]:
            log_f, log_d = jax.vmap(self._log_prob)(flows.nets, x + noise, context)
            loss = -self.dim * (log_f.mean() + log_d.mean())
            return loss, {
                "density/loss": loss,
                "density/log_f": log_f.mean(),
                "density/log_f_max": log_f.max(),
                "density/log_d": log_d.mean(),
            }

        return gradient_step(density_loss, self.optimiser, flows, opt)
