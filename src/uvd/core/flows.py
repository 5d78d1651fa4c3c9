"""Conditional RealNVP (section 2.4 and appendix B): the density that serves as a value function.

A chain of affine couplings, each of which scales and shifts one half of the dimensions by amounts
predicted from the other half and the context. Log-scales pass through tanh, so the density has a
largest value, `log_bound`, which the critic's target uses. The order of dimensions is drawn at
random in pairs of couplings, so that each pair moves every dimension once.

The mathematics is written for one sample; batches are `vmap`ped outside.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.core.nets import init_mlp
from uvd.core.policy import MLP, mlp

Params = tuple[MLP, ...]


class Flow(NamedTuple):
    """A family of densities over `dim` numbers given a context vector."""

    init: Callable[[jax.Array], Params]
    log_prob: Callable[[Params, jax.Array, jax.Array], jax.Array]
    sample: Callable[[Params, jax.Array, jax.Array], jax.Array]
    log_bound: float  # no density of this family exceeds exp(log_bound)


def coupling_order(dim: int, bijectors: int, seed: int) -> list[np.ndarray]:
    """Which dimensions each coupling moves; the others (and the context) tell it how far.

    With one dimension there is no other half: the context alone conditions every coupling.
    """
    rng = np.random.default_rng(seed)
    moved: list[np.ndarray] = []
    while len(moved) < bijectors:
        order = rng.permutation(dim)
        half = [order] if dim == 1 else [order[: (dim + 1) // 2], order[(dim + 1) // 2 :]]
        moved += [np.sort(h) for h in half]
    return moved[:bijectors]


def make_flow(
    dim: int,
    context: int,
    bijectors: int = 6,
    hidden: tuple[int, ...] = (300, 300),
    order_seed: int = 0,
) -> Flow:
    """The paper's simplified RealNVP over `dim` dimensions given `context` numbers.

    `bijectors` is a resolution: each pair of couplings can narrow every dimension by a factor e, so
    the narrowest Gaussian has a standard deviation of exp(-bijectors / 2).
    """
    moved = coupling_order(dim, bijectors, order_seed)
    kept = [np.setdiff1d(np.arange(dim), m) for m in moved]

    def init(key: jax.Array) -> Params:
        # The last layer starts at zero: the flow is the identity, and its first steps are tame.
        return tuple(
            init_mlp(k, (len(kept[i]) + context, *hidden, 2 * len(moved[i])), 0.0)
            for i, k in enumerate(jax.random.split(key, bijectors))
        )

    def scale_shift(net: MLP, still: jax.Array, ctx: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_scale, shift = jnp.split(mlp(net, jnp.concatenate([still, ctx])), 2)
        return jnp.tanh(log_scale), shift

    def log_prob(params: Params, x: jax.Array, ctx: jax.Array) -> jax.Array:
        # Data to noise: z = (x - shift) exp(-log_scale), and log|dz/dx| = -sum log_scale.
        log_det = jnp.zeros(())
        for net, m, k in zip(params, moved, kept, strict=True):
            log_scale, shift = scale_shift(net, x[k], ctx)
            x = x.at[m].set((x[m] - shift) * jnp.exp(-log_scale))
            log_det -= log_scale.sum()
        return log_det - 0.5 * (x @ x) - 0.5 * dim * math.log(2 * math.pi)

    def sample(params: Params, key: jax.Array, ctx: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (dim,))
        for net, m, k in reversed(list(zip(params, moved, kept, strict=True))):
            log_scale, shift = scale_shift(net, x[k], ctx)
            x = x.at[m].set(x[m] * jnp.exp(log_scale) + shift)
        return x

    log_bound = float(sum(len(m) for m in moved)) - 0.5 * dim * math.log(2 * math.pi)
    return Flow(init, log_prob, sample, log_bound)
