"""The built-in tasks as Gymnasium environments; importing this registers them.

``gymnasium.make("uvd.tasks.gym:PointPush-v0", radius=0.05)`` imports, registers and makes one; the
task's settings are keyword arguments. Rewards are -1 until the goal is achieved and 0 while it is;
a task without goals has rewards of its own, and its observations are plain arrays.
An episode never terminates: Gymnasium's time limit truncates it at the task's horizon.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import ArrayLike, NDArray

from uvd.tasks import TASKS, Task, make_task
from uvd.tasks.cliffwalk import Grid
from uvd.tasks.cliffwalk_task import places
from uvd.tasks.pointloop import RADIUS

Observation = dict[str, NDArray[np.float32]]

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


class _Programs(NamedTuple):
    """A task and its compiled functions on the CPU."""

    task: Task
    reset: Callable[..., Any]  # seed -> carry, observation
    step: Callable[..., Any]  # carry, action -> carry, observation


@lru_cache(maxsize=64)
def _programs(name: str, settings: tuple[tuple[str, Any], ...]) -> _Programs:
    """Compiled once for each task and its settings, however many environments share them."""
    task = make_task(name, **dict(settings))

    def look(state: Any) -> dict[str, jax.Array]:
        return {
            "observation": task.observe(state),
            "achieved_goal": task.achieved(state),
            "desired_goal": task.goal(state),
        }

    def reset(seed: jax.Array) -> Any:
        key, key_reset = jax.random.split(jax.random.key(seed))
        state = task.reset(key_reset)
        return (state, key), look(state)

    def step(carry: Any, action: jax.Array) -> Any:
        state, key = carry
        key, key_step = jax.random.split(key)
        action = jnp.clip(action, -1, 1)
        after = task.step(state, action, key_step)
        seen = look(after)
        if task.reward:
            seen["reward"] = task.reward(state, action, after)
        return (after, key), seen

    return _Programs(task, jax.jit(reset), jax.jit(step))


@lru_cache(maxsize=64)
def _pit(name: str, settings: tuple[tuple[str, Any], ...]) -> NDArray[np.bool_]:
    """Pixels from which there is no way back, as the task itself sees them."""
    if name == "CliffWalk-v0":
        grid = Grid(**dict(settings))
        cell = ((_PLACE[..., None, :] - places(grid)) ** 2).sum(-1).argmin(-1)
        return np.isin(cell, grid.cliff)
    if name == "PointCliff-v0":
        task, _, _ = _programs(name, settings)
        start = task.reset(jax.random.key(0))
        observe = jax.jit(jax.vmap(lambda p: task.observe(start._replace(point=p))))
        return np.asarray(observe(_PLACE.reshape(-1, 2))[:, 2] > 0).reshape(_PIXELS, _PIXELS)
    return np.zeros((_PIXELS, _PIXELS), np.bool_)


def _box(bound: float, size: int) -> Box:
    return Box(-bound, bound, (size,), np.float32)


class GoalEnv(gym.Env[dict[str, Any], Any]):
    """A built-in task behind Gymnasium's interface for goal environments."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None, **settings: Any) -> None:
        self.render_mode = render_mode
        self._settings = tuple(sorted(settings.items()))
        self._programs = _programs(task, self._settings)
        self.task = self._programs.task
        # One step is too little work for an accelerator; what runs where follows the carry.
        self._device = jax.devices("cpu")[0]
        self.observation_space = Dict(
            observation=_box(OBS_BOUND, self.task.obs_dim),
            achieved_goal=_box(1.0, self.task.goal_dim),
            desired_goal=_box(1.0, self.task.goal_dim),
        )
        self.action_space = _box(1.0, self.task.action_dim)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode; its seed, the noise of all its steps included, is drawn here."""
        super().reset(seed=seed)
        drawn = self.np_random.integers(2**32, dtype=np.uint32)
        self._carry, seen = self._programs.reset(jax.device_put(drawn, self._device))
        obs = self._observe(seen)
        return obs, self._info(obs)

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Plays one step. Actions are clipped to their space."""
        self._carry, seen = self._programs.step(self._carry, np.asarray(action, np.float32))
        obs = self._observe(seen)
        info = self._info(obs)
        reward = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
        return obs, float(reward), False, False, info

    def compute_reward(
        self, achieved_goal: ArrayLike, desired_goal: ArrayLike, info: Any
    ) -> NDArray[np.float32]:
        """-1 where the goal is not achieved and 0 where it is, for one goal or a batch of them."""
        reached = self._reached(achieved_goal, desired_goal)
        return reached.astype(np.float32) - np.float32(1)

    def render(self) -> NDArray[np.uint8] | None:
        """A picture from above: pit, goal, puck and point."""
        if self.render_mode is None:
            return None
        state = self._carry[0]
        point, achieved = np.asarray(self.task.observe(state))[:2], self.task.achieved(state)
        picture = np.broadcast_to(_WHITE, (_PIXELS, _PIXELS, 3)).copy()
        picture[_pit(self.task.id, self._settings)] = _PIT

        def disc(centre: ArrayLike, radius: float, colour: NDArray[np.uint8]) -> None:
            picture[((_PLACE - np.asarray(centre)) ** 2).sum(-1) <= radius**2] = colour

        # The sparse task's goal would be a single pixel.
        disc(self.task.goal(state), max(self.task.radius, 0.03), _GOAL)
        if not np.array_equal(achieved, point):  # then the puck's place is what is achieved
            disc(achieved, 0.06, _PUCK)
        disc(point, 0.04, _POINT)
        return picture

    def _reached(self, achieved: ArrayLike, desired: ArrayLike) -> NDArray[np.bool_]:
        # In float32 as the task has them: a batch that was stored wider is judged the same way.
        return np.asarray(
            self.task.success(np.asarray(achieved, np.float32), np.asarray(desired, np.float32))
        )

    def _info(self, obs: Observation) -> dict[str, Any]:
        return {"is_success": bool(self._reached(obs["achieved_goal"], obs["desired_goal"]))}

    @staticmethod
    def _observe(seen: dict[str, jax.Array]) -> Observation:
        # Copied: a view of JAX's memory cannot be written to.
        return {key: np.array(value, np.float32) for key, value in seen.items()}


class RewardEnv(gym.Env[Any, Any]):
    """A built-in task without goals behind Gymnasium's interface."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None, **settings: Any) -> None:
        self.render_mode = render_mode
        self._programs = _programs(task, tuple(sorted(settings.items())))
        self.task = self._programs.task
        self._device = jax.devices("cpu")[0]
        self.observation_space = _box(OBS_BOUND, self.task.obs_dim)
        self.action_space = _box(1.0, self.task.action_dim)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode; its seed, the noise of all its steps included, is drawn here."""
        super().reset(seed=seed)
        drawn = self.np_random.integers(2**32, dtype=np.uint32)
        self._carry, seen = self._programs.reset(jax.device_put(drawn, self._device))
        return np.array(seen["observation"], np.float32), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Plays one step. Actions are clipped to their space."""
        self._carry, seen = self._programs.step(self._carry, np.asarray(action, np.float32))
        obs = np.array(seen["observation"], np.float32)
        return obs, float(seen["reward"]), False, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """A picture from above: the circle and the point."""
        if self.render_mode is None:
            return None
        point = np.asarray(self.task.observe(self._carry[0]))[:2]
        picture = np.broadcast_to(_WHITE, (_PIXELS, _PIXELS, 3)).copy()
        picture[abs(np.linalg.norm(_PLACE, axis=-1) - RADIUS) < 0.02] = _GOAL
        picture[((_PLACE - point) ** 2).sum(-1) <= 0.04**2] = _POINT
        return picture


for _name in TASKS:
    _task = make_task(_name)
    gym.register(
        _name,
        entry_point=f"uvd.tasks.gym:{'GoalEnv' if _task.goal_dim else 'RewardEnv'}",
        max_episode_steps=_task.horizon,
        kwargs={"task": _name},
    )
