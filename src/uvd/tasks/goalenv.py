"""Any Gymnasium environment with goals, by its id.

The convention is that of Gymnasium-Robotics: an observation is a dictionary of `observation`,
`achieved_goal` and `desired_goal`, and `compute_reward(achieved, desired, info)` gives the reward
for any pair of goals, one or a batch. What does not follow it is refused here, in one line, before
training starts. This module knows no JAX: worker processes make their environments with it.
"""

import ast
import io
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict

from uvd.core.normalize import find_achieved
from uvd.errors import UserError, nearest

Array = Any  # of NumPy; where success is a matter of distance, of JAX too
KEYS = ("observation", "achieved_goal", "desired_goal")
PAIRS = 4096  # pairs of goals on which an environment's reward is examined


class Reward(NamedTuple):
    """What an environment's `compute_reward` was found to be."""

    low: float
    high: float  # both exact for rewards of two values, widened from what was seen for others
    sparse: bool  # two values, the higher one for success
    radius: float | None  # success is a distance of at most this; None: not a matter of distance
    distance: bool = False  # the reward is the negative distance


@dataclass(frozen=True, eq=False)
class EnvTask:
    """What every environment has that was found fit to train on."""

    id: str
    spec: EnvSpec  # enough for a process that registered nothing to make it
    obs_dim: int
    action_dim: int
    goal_dim: int
    horizon: int
    low: np.ndarray  # bounds of the environment's own actions
    high: np.ndarray

    @cached_property
    def _unit(self) -> bool:
        return bool((self.low == -1).all() and (self.high == 1).all())

    def own_action(self, action: np.ndarray) -> np.ndarray:
        """The environment's action for one in [-1, 1], or a batch of them."""
        if self._unit:
            return action
        own = self.low + (action + 1) * 0.5 * (self.high - self.low)
        return np.clip(own, self.low, self.high).astype(np.float32)

    def unit_action(self, own: np.ndarray) -> np.ndarray:
        """The action in [-1, 1] that the environment takes for one of its own; or a batch."""
        unit = 2 * (own - self.low) / (self.high - self.low) - 1
        return np.clip(unit, -1, 1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class GoalTask(EnvTask):
    """An environment that was found to follow the convention."""

    reward: Reward
    says_success: bool  # whether `info` tells success after every step
    shown: bool  # whether the observation shows the achieved goal; if not, `make_env` appends it

    def success(self, achieved: Array, goal: Array) -> Array:
        """Whether goals are achieved, as far as that follows from the rewards."""
        if self.reward.radius is not None:
            return ((achieved - goal) ** 2).sum(-1) <= self.reward.radius**2
        if not self.reward.sparse:
            raise UserError(
                f"{self.id} has dense rewards and no distance_threshold: success is unknown "
                "for goals other than the intended one (combine = reward needs it)"
            )
        middle = (self.reward.low + self.reward.high) / 2
        return batch_reward(reward_env(self), achieved, goal) > middle


def goal_task(
    name: str, settings: dict[str, Any] | None = None, others: Iterable[str] = ()
) -> GoalTask:
    """The environment of that id, examined; settings are keyword arguments of `gymnasium.make`.

    `others` are names that are known too, for the error that names the nearest ones.
    """
    return examined(name, settings, others, examine_goals)


T = TypeVar("T", bound=EnvTask)


def examined(
    name: str, settings: dict[str, Any] | None, others: Iterable[str],
    examine: Callable[[str, gym.Env], T],
) -> T:  # fmt: skip
    """The environment of that id, found and made, as `examine` has it; remembered."""
    pairs = tuple(sorted((k, repr(_literal(v))) for k, v in (settings or {}).items()))
    return _examined(name, pairs, tuple(others), examine)


class Showing(gym.ObservationWrapper):
    """Appends the achieved goal to the observation."""

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """What the environment shows, with more of it to be seen."""
        parts = [observation["observation"], observation["achieved_goal"]]
        return {**observation, "observation": np.concatenate(parts)}


def make_env(task: EnvTask, **settings: Any) -> gym.Env:
    """The environment as the task describes it."""
    env = gym.make(task.spec, disable_env_checker=True, **settings)
    return env if getattr(task, "shown", True) else Showing(env)


@lru_cache(maxsize=8)
def reward_env(task: GoalTask) -> gym.Env:
    """An environment that is only asked for rewards."""
    return make_env(task)


def batch_reward(env: gym.Env, achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The environment's own reward for pairs of goals of any leading shape."""
    achieved, goal = np.broadcast_arrays(achieved, goal)
    rows = [np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in (achieved, goal)]
    rewards = np.asarray(env.get_wrapper_attr("compute_reward")(*rows, {}), np.float32)
    if rewards.shape != rows[0].shape[:1]:
        raise ValueError(f"{len(rows[0])} pairs gave rewards of shape {rewards.shape}")
    return rewards.reshape(achieved.shape[:-1])


def is_success(info: dict[str, Any]) -> bool | None:
    """What `info` says of success: Fetch calls it `is_success`, the mazes `success`."""
    said = info.get("is_success", info.get("success"))
    return None if said is None else bool(said)


def one_line(error: BaseException) -> str:
    """An exception's type and text on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _literal(value: Any) -> Any:
    """A setting as the command line gives it: a number, a truth value, or the text itself."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value


def _find(name: str, others: tuple[str, ...]) -> EnvSpec:
    """The registered environment: our own faster one of that name first."""
    try:
        with redirect_stderr(io.StringIO()):  # it has something to say about its own environments
            import_module("gymnasium_robotics")  # registers them
    except Exception as error:  # MuJoCo: MUJOCO_GL names what is not installed
        gl = os.environ.get("MUJOCO_GL")
        hint = f" (with MUJOCO_GL={gl}: try without)" if gl else ""
        raise UserError(f"cannot import gymnasium_robotics: {one_line(error)}{hint}") from error
    for ours in ("fetch", "locomotion"):
        import_module(f"uvd.tasks.{ours}")
    module, _, bare = name.rpartition(":")
    if module:
        try:
            import_module(module)
        except Exception as error:
            raise UserError(f"cannot import '{module}' of '{name}': {one_line(error)}") from error
    for known in (f"uvd/{bare}", bare):
        if known in gym.registry:
            return gym.registry[known]
    raise nearest(bare, {*others, *gym.registry}, "task")


@lru_cache(maxsize=8)
def _examined(
    name: str, settings: tuple[tuple[str, str], ...], others: tuple[str, ...],
    examine: Callable[[str, gym.Env], Any],
) -> Any:  # fmt: skip
    spec = _find(name, others)
    try:
        keywords = {k: ast.literal_eval(v) for k, v in settings}
        env = gym.make(spec, disable_env_checker=True, **keywords)
    except Exception as error:
        raise UserError(f"{name} cannot be made: {one_line(error)}") from error
    try:
        return examine(name, env)
    finally:
        env.close()


def require(ok: bool, problem: str) -> None:
    """Refuses an environment, which the problem names."""
    if not ok:
        raise UserError(problem)


def examine_goals(name: str, env: gym.Env) -> GoalTask:
    """What the environment is, if it follows the convention."""
    space = env.observation_space
    parts = space.spaces if isinstance(space, Dict) else {}
    for key in KEYS:
        require(key in parts, f"{name} is not a goal environment: its observation has no '{key}'")
        part = parts[key]
        require(
            isinstance(part, Box) and len(part.shape) == 1,
            f"{name} cannot be trained on: its {key} is {kind_of(part)}, "
            "not a box of one dimension",
        )
    same = parts["achieved_goal"].shape == parts["desired_goal"].shape
    require(
        same, f"{name} is not a goal environment: achieved_goal and desired_goal differ in shape"
    )
    require(
        env.has_wrapper_attr("compute_reward"),
        f"{name} is not a goal environment: it has no compute_reward",
    )
    actions, spec, horizon = examine_frame(name, env)
    try:
        seen = _look(env, actions)
    except Exception as error:
        raise UserError(f"{name} does not play: {one_line(error)}") from error
    obs_dim, goal_dim = (parts[k].shape[0] for k in ("observation", "desired_goal"))  # type: ignore[index]
    require(
        seen.achieved.shape[-1] == seen.desired.shape[-1] == goal_dim
        and seen.obs.shape[-1] == obs_dim,
        f"{name} gives observations of other shapes than its observation_space says",
    )
    for what, rows in zip(KEYS, (seen.obs, seen.achieved, seen.desired)):
        require(bool(np.isfinite(rows).all()), f"{name}: its {what} is not finite")
    require(seen.steady, f"{name} changes the desired goal within an episode")
    says = len(seen.success) == len(seen.achieved)
    reward = _find_reward(name, env, seen)
    require(
        says or reward.sparse or reward.radius is not None,
        f"{name} does not say what success is: "
        "neither info['is_success'] nor rewards of two values",
    )
    low, high = (x.astype(np.float64) for x in (actions.low, actions.high))
    shown = find_achieved(seen.obs, seen.achieved) is not None
    return GoalTask(
        name, spec, obs_dim + (0 if shown else goal_dim), len(low), goal_dim, horizon, low, high,
        reward, says, shown,
    )  # fmt: skip


def examine_frame(name: str, env: gym.Env) -> tuple[Box, EnvSpec, int]:
    """Its actions, its registration and its time limit, as every task needs them."""
    actions = env.action_space
    require(
        isinstance(actions, Box) and len(actions.shape) == 1,
        f"{name} cannot be trained on: its actions are {kind_of(actions)}, "
        "not a box of one dimension",
    )
    assert isinstance(actions, Box)
    require(actions.is_bounded(), f"{name} cannot be trained on: its actions are unbounded")
    require(
        np.issubdtype(actions.dtype, np.floating),
        f"{name} cannot be trained on: its actions are of {actions.dtype}, not real numbers",
    )
    spec = env.spec
    horizon = spec.max_episode_steps if spec else None
    if spec is None or horizon is None:
        raise UserError(
            f"{name} has no time limit: register it with max_episode_steps, "
            "or give --task-settings max_episode_steps=N"
        )
    return actions, spec, horizon


def kind_of(space: gym.Space) -> str:
    """A space in words."""
    return f"a box of shape {space.shape}" if isinstance(space, Box) else str(space)[:80]


class _Seen(NamedTuple):
    """What is met in a few random steps, float32 as the replay memory holds it."""

    obs: np.ndarray
    achieved: np.ndarray
    desired: np.ndarray
    success: np.ndarray  # what `info` said, as long as the others if it always does
    steady: bool  # the desired goal stayed the same within every episode


def _look(env: gym.Env, actions: Box) -> _Seen:
    rng = np.random.default_rng(0)
    rows: dict[str, list[np.ndarray]] = {key: [] for key in KEYS}
    success = []
    steady = True
    for episode in range(12):
        obs, _ = env.reset(seed=episode)
        goal = np.array(obs[KEYS[-1]])
        for _ in range(16):
            obs, _, terminated, truncated, info = env.step(
                rng.uniform(actions.low, actions.high).astype(actions.dtype)
            )
            for key in KEYS:
                rows[key].append(np.array(obs[key], np.float32))
            steady &= np.array_equal(obs[KEYS[-1]], goal, equal_nan=True)
            said = is_success(info)
            success += [] if said is None else [said]
            if terminated or truncated:
                break
    obs_rows, achieved, desired = (np.stack(rows[key]) for key in KEYS)
    return _Seen(obs_rows, achieved, desired, np.array(success, bool), steady)


def _find_reward(name: str, env: gym.Env, seen: _Seen) -> Reward:
    """Examines `compute_reward` on many pairs: what was met, and goals at all distances."""
    rng = np.random.default_rng(1)
    met = np.concatenate([seen.achieved, seen.desired])
    span = max(float(np.ptp(met, 0).max()), 1e-3)

    def draw(x: np.ndarray, n: int = PAIRS // 4) -> np.ndarray:
        return x[rng.integers(len(x), size=n)]

    near = draw(met, PAIRS // 2)
    way = rng.standard_normal(near.shape)
    way *= (span * 10 ** rng.uniform(-4, 0.3, len(way)) / np.linalg.norm(way, axis=-1))[:, None]
    way[:16] = 0  # a goal that is exactly achieved
    achieved = np.concatenate([(near + way).astype(np.float32), draw(met), draw(seen.achieved)])
    desired = np.concatenate([near, draw(seen.desired), draw(seen.achieved)])
    try:
        single = [batch_reward(env, a[None], g[None])[0] for a, g in zip(achieved[:8], desired)]
        rewards = batch_reward(env, achieved, desired)
    except Exception as error:
        raise UserError(f"{name}: compute_reward fails on batches: {one_line(error)}") from error
    if not np.isfinite(rewards).all():
        raise UserError(f"{name}: compute_reward gives rewards that are not finite")
    if not np.allclose(single, rewards[:8]):
        raise UserError(f"{name}: compute_reward gives batches other rewards than single goals")
    low, high = float(rewards.min()), float(rewards.max()) + 0.0  # no negative zero
    if low == high:
        raise UserError(f"{name}: compute_reward gives {low:g} for every pair of goals")
    squared = ((achieved - desired) ** 2).sum(-1)
    told = getattr(env.unwrapped, "distance_threshold", None)
    if len(np.unique(rewards)) == 2:
        reached = rewards == high
        radius = None
        for guess in (told, _threshold(env, desired[0], span, high)):
            if guess is not None and ((squared <= float(guess) ** 2) == reached).all():
                radius = float(guess)
                break
        return Reward(low, high, True, radius)
    radius = float(told) if told is not None else None
    if radius is not None and len(seen.success) == len(seen.achieved):
        there = ((seen.achieved - seen.desired) ** 2).sum(-1) <= radius**2
        radius = radius if (there == seen.success).all() else None
    distance = bool(np.allclose(rewards, -np.sqrt(squared), atol=1e-5))
    # Only a sample was seen: what training meets may lie further out, but nothing beats arriving.
    width = high - low
    best = high if (rewards[:16] == high).all() else high + width
    return Reward(low - width, best, False, radius, distance)


def _threshold(env: gym.Env, goal: np.ndarray, span: float, high: float) -> float | None:
    """The distance at which success ends in one direction, by bisection."""
    way = np.ones(len(goal)) / np.sqrt(len(goal))

    def reached(distance: float) -> bool:
        return bool(batch_reward(env, (goal + distance * way)[None], goal[None])[0] == high)

    inside, outside = 0.0, span
    while reached(outside):
        inside, outside = outside, 2 * outside
        if outside > 1e6 * span:
            return None
    if not reached(inside):
        return None
    while (middle := (inside + outside) / 2) not in (inside, outside):
        inside, outside = (middle, outside) if reached(middle) else (inside, middle)
    # Written as a person would have: the edge itself is where rounding decides.
    short = float(f"{outside:.6g}")
    return short if abs(short - outside) < 1e-7 * span else outside
