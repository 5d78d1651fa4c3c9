"""How behaviour departs from the policy, for worker processes; `device.explore` is its JAX half."""

from typing import NamedTuple

import numpy as np


class Exploration(NamedTuple):
    """How the behaviour departs from the policy."""

    noise: float = 0.0  # standard deviation of Gaussian noise on the action
    random: float = 0.0  # share of steps whose action is drawn at random
    hold: int = 1  # mean number of steps for which a random action is held
    beyond: bool = False  # noise may carry an action beyond its bounds, to be cut by who plays


def explore(
    how: Exploration, rng: np.random.Generator, action: np.ndarray, last: np.ndarray, wild: bool
) -> tuple[np.ndarray, bool]:
    """The action really taken, and whether it is a random one (`last` and `wild`: one step ago).

    The rules are those of `device.explore`: random stretches last `hold` steps on average and fill
    a share `random` of the time; within one the action is held.
    """
    if wild and rng.random() < 1 - 1 / how.hold:
        return last, True
    if rng.random() < how.random / (how.random + how.hold * (1 - how.random)):
        return rng.uniform(-1, 1, action.shape).astype(np.float32), True
    if how.noise:
        noise = np.float32(how.noise) * rng.standard_normal(action.shape, np.float32)
        action = action + noise
        action = action if how.beyond else np.minimum(np.maximum(action, -1), 1)
    return action, False
