"""VDI's densities as conditional RealNVPs: F(t | s, a) and d(s), by maximum likelihood.

Both are over the observation's live columns in normalised units, F relative to the present. With
averaged logits (appendix B) they stand for their N-th roots.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Spec
from uvd.core.flows import Params, make_flow
from uvd.core.policy import normalised


class Flows(NamedTuple):
    """Parameters of both densities, one stack: they learn in the same products."""

    nets: Params  # [2, ...]

    @property
    def future(self) -> Params:
        """Those of F(t | s, a)."""
        return jax.tree.map(lambda x: x[0], self.nets)

    @property
    def state(self) -> Params:
        """Those of d(s), whose context is nought."""
        return jax.tree.map(lambda x: x[1], self.nets)


class Densities(NamedTuple):
    """Both densities, seen from the algorithm: whole observations in the task's own units."""

    init: Callable[[jax.Array], Flows]
    log_f: Callable[..., jax.Array]  # (params, norm, obs, action, target)
    log_d: Callable[..., jax.Array]  # (params, norm, obs)
    log_both: Callable[..., jax.Array]  # (flows, norm, obs, action, target, noise)
    live: np.ndarray  # the observation's columns that they are over
    root: int  # N where logits are averaged, or 1
    log_bound: float  # the flow's bound or that of the smoothing's kernel


def make_densities(
    spec: Spec, bijectors: int, hidden: tuple[int, ...], average: bool, narrowest: float
) -> Densities:
    """F(t | s, a) over what changes until then, and d(s), under at least so much smoothing."""
    live = spec.columns
    dim = len(live)
    flow = make_flow(dim, spec.obs_dim + spec.action_dim, bijectors, hidden)
    root = dim if average else 1
    peak = -dim * math.log(narrowest * math.sqrt(2 * math.pi)) if narrowest else math.inf
    log_prob = jax.vmap(flow.log_prob, (None, 0, 0))

    def ahead(norm, obs, action, target):
        x = (target - obs)[..., live] / norm.obs_scale[live]
        return x, jnp.concatenate([normalised(norm, obs), action], -1)

    def here(norm, obs):
        x = ((obs - norm.obs_shift) / norm.obs_scale)[..., live]
        return x, jnp.zeros((len(obs), spec.obs_dim + spec.action_dim))

    def log_f(params, norm, obs, action, target):
        return log_prob(params, *ahead(norm, obs, action, target)) / root

    def log_d(params, norm, obs):
        return log_prob(params, *here(norm, obs)) / root

    def log_both(flows, norm, obs, action, target, noise):
        both = zip(ahead(norm, obs, action, target), here(norm, obs))
        x, context = (jnp.stack(pair) for pair in both)
        return jax.vmap(log_prob)(flows.nets, x + noise, context) / root

    def init(key: jax.Array) -> Flows:
        return Flows(jax.vmap(flow.init)(jax.random.split(key)))

    return Densities(init, log_f, log_d, log_both, live, root, min(flow.log_bound, peak) / root)
