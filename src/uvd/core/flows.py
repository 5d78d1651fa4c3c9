"""Conditional RealNVP (section 2.4, Table 1): the density that serves as a value function.

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

Params = tuple[MLP, ...]  # a net for each coupling


class Flow(NamedTuple):
    """A family of densities over `dim` numbers given a context vector."""

    init: Callable[[jax.Array], Params]
    log_prob: Callable[[Params, jax.Array, jax.Array], jax.Array]
    sample: Callable[[Params, jax.Array, jax.Array], jax.Array]
    log_bound: float  # no density of this family exceeds exp(log_bound)


def coupling_masks(dim: int, bijectors: int, seed: int = 0) -> np.ndarray:
    """Which dimensions each coupling moves, `[bijectors, dim]` of 0 and 1.

    The others (and the context) tell it how far. With one dimension there is no other half: the
    context alone conditions every coupling.
    """
    rng = np.random.default_rng(seed)
    masks: list[np.ndarray] = []
    while len(masks) < bijectors:
        first = np.isin(np.arange(dim), rng.permutation(dim)[: (dim + 1) // 2])
        masks += [first] if dim == 1 else [first, ~first]
    return np.stack(masks[:bijectors]).astype(np.float32)


def make_flow(
    dim: int,
    context: int,
    bijectors: int = 6,
    hidden: tuple[int, ...] = (300, 300),
) -> Flow:
    """The paper's simplified RealNVP over `dim` dimensions given `context` numbers.

    `bijectors` is a resolution: each pair of couplings can narrow every dimension by a factor e, so
    the narrowest Gaussian has a standard deviation of exp(-bijectors / 2).
    """
    moved = coupling_masks(dim, bijectors)

    def init(key: jax.Array) -> Params:
        # The last layer starts at zero: the flow is the identity, and its first steps are tame.
        sizes = (dim + context, *hidden, 2 * dim)
        return tuple(init_mlp(k, sizes, 0.0) for k in jax.random.split(key, bijectors))

    def scale_shift(
        net: MLP, move: np.ndarray, x: jax.Array, ctx: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        # What is moved is hidden from the net, and what it says of the rest is dropped: with masks
        # instead of indices every coupling has the same shape, also for odd dimensions.
        log_scale, shift = jnp.split(mlp(net, jnp.concatenate([x * (1 - move), ctx])), 2)
        return jnp.tanh(log_scale) * move, shift * move

    def log_prob(params: Params, x: jax.Array, ctx: jax.Array) -> jax.Array:
        # Data to noise: z = (x - shift) exp(-log_scale), and log|dz/dx| = -sum log_scale.
        log_det = jnp.zeros(())
        for net, move in zip(params, moved, strict=True):
            log_scale, shift = scale_shift(net, move, x, ctx)
            x = (x - shift) * jnp.exp(-log_scale)
            log_det -= log_scale.sum()
        return log_det - 0.5 * (x @ x) - 0.5 * dim * math.log(2 * math.pi)

    def sample(params: Params, key: jax.Array, ctx: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (dim,))
        for net, move in reversed(list(zip(params, moved, strict=True))):
            log_scale, shift = scale_shift(net, move, x, ctx)
            x = x * jnp.exp(log_scale) + shift
        return x

    log_bound = float(moved.sum()) - 0.5 * dim * math.log(2 * math.pi)
    return Flow(init, log_prob, sample, log_bound)
