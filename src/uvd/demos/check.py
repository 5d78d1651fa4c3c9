"""What is unusual about demonstrations, said before training starts."""

from collections.abc import Iterable

import numpy as np

from uvd.core.episode import DemoSteps
from uvd.core.normalize import varying_columns
from uvd.demos.memory import Trajectory

NAMED = 8  # columns that a notice names at the most
SEEN = 2000  # first steps of a trajectory that are searched for a repeated movement
WORSE = 1.25  # ratio of distances from which on another `every` is recommended


def phases_missed(trajectory: Trajectory, every: int) -> str | None:
    """A line if every n-th step meets only some phases of a movement that repeats, and a
    neighbour of n meets more of them. Of fewer than ten chosen steps nothing is said."""
    parts = [trajectory.obs[: trajectory.steps], trajectory.action]
    x = np.concatenate([part[:SEEN] for part in parts if part is not None], 1)
    if every < 3 or len(x) < 10 * every:
        return None
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)

    def distance(n: int) -> float:
        """The mean distance of a step to the nearest chosen one."""
        chosen = x[n // 2 :: n]
        squared = (x**2).sum(1)[:, None] + (chosen**2).sum(1) - 2 * x @ chosen.T
        return float(np.sqrt(np.maximum(squared.min(1), 0)).mean())

    better = min(every - 1, every + 1, key=distance)
    if distance(every) < WORSE * distance(better):
        return None
    return (
        f"every = {every} chooses few phases of a movement that repeats: with every = {better} the "
        "chosen steps are nearer to the whole trajectory"
    )


def notices(demos: DemoSteps, played: np.ndarray) -> list[str]:
    """A line for each thing that is unusual, with what follows from it.

    `played` are rows of observations of random play.
    """
    count = len(demos.obs)
    if all((x == x[0]).all() for x in demos if x is not None):
        what = f"the {count} demonstrated steps are all the same" if count > 1 else "a single step"
        return [
            f"{what}: an agent can learn to come there, but not what the expert does before and "
            "after; choose more steps (--every, --trajectories)"
        ]
    lines = []
    low, high = demos.obs.min(0), demos.obs.max(0)
    outside = np.flatnonzero((low > played.max(0)) | (high < played.min(0)))
    if len(outside):
        lines.append(
            f"random play comes nowhere near the demonstrations in {_columns(outside)}: are they "
            "of this task, and in its units?"
        )
    fixed = [i for i in varying_columns(played) if low[i] == high[i]]
    if fixed:
        lines.append(
            f"the demonstrations do not vary in {_columns(fixed)}, where random play does: the "
            "agent learns to keep these values"
        )
    return lines


def _columns(which: Iterable[int]) -> str:
    """Some columns by their numbers."""
    numbers = [int(i) for i in which]
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    word = "column" if len(numbers) == 1 else "columns"
    return f"{word} {', '.join(map(str, numbers[:NAMED]))}{more} of the observation"
