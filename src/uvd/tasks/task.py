"""What a task is, and the registry of the built-in ones.

A task on the device is a handful of pure functions over a state pytree. Its episodes have a fixed
length: a state that ends all hope is absorbing instead of terminal.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from uvd.errors import UserError, nearest

Array = Any
State = Any


class Task(NamedTuple):
    """A goal-conditioned task in pure JAX. Actions lie in [-1, 1]."""

    id: str
    about: str  # one line for `uvd list`
    obs_dim: int
    action_dim: int
    goal_dim: int
    horizon: int
    radius: float  # a goal is achieved within this distance
    reset: Callable[[jax.Array], State]
    step: Callable[[State, jax.Array, jax.Array], State]  # (state, action, key)
    observe: Callable[[State], jax.Array]
    achieved: Callable[[State], jax.Array]
    goal: Callable[[State], jax.Array]

    def success(self, achieved: Array, goal: Array) -> Array:
        """Whether `achieved` is `goal`, for single goals and batches, NumPy or JAX."""
        return ((achieved - goal) ** 2).sum(-1) <= self.radius**2


TASKS: dict[str, Callable[..., Task]] = {}


def register(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Adds a maker of tasks under an id; its keyword arguments are the task's settings."""

    def add(maker: Callable[..., Task]) -> Callable[..., Task]:
        TASKS[name] = maker
        return maker

    return add


def make_task(name: str, **settings: Any) -> Task:
    """The built-in task of that id."""
    if name not in TASKS:
        raise nearest(name, TASKS, "task")
    known = inspect.signature(TASKS[name]).parameters
    for setting, value in settings.items():
        if setting not in known:
            raise nearest(setting, known, f"setting of {name}")
        kind = type(known[setting].default)
        try:
            settings[setting] = kind(value)
        except (TypeError, ValueError):
            raise UserError(f"{name}: {setting} takes a {kind.__name__}, not '{value}'") from None
    task = TASKS[name](**settings)
    if not task.radius > 0:
        raise UserError(f"{name}: radius = {task.radius} must be above 0")
    return task
