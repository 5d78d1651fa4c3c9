"""A task by its id: a built-in one, or any Gymnasium environment that can be trained on."""

import ast
import io
import os
import sys
from collections.abc import Mapping
from contextlib import closing, redirect_stderr
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
from gymnasium.envs.registration import EnvSpec

from uvd.core.errors import UserError, nearest, one_line, refused
from uvd.tasks import TASKS, Task, make_task
from uvd.tasks.env import EnvTask
from uvd.tasks.examine import examine

RENAMED = {
    "HalfCheetahNonExploitableTold-v0": "HalfCheetahNonExploitablePrivileged-v0",
    "HumanoidNonExploitableTold-v0": "HumanoidNonExploitablePrivileged-v0",
}


def find_task(name: str, settings: Mapping[str, Any] | None = None) -> Task | EnvTask:
    """The built-in task of that id, or else the Gymnasium environment, examined.

    An environment's settings are keyword arguments of `gymnasium.make`.
    """
    name, settings = current_id(name), settings or {}
    if name in TASKS:
        return make_task(name, **settings)
    return _env_task(name, tuple(sorted((key, str(value)) for key, value in settings.items())))


@lru_cache
def current_id(name: str) -> str:
    """The id itself; of a task that was renamed the new one, with a notice on stderr."""
    module, colon, env_id = name.rpartition(":")
    if env_id not in RENAMED:
        return name
    print(f"{env_id} is now called {RENAMED[env_id]}", file=sys.stderr)
    return module + colon + RENAMED[env_id]


@lru_cache(maxsize=8)
def with_previous_action(task: Task | EnvTask) -> Task | EnvTask:
    """The same task; its observations end with the previous action, zeros at the start."""
    obs_dim = task.obs_dim + task.action_dim
    if not isinstance(task, Task):
        return replace(task, previous_action=True, obs_dim=obs_dim)
    plain, reward = task, task.reward
    return plain._replace(
        obs_dim=obs_dim,
        reset=lambda key: (plain.reset(key), jnp.zeros(plain.action_dim)),
        step=lambda s, action, key: (plain.step(s[0], action, key), action),
        observe=lambda s: jnp.concatenate([plain.observe(s[0]), s[1]]),
        achieved=lambda s: plain.achieved(s[0]),
        goal=lambda s: plain.goal(s[0]),
        reward=None if reward is None else lambda s, action, after: reward(s[0], action, after[0]),
    )


def _literal(text: str) -> Any:
    """The number or truth value that a setting's text stands for, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@lru_cache(maxsize=8)
def _env_task(name: str, settings: tuple[tuple[str, str], ...]) -> EnvTask:
    spec = _find_spec(name)
    with refused(f"{name} cannot be made"):
        keywords = {key: _literal(value) for key, value in settings}
        env = gym.make(spec, disable_env_checker=True, **keywords)
    with closing(env):
        return examine(name, env)


def _find_spec(name: str) -> EnvSpec:
    """The registered environment: our own faster one of that name first."""
    try:
        with redirect_stderr(io.StringIO()):  # it prints notices about its own environments
            import_module("gymnasium_robotics")  # registers them
    except Exception as error:  # of MuJoCo, where MUJOCO_GL names what is not installed
        gl = os.environ.get("MUJOCO_GL")
        hint = f" (with MUJOCO_GL={gl}: try without)" if gl else ""
        raise UserError(f"cannot import gymnasium_robotics: {one_line(error)}{hint}") from error
    for own in ("fetch", "locomotion"):
        import_module(f"uvd.tasks.{own}")
    module, _, env_id = name.rpartition(":")
    if module:
        with refused(f"cannot import '{module}' of '{name}'"):
            import_module(module)
    for known in (f"uvd/{env_id}", env_id):
        if known in gym.registry:
            return gym.registry[known]
    raise nearest(env_id, {*TASKS, *gym.registry}, "task")
