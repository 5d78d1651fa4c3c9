"""Demonstrations in memory: what was shown, and what of it every method gets to see.

A trajectory has T steps. Its observations are what each step was decided on, and where the format
it came in keeps it one more, what the last step led to. Actions may be missing: imitation from
observation needs none. All numbers are float32, as the replay memory holds them. `uvd.formats`
reads and writes them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from uvd.errors import UserError
from uvd.tasks.locomotion import CHEETAH_HIDDEN, HUMANOID_HIDDEN

# Upstream's observations, by their size, and the entries of them that our tasks keep. All versions
# of Humanoid begin with the same 45 numbers: 22 joint positions and 23 velocities.
_CHEETAH = {17: np.delete(np.arange(17), CHEETAH_HIDDEN)}
_HUMANOID = {size: np.delete(np.arange(45), HUMANOID_HIDDEN) for size in (45, 348, 376)}
ADAPTED = {
    "HalfCheetahNonExploitable-v0": _CHEETAH,
    "HumanoidNonExploitable-v0": _HUMANOID,
    "HumanoidNonExploitableTerminating-v0": _HUMANOID,
}


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


@dataclass(frozen=True, eq=False)
class Demos:
    """Demonstrations of one task: all of the same sizes, all with actions or none."""

    name: str  # what they were loaded from
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
        """The sum of each trajectory's rewards, where there are any."""
        rewards = [t.reward for t in self.trajectories if t.reward is not None]
        return np.array([r.sum(dtype=np.float64) for r in rewards]) if rewards else None


class Pairs(NamedTuple):
    """Observations and actions chosen from demonstrations, and where each came from."""

    obs: np.ndarray  # [N, D]
    action: np.ndarray | None  # [N, A]
    trajectory: np.ndarray  # [N], its index in the demonstrations
    step: np.ndarray  # [N]


def select(
    demos: Demos, trajectories: int | Sequence[int] | None = None, every: int = 1,
    seed: int | None = None, offset: int | None = None,
) -> Pairs:  # fmt: skip
    """Every n-th step of some trajectories, from step every // 2: the same for every method.

    `offset` is another first step, below `every`. `trajectories`: how many (all if None), or which
    by their index. That many are the first ones; with a seed they are drawn, and fewer of the same
    seed are among more of it.
    """
    count = len(demos.trajectories)
    if not isinstance(every, (int, np.integer)) or every < 1:
        raise UserError(f"every = {every} must be a whole number, at least 1")
    first = every // 2 if offset is None else offset
    if not 0 <= first < every:
        raise UserError(f"offset = {offset} must lie in 0 to every - 1 = {every - 1}")
    if trajectories is None or isinstance(trajectories, (int, np.integer)):
        wanted = count if trajectories is None else trajectories
        if wanted < 1:
            raise UserError(f"trajectories = {wanted} must be at least 1")
        if wanted > count:
            raise UserError(f"{demos.name} has {count} trajectories, {wanted} were asked for")
        order = range(count) if seed is None else np.random.default_rng(seed).permutation(count)
        chosen = [int(i) for i in order[:wanted]]
    else:
        chosen = list(trajectories)
        if not chosen:
            raise UserError(f"{demos.name}: no trajectories were asked for")
        if wrong := [i for i in chosen if not 0 <= i < count]:
            raise UserError(f"{demos.name} has trajectories 0 to {count - 1}, not {wrong[0]}")
    taken = [(i, demos.trajectories[i], first) for i in chosen]
    for i, t, start in taken:
        if start >= t.steps:
            raise UserError(
                f"{demos.name}: trajectory {i} has {t.steps} steps, of which every = {every} "
                f"takes none (the first would be step {start})"
            )
    steps = [np.arange(start, t.steps, every) for _, t, start in taken]
    actions = [t.action[at] for (_, t, _), at in zip(taken, steps) if t.action is not None]
    return Pairs(
        np.concatenate([t.obs[at] for (_, t, _), at in zip(taken, steps)]),
        np.concatenate(actions) if actions else None,
        np.repeat(chosen, [len(at) for at in steps]),
        np.concatenate(steps),
    )


def followed(demos: Demos, pairs: Pairs) -> np.ndarray | None:
    """What each pair's step led to, `[N, D]`; None where the data do not hold it for all."""
    places = list(zip(pairs.trajectory, pairs.step + 1))
    if any(step >= len(demos.trajectories[i].obs) for i, step in places):
        return None
    return np.stack([demos.trajectories[i].obs[step] for i, step in places])


def digest(demos: Demos) -> str:
    """A hash of what the demonstrations hold, whatever the format they are kept in."""
    found = hashlib.sha256()
    for t in demos.trajectories:
        for x in (t.obs, t.action, t.reward):
            found.update(b"none" if x is None else f"{x.shape}".encode() + x.tobytes())
    return found.hexdigest()


def need_actions(demos: Demos, what: str) -> None:
    """Refuses demonstrations of observations alone; `what` needs more."""
    if demos.action_dim is None:
        raise UserError(f"{demos.name} has no actions: {what} needs them")


def with_previous_action(demos: Demos) -> Demos:
    """Each observation with the action before it appended, zeros at the start."""
    need_actions(demos, "the previous action in an observation")

    def extend(t: Trajectory) -> Trajectory:
        assert t.action is not None
        before = np.concatenate([np.zeros_like(t.action[:1]), t.action])[: len(t.obs)]
        return replace(t, obs=np.concatenate([t.obs, before], 1))

    return replace(demos, trajectories=tuple(map(extend, demos.trajectories)))


def summary(demos: Demos) -> list[tuple[str, str]]:
    """What there is to know at a glance, as names and values."""
    steps = [t.steps for t in demos.trajectories]
    returns = demos.returns()
    more = "one more than" if len(demos.trajectories[0].obs) > steps[0] else "as many as"
    each = f"{min(steps):,}" + (f" to {max(steps):,}" if max(steps) > min(steps) else "")

    def numbers(arrays: list[np.ndarray]) -> str:
        low, high = min(x.min() for x in arrays), max(x.max() for x in arrays)
        return f"{arrays[0].shape[1]} numbers, {low:.3g} to {high:.3g}"

    actions = [t.action for t in demos.trajectories if t.action is not None]
    return [
        ("trajectories", str(len(steps))),
        ("steps", f"{sum(steps):,} (each {each})"),
        ("observation", f"{numbers([t.obs for t in demos.trajectories])}, {more} steps"),
        ("action", numbers(actions) if actions else "none"),
        (
            "return",
            "no rewards"
            if returns is None
            else f"mean {returns.mean():.1f}, min {returns.min():.1f}, max {returns.max():.1f}",
        ),
    ]


def fit_demos(demos: Demos, env_id: str, obs_dim: int, action_dim: int) -> Demos:
    """The demonstrations as a task of these sizes sees them, or what does not fit."""
    rules = ADAPTED.get(env_id.rpartition(":")[2], {})
    if demos.obs_dim != obs_dim and demos.obs_dim in rules:
        kept = rules[demos.obs_dim]
        fitted = tuple(replace(t, obs=t.obs[:, kept]) for t in demos.trajectories)
        demos = replace(demos, trajectories=fitted)
    names = FIELDS.get(demos.kind, FIELDS["npz"])
    for field, size, wanted in (
        ("obs", demos.obs_dim, [obs_dim, *rules]),
        ("action", demos.action_dim, [action_dim]),
    ):
        if size not in (None, wanted[0]):
            raise UserError(
                f"{demos.name}: {names[field]} has {size} numbers a step, {env_id} expects "
                f"{wanted[0]}"
                + (f", or upstream's {' or '.join(map(str, wanted[1:]))}" if wanted[1:] else "")
            )
    return demos
