"""The formulas of the noise that grows with the action, by hand, in NumPy and in JAX."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.core.errors import UserError
from uvd.tasks.noise import code_noise, find_noise, paper_noise


@pytest.mark.parametrize(
    ("formula", "action", "sigma"),
    [
        (paper_noise, (1.0, 0.7), (0.25 + 0.04) / (2 * math.e)),
        (paper_noise, (0.5, -1.0), 0.0),  # only what exceeds 0.5 counts
        (paper_noise, (1.0, 1.0), 0.09196986),
        (code_noise, (1.0, -1.0), 0.36787944),
        (code_noise, (0.5, 0.0), 0.125 / math.e),
        (code_noise, (0.0, 0.0), 0.0),
        (code_noise, (1.0, 0.7, -1.0, 0.5), (1 + 0.49 + 1 + 0.25) / 4 / math.e),
    ],
)
def test_formulas(formula, action, sigma):
    assert float(jax.jit(formula)(jnp.array(action))) == pytest.approx(sigma)
    for dtype in (np.float32, np.float64):
        found = formula(np.array(action, dtype))
        assert found == pytest.approx(sigma)
        assert found.dtype == np.float64


def test_formulas_are_found_by_name():
    names = ("none", "paper", "code")
    assert [find_noise(name) for name in names] == [None, paper_noise, code_noise]
    with pytest.raises(UserError, match="unknown noise 'papre'; nearest: paper"):
        find_noise("papre")
