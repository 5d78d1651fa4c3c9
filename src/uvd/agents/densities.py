"""What VDI asks of its densities, and those of the paper: conditional RealNVPs.

The flows are F(t | s, a) and d(s), by maximum likelihood. Both are over the observation's live
columns in normalised units, F relative to the present. With averaged logits (appendix B) they stand
for their N-th roots.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Metrics, Spec
from uvd.core.flows import Params, make_flow
from uvd.core.policy import normalised


class Densities(NamedTuple):
    """F(t | s, a) and d(t) of every t that is shown, settings bound: whatever they are made of.

    A t is in the task's own units, the columns that are compared.
    """

    shown: jax.Array  # [shown, columns]: every t
    init: Callable[[jax.Array], Any]  # what is to learn, from a key
    fit: Callable[..., tuple[Any, Metrics]]  # (learned, norm, ring, key, step): an update later
    current_f: Callable[..., Any]  # (learned, step): F as it is now
    log_d: Callable[..., jax.Array]  # (learned, norm, ring, step) -> [shown], as it is now
    log_f: Callable[..., jax.Array]  # (F, norm, batch, t [batch, columns]) -> [batch]
    log_f_all: Callable[..., jax.Array]  # (F, norm, batch) -> [shown, batch]
    log_bound: float  # which log F never exceeds


class Stack(NamedTuple):
    """Parameters of both flows, one stack: they learn in the same products."""

    nets: Params  # [2, ...]

    @property
    def future(self) -> Params:
        """Those of F(t | s, a)."""
        return jax.tree.map(lambda x: x[0], self.nets)

    @property
    def state(self) -> Params:
        """Those of d(s), whose context is nought."""
        return jax.tree.map(lambda x: x[1], self.nets)


class Flows(NamedTuple):
    """Both flows as functions of whole observations in the task's own units."""

    init: Callable[[jax.Array], Stack]
    log_f: Callable[..., jax.Array]  # (params, norm, obs, action, target)
    log_d: Callable[..., jax.Array]  # (params, norm, obs)
    log_both: Callable[..., jax.Array]  # (stack, norm, obs, action, target, noise)
    live: np.ndarray  # the observation's columns that they are over
    root: int  # N where logits are averaged, or 1
    log_bound: float  # the flow's bound or that of the smoothing's kernel


def make_flows(
    spec: Spec, bijectors: int, hidden: tuple[int, ...], average: bool, narrowest: float
) -> Flows:
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

    def log_both(stack, norm, obs, action, target, noise):
        both = zip(ahead(norm, obs, action, target), here(norm, obs))
        x, context = (jnp.stack(pair) for pair in both)
        return jax.vmap(log_prob)(stack.nets, x + noise, context) / root

    def init(key: jax.Array) -> Stack:
        return Stack(jax.vmap(flow.init)(jax.random.split(key)))

    return Flows(init, log_f, log_d, log_both, live, root, min(flow.log_bound, peak) / root)
