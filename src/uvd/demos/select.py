"""The pairs of observation and action that an algorithm learns from."""

from dataclasses import dataclass, replace

import numpy as np

from uvd.core.config import require
from uvd.core.episode import DemoSteps
from uvd.core.errors import UserError
from uvd.demos.check import phases_missed
from uvd.demos.files import load_demos
from uvd.demos.memory import Demos, Trajectory, digest, fit_demos
from uvd.tasks.env import EnvTask
from uvd.tasks.task import Task


@dataclass(frozen=True)
class DemoSettings:
    """Demonstrations to imitate: required for algorithms that imitate, refused for others."""

    demos: str | None = None
    """File, folder, local Minari dataset or shipped name of demonstrations (`uvd list`)."""
    trajectories: int | None = None
    """How many of them, the first ones (all if not given)."""
    every: int = 1
    """Only every n-th step of each."""
    offset: int | None = None
    """The first step taken (every // 2 if not given)."""
    previous_action: bool = False
    """Append the previous action to every observation, of the agent and of the demonstrations."""


def demo_pairs(
    settings: DemoSettings, task: Task | EnvTask, needs_actions_for: str | None = None
) -> tuple[DemoSteps, str, str | None]:
    """The chosen pairs as the task has them, a hash of all the demonstrations, and a notice if
    the choice misses phases of a movement.

    `task` is the one whose observations are without the previous action. `needs_actions_for` names
    an algorithm that cannot learn from observations alone.
    """
    assert settings.demos is not None
    loaded = load_demos(settings.demos)
    demos = fit_demos(loaded, task)
    if settings.previous_action and not needs_actions_for:
        needs_actions_for = "the previous action in an observation"
    if needs_actions_for and demos.action_dim is None:
        raise UserError(f"{demos.name} has no actions: {needs_actions_for} needs them")

    def convert(t: Trajectory) -> Trajectory:
        if t.action is None:
            return t
        obs, action = t.obs, task.unit_action(t.action)
        if settings.previous_action:
            previous = np.concatenate([np.zeros_like(action[:1]), action])[: len(obs)]
            obs = np.concatenate([obs, previous], 1)
        return replace(t, obs=obs, action=action)

    demos = demos.changed(convert)
    pairs = select(demos, settings.trajectories, settings.every, settings.offset)
    # Several trajectories are seldom in the same phase.
    first, *others = demos.trajectories[: settings.trajectories]
    return pairs, digest(loaded), None if others else phases_missed(first, settings.every)


def select(
    demos: Demos, trajectories: int | None = None, every: int = 1, offset: int | None = None
) -> DemoSteps:
    """Every n-th step of the first trajectories, from step `offset` (every // 2 if None)."""
    there = len(demos.trajectories)
    count = there if trajectories is None else trajectories
    for name, value in (("every", every), ("trajectories", count)):
        whole = isinstance(value, (int, np.integer)) and value >= 1
        require(whole, f"{name} = {value} must be a whole number, at least 1")
    first = every // 2 if offset is None else offset
    inside = isinstance(first, (int, np.integer)) and 0 <= first < every
    require(inside, f"offset = {offset} must lie in 0 to every - 1 = {every - 1}")
    require(count <= there, f"{demos.name} has {there} trajectories, {count} were asked for")
    chosen = demos.trajectories[:count]
    for i, t in enumerate(chosen):
        require(
            first < t.steps,
            f"{demos.name}: trajectory {i} has {t.steps} steps, of which every = {every} "
            f"takes none (the first would be step {first})",
        )
    steps = [np.arange(first, t.steps, every) for t in chosen]
    obs = np.concatenate([t.obs[s] for t, s in zip(chosen, steps)])
    actions = [t.action[s] for t, s in zip(chosen, steps) if t.action is not None]
    next_obs = [t.obs[s + 1] for t, s in zip(chosen, steps) if s[-1] + 1 < len(t.obs)]
    return DemoSteps(
        obs,
        np.concatenate(actions) if actions else None,
        np.concatenate(next_obs) if len(next_obs) == count else None,
    )
