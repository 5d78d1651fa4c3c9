"""Heads of critics: how an output becomes a value, and how it is fitted to a target."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

HeadName = Literal["linear", "huber", "tanh", "sigmoid"]


class Head(NamedTuple):
    """How a critic's output becomes a value, and how it is fitted to a target."""

    value: Callable[[jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array], jax.Array]  # (output, target)
    utility: Callable[[jax.Array], jax.Array]  # what the actor ascends: increasing in the value
    start: jax.Array | float  # initial output


def _squared(value: Callable[[jax.Array], jax.Array], start: jax.Array | float) -> Head:
    return Head(value, lambda x, y: (value(x) - y) ** 2, value, start)


def _linear(bound: jax.Array | float, start: float) -> Head:
    return _squared(lambda x: x, start * bound)


def _huber(bound: jax.Array | float, start: float) -> Head:
    """A tenth of the output, fitted by Huber's loss: VDI's critic in its authors' code."""

    def value(x: jax.Array) -> jax.Array:
        return x / 10

    return Head(value, lambda x, y: optax.huber_loss(x / 10, y), value, 10 * start * bound)


def _tanh(bound: jax.Array | float, start: float) -> Head:
    return _squared(lambda x: bound * jnp.tanh(x), jnp.arctanh(start))


def _sigmoid(bound: jax.Array | float, start: float) -> Head:
    """Spans (0, bound) and fits by log loss.

    Log loss, like squared loss, is least at the mean of the targets: unbiased under noise. It keeps
    its precision where values are small, and the actor ascends the logarithm of the value, so
    states far from their goal count as much as near ones.
    """
    return Head(
        lambda x: bound * jax.nn.sigmoid(x),
        lambda x, y: optax.sigmoid_binary_cross_entropy(x, y / bound),
        jax.nn.log_sigmoid,
        jnp.log(start) - jnp.log1p(-start),
    )


def make_head(name: HeadName, bound: jax.Array | float, start: float) -> Head:
    """The head of that name for values of at most `bound`, at first `start` times that."""
    heads = {"linear": _linear, "huber": _huber, "tanh": _tanh, "sigmoid": _sigmoid}
    return heads[name](bound, start)
