"""A trained policy, ready to act: in Python, in other libraries and as a file of its own."""

import base64
import inspect
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from uvd.core import policy as policy_module
from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.core.policy import Policy, act, greedy
from uvd.tasks.env import EnvTask
from uvd.tasks.task import Task

# What follows core/policy.py in an exported file.
_EXPORTED = '''

# The policy that was trained on {task}. It needs NumPy 2 and nothing else:
#   from {module} import policy
#   action = policy(observation{example})
import base64
import io

import numpy as np

_ARRAYS = np.load(io.BytesIO(base64.b64decode("{data}")))
_NAMES = [name for name in Norm._fields if name in _ARRAYS]
_LAYERS = range({layers})
_POLICY = Policy(
    MLP(tuple(_ARRAYS[f"w{{i}}"] for i in _LAYERS), tuple(_ARRAYS[f"b{{i}}"] for i in _LAYERS)),
    Norm(**{{name: _ARRAYS[name] for name in _NAMES}}),
)


def policy(observation, goal=None):
    """The task's action for one observation or a batch of them."""
    obs = np.asarray(observation, np.float32)
    if obs.shape[-1] not in ({whole}, {obs_dim}):
        raise ValueError(f"an observation of {task} is {whole} numbers, not {{obs.shape[-1]}}")
    obs = obs[..., :{obs_dim}]  # numbers that only critics read may follow
    goal = np.zeros((*obs.shape[:-1], 0)) if goal is None else goal
    if np.shape(goal)[-1] != {goal_dim}:
        raise ValueError(f"a goal of {task} is {goal_dim} numbers, not {{np.shape(goal)[-1]}}")
    low, high = _ARRAYS["low"], _ARRAYS["high"]
    action = act(_POLICY, obs, np.asarray(goal, np.float32))
    return np.clip(low + (action + 1) * 0.5 * (high - low), low, high).astype(np.float32)
'''


class Actor:
    """A trained policy: `actor(obs, goal)` gives the task's action, for one pair or a batch.

    NumPy in, NumPy out. Without goals it is `actor(obs)`; the dictionary that a goal environment
    returns serves as well: `actor(env.reset()[0])`.
    """

    def __init__(self, policy: Policy, task: Task | EnvTask) -> None:
        self.policy: Policy = jax.tree.map(np.asarray, greedy(policy))
        self.task = task

    def __call__(self, obs: Any, goal: Any = None) -> np.ndarray:
        task = self.task
        if isinstance(obs, Mapping):
            obs, goal = self._split(obs)
        obs = np.asarray(obs, np.float32)
        # The privileged numbers, which only critics read, may be left out.
        if obs.shape[-1] not in (task.obs_dim, task.policy_obs_dim):
            hint = ""
            if isinstance(task, EnvTask) and not task.achieved_in_obs:
                hint = ": the environment's and the achieved goal"
            if isinstance(task, EnvTask) and task.previous_action:
                hint = ": the environment's and the action before, by policy.task.unit_action"
            raise UserError(
                f"an observation of {task.id} is {task.obs_dim} numbers{hint}, not {obs.shape[-1]}"
            )
        if goal is None:
            require(not task.goal_dim, f"{task.id} has goals: act on (obs, goal)")
            goal = np.zeros((*obs.shape[:-1], 0))
        elif np.shape(goal)[-1:] != (task.goal_dim,):
            numbers = f"a goal of {task.id} is {task.goal_dim} numbers"
            wanted = numbers if task.goal_dim else f"{task.id} has no goals: act on obs alone"
            raise UserError(f"{wanted}, not an array of shape {np.shape(goal)}")
        action = act(self.policy, obs[..., : task.policy_obs_dim], np.asarray(goal, np.float32))
        return task.env_action(action)

    def _split(self, obs: Mapping[str, Any]) -> tuple[np.ndarray, Any]:
        """Observation and goal, from what a goal environment returns."""
        require(self.task.goal_dim > 0, f"{self.task.id} has no goals: act on obs alone")
        for key in ("observation", "achieved_goal", "desired_goal"):
            require(key in obs, f"the observation has no '{key}', which {self.task.id} needs")
        parts = [obs["observation"]]
        if isinstance(self.task, EnvTask) and not self.task.achieved_in_obs:
            parts.append(obs["achieved_goal"])
        return np.concatenate(parts, -1), obs["desired_goal"]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, None]:
        """The action as Stable-Baselines3 asks for it, so that its `evaluate_policy` works."""
        require(deterministic, "a trained policy explores no more: deterministic must be True")
        return self(observation), None

    def export(self, path: str | Path) -> Path:
        """Writes a Python file that acts like this policy and needs NumPy alone."""
        path, task, norm = Path(path), self.task, self.policy.norm
        is_module = path.suffix == ".py" and path.stem.isidentifier()
        require(is_module, f"cannot write {path}: name a Python module, such as policy.py")
        net = self.policy.net
        arrays = {f"w{i}": w for i, w in enumerate(net.weights)}
        arrays |= {f"b{i}": b for i, b in enumerate(net.biases)}
        arrays |= {name: x for name, x in norm._asdict().items() if x is not None}
        ends = -np.ones(task.action_dim), np.ones(task.action_dim)
        arrays["low"], arrays["high"] = map(task.env_action, ends)
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        text = inspect.getsource(policy_module) + _EXPORTED.format(
            task=task.id,
            module=path.stem,
            example=", goal" if task.goal_dim else "",
            whole=task.obs_dim,
            goal_dim=task.goal_dim,
            obs_dim=task.policy_obs_dim,
            layers=len(net.weights),
            data=base64.b64encode(file.getvalue()).decode(),
        )
        with refused(f"cannot write {path}", OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return path
