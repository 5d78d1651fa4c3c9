"""Making networks and their optimisers: the JAX half of `policy.MLP`."""

import itertools
from collections.abc import Callable
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import optax

from uvd.core.policy import MLP, mlp

OptimiserName = Literal["adam", "rmsprop"]
Params = TypeVar("Params")
Aux = TypeVar("Aux")


def init_mlp(
    key: jax.Array,
    sizes: tuple[int, ...],
    last_scale: float = 1.0,
    last_bias: jax.Array | float | None = None,
) -> MLP:
    """Uniform in ±1/sqrt(fan-in), as TD3's reference has it.

    `last_scale` shrinks the last layer (0: the net starts as a constant) and `last_bias` sets it.
    """
    weights, biases = [], []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        key_w, key_b = jax.random.split(jax.random.fold_in(key, i))
        last = i == len(sizes) - 2
        bound = (last_scale if last else 1.0) / max(n, 1) ** 0.5
        weights.append(jax.random.uniform(key_w, (n, m), minval=-bound, maxval=bound))
        bias = jax.random.uniform(key_b, (m,), minval=-bound, maxval=bound)
        biases.append(
            jnp.full((m,), last_bias, jnp.float32) if last and last_bias is not None else bias
        )
    return MLP(tuple(weights), tuple(biases))


def init_twin(
    key: jax.Array, sizes: tuple[int, ...], last_scale: float, last_bias: jax.Array | float
) -> MLP:
    """Two critics as one stack: every product is then one batched product."""
    return jax.vmap(lambda k: init_mlp(k, sizes, last_scale, last_bias))(jax.random.split(key))


def twin(net: MLP, x: jax.Array, layer_norm: bool = False) -> jax.Array:
    """Both critics' outputs, `[2, batch]`."""
    return jax.vmap(lambda one: mlp(one, x, layer_norm))(net)[..., 0]


def polyak(target: MLP, online: MLP, tau: jax.Array | float) -> MLP:
    """The slow copy, moved a share `tau` towards the online one."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


def make_optimiser(
    name: OptimiserName, rate: float, half: int = 0, l2: float = 0.0
) -> optax.GradientTransformation:
    """The optimiser of that name, its rate halved after `half` updates (0: it stays).

    `l2` is the weight of an L2 penalty on the parameters.
    """
    schedule = (lambda n: rate / (1 + n / half)) if half else rate
    if name == "adam":
        optimiser = optax.adam(schedule)
    else:  # as PyTorch has it, which the paper's code ran on
        optimiser = optax.rmsprop(schedule, decay=0.99, eps=1e-8, eps_in_sqrt=False)
    return optax.chain(optax.add_decayed_weights(l2), optimiser) if l2 else optimiser


def gradient_step(
    loss_fn: Callable[[Params], tuple[jax.Array, Aux]],
    optimiser: optax.GradientTransformation,
    params: Params,
    opt: optax.OptState,
) -> tuple[Params, optax.OptState, Aux]:
    """One step of the optimiser down a loss, and what the loss returns beside its value."""
    grads, aux = jax.grad(loss_fn, has_aux=True)(params)
    updates, opt = optimiser.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, aux
