"""Noise that grows with the action: its standard deviation, by two formulas.

Each takes one action, a NumPy or a JAX array. No JAX here: worker processes import this.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from uvd.core.config import require_known

Sigma = Callable[[Any], Any]  # the noise's standard deviation for one action

_E = np.float64(math.e)  # NumPy divides by it in double precision, JAX in its own


def paper_noise(action: Any) -> Any:
    """The paper's formula: sigma = |max(0, a - 0.5)|² / 2e."""
    return ((action - 0.5).clip(0) ** 2).sum() / (2 * _E)


def code_noise(action: Any) -> Any:
    """The formula of the authors' released code: sigma = mean(a²) / e."""
    return (action**2).mean() / _E


NOISES: dict[str, Sigma | None] = {"none": None, "paper": paper_noise, "code": code_noise}


def find_noise(name: str) -> Sigma | None:
    """The formula of that name; None stands for no noise."""
    require_known(name, NOISES, "noise")
    return NOISES[name]
