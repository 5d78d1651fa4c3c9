"""The built-in tasks' type and registry.

A built-in task is a handful of pure JAX functions over a state pytree. Its episodes have a fixed
length: no state ends an episode early; a state of failure is absorbing instead.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.core.config import require, require_known
from uvd.core.errors import UserError

Array = Any  # of NumPy or JAX
State = Any


def no_goal(state: State) -> jax.Array:
    """The desired and the achieved goal of a task without goals."""
    return jnp.zeros(0)


class Task(NamedTuple):
    """A task in pure JAX, with goals or with rewards of its own. Actions lie in [-1, 1]."""

    id: str
    about: str  # one line for `uvd list`
    obs_dim: int
    action_dim: int
    goal_dim: int  # 0: the task has no goals and its objective is `reward`
    horizon: int
    radius: float  # a goal is achieved within this distance; unused without goals
    reset: Callable[[jax.Array], State]
    step: Callable[[State, jax.Array, jax.Array], State]  # (state, action, key)
    observe: Callable[[State], jax.Array]
    achieved: Callable[[State], jax.Array] = no_goal
    goal: Callable[[State], jax.Array] = no_goal
    reward: Callable[[State, jax.Array, State], jax.Array] | None = None  # (state, action, next)
    privileged_dim: int = 0  # numbers at an observation's end that only critics read

    @property
    def policy_obs_dim(self) -> int:
        """How many numbers of an observation the policy reads: the first ones."""
        return self.obs_dim - self.privileged_dim

    def success(self, achieved: Array, goal: Array) -> Array:
        """Whether `achieved` is `goal`, for single goals and batches, NumPy or JAX."""
        return ((achieved - goal) ** 2).sum(-1) <= self.radius**2

    def unit_action(self, action: np.ndarray) -> np.ndarray:
        """The action in [-1, 1] that has the same effect."""
        return np.clip(action, -1, 1)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """The task's own action for one in [-1, 1]: the same one."""
        return action


TASKS: dict[str, Callable[..., Task]] = {}


def register(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Registers a function that makes a task; its keyword arguments are the task's settings."""

    def add(maker: Callable[..., Task]) -> Callable[..., Task]:
        TASKS[name] = maker
        return maker

    return add


def make_task(name: str, **settings: Any) -> Task:
    """The built-in task of that id."""
    require_known(name, TASKS, "task")
    known = inspect.signature(TASKS[name]).parameters
    for setting, value in settings.items():
        require_known(setting, known, f"setting of {name}")
        kind = type(known[setting].default)
        try:
            settings[setting] = kind(value)
        except (TypeError, ValueError):
            raise UserError(f"{name}: {setting} takes a {kind.__name__}, not '{value}'") from None
    task = TASKS[name](**settings)
    require(not task.goal_dim or task.radius > 0, f"{name}: radius = {task.radius} must be above 0")
    return task
