"""What a task is, and the registry of the built-in ones.

A task on the device is a handful of pure functions over a state pytree. Its episodes have a fixed
length: a state that ends all hope is absorbing instead of terminal.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.errors import UserError, nearest

Array = Any
State = Any


def nothing(state: State) -> jax.Array:
    """The goal, asked for or achieved, of a task without goals."""
    return jnp.zeros(0)


class Task(NamedTuple):
    """A task in pure JAX: with goals, or with rewards of its own. Actions lie in [-1, 1]."""

    id: str
    about: str  # one line for `uvd list`
    obs_dim: int
    action_dim: int
    goal_dim: int  # 0: no goals, and `reward` says what is to be done
    horizon: int
    radius: float  # a goal is achieved within this distance; unused where there are none
    reset: Callable[[jax.Array], State]
    step: Callable[[State, jax.Array, jax.Array], State]  # (state, action, key)
    observe: Callable[[State], jax.Array]
    achieved: Callable[[State], jax.Array] = nothing
    goal: Callable[[State], jax.Array] = nothing
    reward: Callable[[State, jax.Array, State], jax.Array] | None = None  # (state, action, next)

    def success(self, achieved: Array, goal: Array) -> Array:
        """Whether `achieved` is `goal`, for single goals and batches, NumPy or JAX."""
        return ((achieved - goal) ** 2).sum(-1) <= self.radius**2


def with_previous_action(task: Task) -> Task:
    """The same task, the action before appended to its observations (zeros at the start)."""
    reward = task.reward
    return task._replace(
        obs_dim=task.obs_dim + task.action_dim,
        reset=lambda key: (task.reset(key), jnp.zeros(task.action_dim)),
        step=lambda s, action, key: (task.step(s[0], action, key), action),
        observe=lambda s: jnp.concatenate([task.observe(s[0]), s[1]]),
        achieved=lambda s: task.achieved(s[0]),
        goal=lambda s: task.goal(s[0]),
        reward=None if reward is None else lambda s, action, after: reward(s[0], action, after[0]),
    )


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
    if task.goal_dim and not task.radius > 0:
        raise UserError(f"{name}: radius = {task.radius} must be above 0")
    return task
