"""The built-in tasks as Gymnasium environments; importing this registers them.

``gymnasium.make("uvd.tasks.gym:PointPush-v0", radius=0.05)`` imports, registers and makes one; the
task's settings are keyword arguments. Rewards are -1 until the goal is achieved and 0 while it is;
a task without goals has rewards of its own, and its observations are plain arrays.
An episode never terminates: Gymnasium's time limit truncates it at the task's horizon.
"""

from functools import lru_cache
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import ArrayLike, NDArray

from uvd.tasks import TASKS, Task, make_task
from uvd.tasks.cliffwalk import Grid
from uvd.tasks.cliffwalk_task import places
from uvd.tasks.point import PIT
from uvd.tasks.pointloop import RADIUS

# Positions are in [-1, 1] and differences in [-2, 2]. The largest number is the puck's velocity in
# top speeds: a strike adds at most √2 at a right angle and then a tenth is lost, so it stays below
# √(0.81 / 0.19 · 2) < 3. PointLoop's velocity, in the expert's, stays below 0.2 / 0.09.
OBS_BOUND = 3.0

_PIXELS = 256
_AXIS = np.linspace(-1.1, 1.1, _PIXELS, dtype=np.float32)
_PLACE = np.stack(np.meshgrid(_AXIS, -_AXIS), -1)  # of each pixel
_WHITE, _PIT, _GOAL, _PUCK, _POINT = (
    np.array(rgb, np.uint8)
    for rgb in [(255, 255, 255), (70, 70, 70), (150, 210, 130), (240, 150, 50), (40, 90, 180)]
)


@lru_cache(maxsize=64)
def _programs(name: str, settings: tuple[tuple[str, Any], ...]) -> tuple[Task, Any, Any]:
    """A task and its `reset` and `step`, compiled once however many environments share them.

    Both give a carry and an output, which has an array for each name.
    """
    task = make_task(name, **dict(settings))

    def output(state: Any) -> dict[str, jax.Array]:
        parts = (task.observe(state), task.achieved(state), task.goal(state))
        return dict(zip(("observation", "achieved_goal", "desired_goal"), parts))

    def reset(seed: jax.Array) -> Any:
        key, key_reset = jax.random.split(jax.random.key(seed))
        state = task.reset(key_reset)
        return (state, key), output(state)

    def step(carry: Any, action: jax.Array) -> Any:
        state, key = carry
        key, key_step = jax.random.split(key)
        action = jnp.clip(action, -1, 1)
        after = task.step(state, action, key_step)
        reward = {"reward": task.reward(state, action, after)} if task.reward else {}
        return (after, key), {**output(after), **reward}

    return task, jax.jit(reset), jax.jit(step)


@lru_cache(maxsize=8)
def _pit(name: str, settings: tuple[tuple[str, Any], ...]) -> NDArray[np.bool_]:
    """The pixels where the point has fallen."""
    if name == "CliffWalk-v0":
        grid = Grid(**dict(settings))
        cell = ((_PLACE[..., None, :] - places(grid)) ** 2).sum(-1).argmin(-1)
        return np.isin(cell, grid.cliff)
    left, right, top = PIT
    x, y = _PLACE[..., 0], _PLACE[..., 1]
    return (x > left) & (x < right) & (y < top) & (name == "PointCliff-v0")


def _box(bound: float, size: int) -> Box:
    return Box(-bound, bound, (size,), np.float32)


class TaskEnv(gym.Env[Any, Any]):
    """A built-in task as a Gymnasium environment; as a goal environment if it has goals."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None, **settings: Any) -> None:
        self.render_mode = render_mode
        self._settings = tuple(sorted(settings.items()))
        self.task, self._reset, self._step = _programs(task, self._settings)
        # One step is too little work for an accelerator; what runs where follows the carry.
        self._device = jax.devices("cpu")[0]
        box, goals = _box(OBS_BOUND, self.task.obs_dim), _box(1.0, self.task.goal_dim)
        with_goals = Dict(observation=box, achieved_goal=goals, desired_goal=goals)
        self.observation_space = with_goals if self.task.goal_dim else box
        self.action_space = _box(1.0, self.task.action_dim)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; its seed, which fixes the noise of all its steps, is drawn here."""
        super().reset(seed=seed)
        drawn = self.np_random.integers(2**32, dtype=np.uint32)
        self._carry, output = self._reset(jax.device_put(drawn, self._device))
        obs, _, info = self._answer(output)
        return obs, info

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Simulates one step. Actions are clipped to their space."""
        self._carry, output = self._step(self._carry, np.asarray(action, np.float32))
        obs, reward, info = self._answer(output)
        return obs, reward, False, False, info

    def _answer(self, output: dict[str, jax.Array]) -> tuple[Any, float, dict[str, Any]]:
        """Observation, reward and info."""
        # Copied: a view of JAX's memory cannot be written to.
        obs = {key: np.array(value, np.float32) for key, value in output.items()}
        if not self.task.goal_dim:
            return obs["observation"], float(obs.get("reward", 0.0)), {}
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, reward, {"is_success": reward == 0}

    def compute_reward(
        self, achieved_goal: ArrayLike, desired_goal: ArrayLike, info: Any
    ) -> NDArray[np.float32]:
        """-1 where the goal is not achieved and 0 where it is, for one goal or a batch of them."""
        # In float32 as in the task, so that stored goals of a wider type give the same rewards.
        goals = (np.asarray(goal, np.float32) for goal in (achieved_goal, desired_goal))
        return np.asarray(self.task.success(*goals), np.float32) - np.float32(1)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture from above: pit, goal, puck and point, or PointLoop's circle and point."""
        if self.render_mode is None:
            return None
        task, state = self.task, self._carry[0]
        point, achieved = np.asarray(task.observe(state))[:2], task.achieved(state)
        picture = np.broadcast_to(_WHITE, (_PIXELS, _PIXELS, 3)).copy()

        def disc(centre: ArrayLike, radius: float, color: NDArray[np.uint8]) -> None:
            picture[((_PLACE - np.asarray(centre)) ** 2).sum(-1) <= radius**2] = color

        picture[_pit(task.id, self._settings)] = _PIT
        if task.goal_dim:
            # The sparse task's goal would be a single pixel.
            disc(task.goal(state), max(task.radius, 0.03), _GOAL)
            if not np.array_equal(achieved, point):  # then it is the puck's position
                disc(achieved, 0.06, _PUCK)
        else:
            picture[abs(np.linalg.norm(_PLACE, axis=-1) - RADIUS) < 0.02] = _GOAL
        disc(point, 0.04, _POINT)
        return picture


for _name in TASKS:
    _steps, _entry = make_task(_name).horizon, "uvd.tasks.gym:TaskEnv"
    gym.register(_name, _entry, max_episode_steps=_steps, kwargs={"task": _name})
