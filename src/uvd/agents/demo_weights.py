"""How much each demonstrated step t counts: w(t) = min(mean d / d(t), bound) (Eq. 8).

The gradient of log d(t) is that of d(t), divided by d(t): rarely visited steps count more.
"""

import math

import jax
import jax.numpy as jnp

from uvd.agents.agent import Metrics


def log_mean(log_x: jax.Array) -> jax.Array:
    """The logarithm of the mean, from logarithms."""
    return jax.nn.logsumexp(log_x) - math.log(len(log_x))


def log_weights(log_d: jax.Array, bound: float) -> jax.Array:
    """log min(mean d / d, bound) of each demonstrated step (appendix A.2)."""
    return jnp.minimum(log_mean(log_d) - log_d, math.log(bound))


def draw(key: jax.Array, weight: jax.Array, n: int) -> jax.Array:
    """n indices, each drawn in proportion to its weight."""
    total = jnp.cumsum(weight)
    u = jax.random.uniform(key, (n,)) * total[-1]
    return jnp.minimum(jnp.searchsorted(total, u, side="right"), len(weight) - 1)


def demo_metrics(log_d: jax.Array, weight: jax.Array) -> Metrics:
    """How the agent's density spreads over demonstrated steps, and what their weights are."""
    return {
        "demos/log_d_min": log_d.min(),
        "demos/log_d_mean": log_d.mean(),
        "demos/log_d_max": log_d.max(),
        "demos/weight_max": weight.max(),
        # 1: all weigh the same; 1 / number of steps: a single one has all the weight
        "demos/spread": weight.sum() ** 2 / (weight**2).sum() / len(weight),
    }
