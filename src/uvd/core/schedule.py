"""Numbers that change while learning goes on."""

import jax
import jax.numpy as jnp


def halving(start: float, half: int, end: float, step: jax.Array) -> jax.Array:
    """A width that halves every `half` updates (0: it stays) and never falls below its end."""
    return jnp.maximum(start * 0.5 ** (step / half), end) if half else jnp.asarray(start)
