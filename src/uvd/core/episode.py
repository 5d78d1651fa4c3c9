"""An episode, in the one form that collection, replay buffer and log share; demonstrated steps.

No JAX here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any  # of JAX or NumPy
Record = dict[str, np.ndarray]  # the episodes of one seed, by the names of `Episode`


class Episode(NamedTuple):
    """One roll-out of T steps. In a stack, episodes are padded to the task's horizon."""

    obs: Array  # [T + 1, obs]
    action: Array  # [T, action]
    achieved: Array  # [T + 1, goal]
    goal: Array  # [goal], the intended one
    length: Array  # steps that really happened
    terminated: Array  # whether the last of them ended the task (a time limit does not)
    success: Array  # [T], whether the intended goal is achieved after each step
    reward: Array  # [T], the task's own; zeros where goals decide


class DemoSteps(NamedTuple):
    """The demonstrated steps that an algorithm imitates, float32, actions in [-1, 1]."""

    obs: Array  # [N, obs]
    action: Array | None = None  # [N, action]; None: the demonstrations have no actions
    next_obs: Array | None = None  # [N, obs]; None: not known for all steps


_ROWS_BEYOND_STEPS = {"obs": 1, "action": 0, "achieved": 1, "success": 0, "reward": 0}


def stack(seeds: Sequence[Sequence[Episode]], horizon: int) -> Episode:
    """The episodes of each seed as arrays `[seed, episode, ...]`, padded with zeros. There must be
    at least one."""
    number = max(map(len, seeds))
    columns: dict[str, Any] = {}
    for name, x in next(e for episodes in seeds for e in episodes)._asdict().items():
        shape = np.shape(x)
        if name in _ROWS_BEYOND_STEPS:
            shape = (horizon + _ROWS_BEYOND_STEPS[name], *shape[1:])
        columns[name] = np.zeros((len(seeds), number, *shape), np.asarray(x).dtype)
    for seed, episodes in enumerate(seeds):
        for place, episode in enumerate(episodes):
            for name, x in episode._asdict().items():
                inside = tuple(slice(n) for n in np.shape(x))
                columns[name][(seed, place, *inside)] = x
    return Episode(**columns)


def to_records(episodes: Episode) -> list[Record]:
    """Stacked episodes as a record for each seed, without their common padding."""
    records = []
    for seed in range(len(episodes.length)):
        happened = episodes.length[seed] > 0
        record = {name: np.asarray(x[seed])[happened] for name, x in episodes._asdict().items()}
        longest = int(record["length"].max(initial=0))
        for name, beyond in _ROWS_BEYOND_STEPS.items():
            record[name] = record[name][:, : longest + beyond]
        records.append(record)
    return records


def from_records(records: Sequence[Record], horizon: int) -> Episode:
    """The stacked episodes of such records."""
    seeds = [list(map(Episode, *(record[name] for name in Episode._fields))) for record in records]
    return stack(seeds, horizon)
