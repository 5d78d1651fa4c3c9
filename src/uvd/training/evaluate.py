"""How well an episode went: success or return, and whether the object moved."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from uvd.core.episode import Episode
from uvd.tasks.env import EnvTask
from uvd.tasks.task import Task

Array = Any  # of JAX or NumPy


def scores(task: Task | EnvTask, episode: Episode) -> dict[str, Array]:
    """Success after the last step and after any; of a task without goals, the return."""
    if not task.goal_dim:
        return {"return": episode.reward.astype(float).sum()}
    return {"success_final": episode.success[-1], "success_ever": episode.success.any()}


def moved(radius: float | None, episode: Episode) -> Array:
    """Whether the achieved goal changed: by a fifth of the success radius, where there is one.

    FetchSlide's puck drifts by some millimetres untouched.
    """
    shift = episode.achieved[-1] - episode.achieved[0]
    return (shift**2).sum() > max(1e-3, 0.2 * (radius or 0.0)) ** 2


def collected(task: Task | EnvTask, episode: Episode) -> dict[str, Array]:
    """What is reported of a training episode."""
    rows = {f"collect/{name}": x for name, x in scores(task, episode).items()}
    return {**rows, "collect/moved": moved(task.radius, episode)} if task.goal_dim else rows


def seed_means(seeds: Sequence[Sequence[dict[str, Array]]]) -> dict[str, np.ndarray]:
    """The mean of each number over each seed's episodes, `[seed]`; NaN for a seed without any."""
    names = dict.fromkeys(name for episodes in seeds for episode in episodes for name in episode)

    def mean(name: str, episodes: Sequence[dict[str, Array]]) -> np.float32:
        return np.mean([e[name] for e in episodes] or [np.nan], dtype=np.float32)

    return {name: np.array([mean(name, episodes) for episodes in seeds]) for name in names}
