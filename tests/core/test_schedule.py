"""A width that halves, and stops at its end."""

import jax.numpy as jnp
import numpy as np

from uvd.core.schedule import halving


def test_a_width_halves_and_never_falls_below_its_end():
    step = jnp.array([0, 50, 100, 200, 1000])
    expected = [0.8, 0.8 * 0.5**0.5, 0.4, 0.2, 0.15]
    np.testing.assert_allclose(halving(0.8, 100, 0.15, step), expected, rtol=1e-6)


def test_a_width_without_a_half_life_stays():
    assert halving(0.8, 0, 0.1, jnp.array(10_000)) == jnp.float32(0.8)
