"""Demonstrations in memory.

A trajectory has T steps. Row t of its observations is what step t was decided on. Some formats keep
one more row: the observation after the last step. Actions may be missing: imitation from
observation needs none. All numbers are float32, as in the replay buffer.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from uvd.core.config import require
from uvd.tasks.env import EnvTask
from uvd.tasks.task import Task

# What each format calls the arrays of a trajectory.
_GAIL = {"obs": "obs_B_T_Do", "action": "a_B_T_Da", "reward": "r_B_T"}
FIELDS = {
    "gail": _GAIL,
    "shipped": _GAIL,
    "minari": {"obs": "observations", "action": "actions", "reward": "rewards"},
    "npz": {"obs": "obs", "action": "action", "reward": "reward"},
}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One demonstration of T steps."""

    obs: np.ndarray  # [T or T + 1, D]
    action: np.ndarray | None = None  # [T, A]
    reward: np.ndarray | None = None  # [T]

    @property
    def steps(self) -> int:
        """T; of observations alone, as many as there are."""
        known = [x for x in (self.action, self.reward) if x is not None]
        return len(known[0] if known else self.obs)

    def arrays(self) -> dict[str, np.ndarray]:
        """Those arrays that are there, by name."""
        return {name: x for name, x in vars(self).items() if x is not None}


@dataclass(frozen=True, eq=False)
class Demos:
    """Demonstrations of one task: all of the same sizes, all with actions or none."""

    name: str  # of the file, folder or dataset
    kind: str  # minari, gail, npz or shipped
    trajectories: tuple[Trajectory, ...]

    @property
    def obs_dim(self) -> int:
        return self.trajectories[0].obs.shape[1]

    @property
    def action_dim(self) -> int | None:
        action = self.trajectories[0].action
        return None if action is None else action.shape[1]

    def returns(self) -> np.ndarray | None:
        """The sum of each trajectory's rewards; None without rewards."""
        rewards = [t.reward for t in self.trajectories if t.reward is not None]
        return np.array([r.sum(dtype=np.float64) for r in rewards]) if rewards else None

    def changed(self, change: Callable[[Trajectory], Trajectory]) -> "Demos":
        """The same demonstrations with every trajectory changed."""
        return replace(self, trajectories=tuple(map(change, self.trajectories)))


def digest(demos: Demos) -> str:
    """A hash of the demonstrations' numbers; it does not depend on the file format."""
    sha256 = hashlib.sha256()
    for t in demos.trajectories:
        for x in (t.obs, t.action, t.reward):
            sha256.update(b"none" if x is None else f"{x.shape}".encode() + x.tobytes())
    return sha256.hexdigest()


def summary(demos: Demos) -> list[tuple[str, str]]:
    """The demonstrations in a few lines: names and values."""
    lengths = [t.steps for t in demos.trajectories]
    returns = demos.returns()
    each = f"{min(lengths):,}" + (f" to {max(lengths):,}" if max(lengths) > min(lengths) else "")
    rows = "one more than" if len(demos.trajectories[0].obs) > lengths[0] else "as many as"

    def numbers(arrays: list[np.ndarray]) -> str:
        low, high = min(x.min() for x in arrays), max(x.max() for x in arrays)
        return f"{arrays[0].shape[1]} numbers, {low:.3g} to {high:.3g}"

    actions = [t.action for t in demos.trajectories if t.action is not None]
    span = "no rewards"
    if returns is not None:
        span = f"mean {returns.mean():.1f}, min {returns.min():.1f}, max {returns.max():.1f}"
    return [
        ("trajectories", str(len(lengths))),
        ("steps", f"{sum(lengths):,} (each {each})"),
        ("observation", f"{numbers([t.obs for t in demos.trajectories])}, {rows} steps"),
        ("action", numbers(actions) if actions else "none"),
        ("return", span),
    ]


def fit_demos(demos: Demos, task: Task | EnvTask) -> Demos:
    """The demonstrations with the task's own observations; refused if their sizes do not fit.

    Observations of upstream's HalfCheetah or Humanoid lose the entries that our variants hide.
    """
    upstream = _upstream_entries(task.id)
    if demos.obs_dim != task.obs_dim and demos.obs_dim in upstream:
        entries = upstream[demos.obs_dim]
        demos = demos.changed(lambda t: replace(t, obs=t.obs[:, entries]))
    fields = FIELDS[demos.kind]
    also = f", or upstream's {' or '.join(map(str, upstream))}" if upstream else ""
    for field, size, expected, more in (
        ("obs", demos.obs_dim, task.obs_dim, also),
        ("action", demos.action_dim, task.action_dim, ""),
    ):
        require(
            size in (None, expected),
            f"{demos.name}: {fields[field]} has {size} numbers a step, {task.id} expects "
            f"{expected}{more}",
        )
    return demos


def _upstream_entries(task_id: str) -> dict[int, np.ndarray]:
    """For each size of upstream's observations, the entries that our variant of the task keeps."""
    from uvd.tasks.locomotion import CHEETAH_HIDDEN, HUMANOID_HIDDEN  # imports the simulator

    name = task_id.rpartition(":")[2]
    if name == "HalfCheetahNonExploitable-v0":
        return {17: np.delete(np.arange(17), CHEETAH_HIDDEN)}
    if name in ("HumanoidNonExploitable-v0", "HumanoidNonExploitableTerminating-v0"):
        # All versions of Humanoid begin with 22 joint positions and 23 velocities.
        return {size: np.delete(np.arange(45), HUMANOID_HIDDEN) for size in (45, 348, 376)}
    return {}
