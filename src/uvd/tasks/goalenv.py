"""Gymnasium environments with goals: what is known of one, and its examination.

The convention is that of Gymnasium-Robotics: an observation is a dictionary of `observation`,
`achieved_goal` and `desired_goal`, and `compute_reward(achieved, desired, info)` gives the reward
for any pair of goals, one or a batch. An environment that breaks it is refused in one line, before
training starts. No JAX here: worker processes import this.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict

from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.core.normalize import find_achieved

Array = Any  # of NumPy; where success depends on the distance alone, of JAX too
KEYS = ("observation", "achieved_goal", "desired_goal")
EPISODES, STEPS = 12, 16  # of random actions, in which an environment with goals is examined
PAIRS = 4096  # of goals, on which its rewards are examined


class Reward(NamedTuple):
    """What an environment's `compute_reward` was found to be."""

    low: float
    high: float  # both exact if there are two rewards, else wider than what the examination met
    sparse: bool  # two rewards, the higher one for success
    radius: float | None  # success is a distance of at most this; None: it is something else
    distance: bool = False  # the reward is the negative distance


@dataclass(frozen=True, eq=False)
class EnvTask(ABC):
    """An environment that was examined and accepted, with or without goals."""

    id: str
    spec: EnvSpec  # enough for a process that registered nothing to make the environment
    horizon: int
    low: np.ndarray  # [action], bounds of the environment's own actions
    high: np.ndarray  # [action]
    obs_dim: int
    goal_dim: int = 0
    privileged_dim: int = 0  # numbers at an observation's end that only critics read

    @property
    def action_dim(self) -> int:
        """The number of an action's components."""
        return len(self.low)

    @property
    def policy_obs_dim(self) -> int:
        """How many numbers of an observation the policy reads: the first ones."""
        return self.obs_dim - self.privileged_dim

    @cached_property
    def _has_unit_actions(self) -> bool:
        return bool((self.low == -1).all() and (self.high == 1).all())

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """The environment's own action for one in [-1, 1], or a batch of them."""
        if self._has_unit_actions:
            return action
        scaled = self.low + (action + 1) * 0.5 * (self.high - self.low)
        return np.clip(scaled, self.low, self.high).astype(np.float32)

    def unit_action(self, action: np.ndarray) -> np.ndarray:
        """The action in [-1, 1] for one of the environment's own, or a batch of them."""
        scaled = 2 * (action - self.low) / (self.high - self.low) - 1
        return np.clip(scaled, -1, 1).astype(np.float32)

    @abstractmethod
    def split(self, raw: Any, previous_action: np.ndarray) -> Sequence[np.ndarray]:
        """Observation, achieved goal and desired goal of what the environment returned."""

    @abstractmethod
    def episode_success(
        self, achieved: np.ndarray, goal: np.ndarray, reported: Sequence[bool] | None
    ) -> np.ndarray:
        """Success after each of an episode's L steps, bool [L].

        `achieved` is [L + 1, goal], `goal` the desired one, `reported` is the
        environment's own word after each step, if it has one.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class GoalTask(EnvTask):
    """An environment that follows the convention for goals."""

    reward: Reward
    reports_success: bool  # `info` says after every step whether the desired goal is achieved
    achieved_in_obs: bool  # the observation holds the achieved goal; if not, `make_env` appends it

    def success(self, achieved: Array, goal: Array) -> Array:
        """Whether goals are achieved, as far as that follows from the rewards."""
        rule = self.reward
        if rule.radius is not None:
            return ((achieved - goal) ** 2).sum(-1) <= rule.radius**2
        if not rule.sparse:
            raise UserError(
                f"{self.id} has dense rewards and no distance_threshold: success is unknown "
                "for goals other than the intended one"
            )
        return batch_reward(reward_env(self), achieved, goal) > (rule.low + rule.high) / 2

    def split(self, raw: Any, previous_action: np.ndarray) -> Sequence[np.ndarray]:
        """The three arrays that the convention names."""
        return [np.array(raw[key], np.float32) for key in KEYS]

    def episode_success(
        self, achieved: np.ndarray, goal: np.ndarray, reported: Sequence[bool] | None
    ) -> np.ndarray:
        """What the environment reported; where it did not, what follows from its rewards."""
        success = self.success(achieved[1:], goal) if reported is None else reported
        return np.asarray(success, bool)


class AppendAchieved(gym.ObservationWrapper):
    """Appends the achieved goal to the observation."""

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The environment's dictionary with the longer observation."""
        parts = [observation["observation"], observation["achieved_goal"]]
        return {**observation, "observation": np.concatenate(parts)}


def make_env(task: EnvTask, **settings: Any) -> gym.Env:
    """The environment whose observations are as the task describes them."""
    env = gym.make(task.spec, disable_env_checker=True, **settings)
    appends = isinstance(task, GoalTask) and not task.achieved_in_obs
    return AppendAchieved(env) if appends else env


@lru_cache(maxsize=8)
def reward_env(task: GoalTask) -> gym.Env:
    """An environment that only computes rewards."""
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
    """The success that `info` reports: Fetch calls it `is_success`, the mazes `success`."""
    reported = info.get("is_success", info.get("success"))
    return None if reported is None else bool(reported)


def vector_space(space: gym.Space, refusal: str) -> Box:
    """The space itself if it is a box of one dimension."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return space
    kind = f"a box of shape {space.shape}" if isinstance(space, Box) else str(space)[:80]
    raise UserError(f"{refusal} {kind}, not a box of one dimension")


def examine_frame(name: str, env: gym.Env) -> tuple[str, EnvSpec, int, np.ndarray, np.ndarray]:
    """The first five fields of an `EnvTask`: its id, registration, horizon and action bounds."""
    refusal = f"{name} cannot be trained on: its actions are"
    actions = vector_space(env.action_space, refusal)
    require(actions.is_bounded(), f"{refusal} unbounded")
    is_real = np.issubdtype(actions.dtype, np.floating)
    require(is_real, f"{refusal} of {actions.dtype}, not real numbers")
    if env.spec is None or env.spec.max_episode_steps is None:
        raise UserError(
            f"{name} has no time limit: register it with max_episode_steps, "
            "or give --task-settings max_episode_steps=N"
        )
    low, high = (bound.astype(np.float64) for bound in (actions.low, actions.high))
    return name, env.spec, env.spec.max_episode_steps, low, high


class RandomStep(NamedTuple):
    """A step with a random action."""

    start: Any  # the observation at the start of the episode
    obs: Any  # the observation after the step
    reward: Any
    success: bool | None  # as the environment reports it


def random_steps(env: gym.Env, episodes: int = 1) -> list[RandomStep]:
    """Short episodes of random actions."""
    rng, actions = np.random.default_rng(0), env.action_space
    assert isinstance(actions, Box)
    steps = []
    for seed in range(episodes):
        start = deepcopy(env.reset(seed=seed)[0])  # some environments write into what they returned
        for _ in range(STEPS):
            action = rng.uniform(actions.low, actions.high).astype(actions.dtype)
            obs, reward, terminated, truncated, info = env.step(action)
            steps.append(RandomStep(start, deepcopy(obs), reward, is_success(info)))
            if terminated or truncated:
                break
    return steps


def examine_goals(name: str, env: gym.Env) -> GoalTask:
    """The environment as a task, if it follows the convention."""
    space, refusal = env.observation_space, f"{name} is not a goal environment:"
    parts = space.spaces if isinstance(space, Dict) else {}
    shapes = []
    for key in KEYS:
        require(key in parts, f"{refusal} its observation has no '{key}'")
        shapes.append(vector_space(parts[key], f"{name} cannot be trained on: its {key} is").shape)
    require(shapes[1] == shapes[2], f"{refusal} achieved_goal and desired_goal differ in shape")
    require(env.has_wrapper_attr("compute_reward"), f"{refusal} it has no compute_reward")
    frame = examine_frame(name, env)
    with refused(f"{name} does not play"):
        steps = random_steps(env, EPISODES)
        # In float32, as the replay buffer holds them.
        rows = [np.array([step.obs[key] for step in steps], np.float32) for key in KEYS]
        steady = all(np.array_equal(s.start[KEYS[2]], s.obs[KEYS[2]]) for s in steps)
    require(
        [x.shape[1:] for x in rows] == shapes,
        f"{name} gives observations of other shapes than its observation_space says",
    )
    for key, x in zip(KEYS, rows):
        require(bool(np.isfinite(x).all()), f"{name}: its {key} is not finite")
    require(steady, f"{name} changes the desired goal within an episode")
    obs, achieved, desired = rows
    reports = [step.success for step in steps]
    reported = None if None in reports else np.array(reports, bool)
    reward = _find_reward(name, env, achieved, desired, reported)
    require(
        reported is not None or reward.sparse or reward.radius is not None,
        f"{name} does not say what success is: "
        "neither info['is_success'] nor rewards of two values",
    )
    in_obs = find_achieved(obs, achieved) is not None
    (obs_dim,), (goal_dim,), _ = shapes
    return GoalTask(
        *frame,
        obs_dim=obs_dim if in_obs else obs_dim + goal_dim,
        goal_dim=goal_dim,
        reward=reward,
        reports_success=reported is not None,
        achieved_in_obs=in_obs,
    )


def _find_reward(
    name: str, env: gym.Env, achieved: np.ndarray, desired: np.ndarray, success: np.ndarray | None
) -> Reward:
    """Examines `compute_reward` on pairs of sampled goals, and of goals at all distances.

    The samples are N rows of goals, and the success that was reported for them.
    """
    rng, refusal = np.random.default_rng(1), f"{name}: compute_reward"
    goals = np.concatenate([achieved, desired])
    span = max(float(np.ptp(goals, 0).max()), 1e-3)

    def draw(x: np.ndarray, n: int = PAIRS // 4) -> np.ndarray:
        return x[rng.integers(len(x), size=n)]

    near = draw(goals, PAIRS // 2)
    way = rng.standard_normal(near.shape)
    way *= (span * 10 ** rng.uniform(-4, 0.3, len(way)) / np.linalg.norm(way, axis=-1))[:, None]
    way[:16] = 0  # goals that are exactly achieved
    x = np.concatenate([(near + way).astype(np.float32), draw(goals), draw(achieved)])
    y = np.concatenate([near, draw(desired), draw(achieved)])
    with refused(f"{refusal} fails on batches"):
        single = [batch_reward(env, a[None], g[None])[0] for a, g in zip(x[:8], y)]
        rewards = batch_reward(env, x, y)
    require(bool(np.isfinite(rewards).all()), f"{refusal} gives rewards that are not finite")
    same = np.allclose(single, rewards[:8])
    require(same, f"{refusal} gives batches other rewards than single goals")
    low, high = float(rewards.min()), float(rewards.max()) + 0.0  # no negative zero
    require(low != high, f"{refusal} gives {low:g} for every pair of goals")
    squared = ((x - y) ** 2).sum(-1)
    declared = getattr(env.unwrapped, "distance_threshold", None)
    radius = None if declared is None else float(declared)
    if len(np.unique(rewards)) == 2:
        for guess in (radius, _threshold(env, y[0], span, high)):
            if guess is not None and ((squared <= guess**2) == (rewards == high)).all():
                return Reward(low, high, True, guess)
        return Reward(low, high, True, None)
    if radius is not None and success is not None:
        within = ((achieved - desired) ** 2).sum(-1) <= radius**2
        radius = radius if (within == success).all() else None
    distance = bool(np.allclose(rewards, -np.sqrt(squared), atol=1e-5))
    # Training may meet goals further apart than these, but no reward above that of success.
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
    # The nearest short number is what the author wrote; at the edge itself rounding decides.
    short = float(f"{outside:.6g}")
    return short if abs(short - outside) < 1e-7 * span else outside
