"""Random demonstrations for the tests, and a task that they fit."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from uvd.demos.memory import Demos, Trajectory

CHEETAH = "HalfCheetahNonExploitable-v0"


class TaskSizes(NamedTuple):
    """What demonstrations must know of a task whose own actions lie in [-2, 2]."""

    id: str = CHEETAH
    obs_dim: int = 16
    action_dim: int = 6

    def unit_action(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action / 2, -1, 1)


def made(
    lengths: Sequence[int] = (7, 4), obs: int = 16, action: int = 6, extra: int = 1, seed: int = 0
) -> list[Trajectory]:
    """Trajectories of random numbers, with `extra` observations after the last step."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return [Trajectory(draw(n + extra, obs), draw(n, action), draw(n)) for n in lengths]


def demos_of(*trajectories: Trajectory) -> Demos:
    return Demos("x", "npz", trajectories)
