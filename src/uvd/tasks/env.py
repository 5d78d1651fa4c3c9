"""Gymnasium environments as tasks: what is known of one. `examine` finds it out.

With goals the convention is that of Gymnasium-Robotics: an observation is a dictionary of
`observation`, `achieved_goal` and `desired_goal`, and `compute_reward(achieved, desired, info)`
gives the reward for any pair of goals, one or a batch. Without goals the rewards are those of the
steps. No JAX here: worker processes import this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TransformObservation

from uvd.core.errors import UserError

Array = Any  # of NumPy; where success depends on the distance alone, of JAX too
KEYS = ("observation", "achieved_goal", "desired_goal")
_NO_GOAL = np.zeros(0, np.float32)


class Reward(NamedTuple):
    """What an environment's `compute_reward` was found to be."""

    low: float
    high: float  # both exact if there are two rewards, else wider than what the examination met
    sparse: bool  # two rewards, the higher one for success
    radius: float | None  # success is a distance of at most this; None: it is something else
    distance: bool = False  # the reward is the negative distance


@dataclass(frozen=True, eq=False)
class EnvTask:
    """An environment that was examined and accepted, with goals or with rewards of its own."""

    id: str
    spec: EnvSpec  # enough for a process that registered nothing to make the environment
    horizon: int
    low: np.ndarray  # [action], bounds of the environment's own actions
    high: np.ndarray  # [action]
    obs_dim: int
    goal_dim: int = 0
    privileged_dim: int = 0  # numbers at an observation's end that only critics read
    reward: Reward | None = None  # of goals, where there are any
    achieved_in_obs: bool = True  # the observation holds the achieved goal, or `make_env` adds it
    previous_action: bool = False  # observations end with the previous action; `obs_dim` counts it

    @property
    def action_dim(self) -> int:
        return len(self.low)

    @property
    def radius(self) -> float | None:
        """A goal is achieved within this distance, if that is the rule."""
        return self.reward.radius if self.reward else None

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

    def split(self, raw: Any, previous_action: np.ndarray) -> Sequence[np.ndarray]:
        """Observation, achieved goal and desired goal of what the environment returned."""
        if self.goal_dim:
            return [np.array(raw[key], np.float32) for key in KEYS]
        obs = np.array(raw, np.float32)
        obs = np.concatenate([obs, previous_action]) if self.previous_action else obs
        return obs, _NO_GOAL, _NO_GOAL

    def success(self, achieved: Array, goal: Array) -> Array:
        """Whether goals are achieved, as far as that follows from the rewards."""
        rule = self.reward
        assert rule
        if rule.radius is not None:
            return ((achieved - goal) ** 2).sum(-1) <= rule.radius**2
        if not rule.sparse:
            raise UserError(
                f"{self.id} has dense rewards and no distance_threshold: success is unknown "
                "for goals other than the intended one"
            )
        return batch_reward(reward_env(self), achieved, goal) > (rule.low + rule.high) / 2

    def episode_success(
        self, achieved: np.ndarray, goal: np.ndarray, reported: Sequence[bool] | None
    ) -> np.ndarray:
        """Success after each of an episode's L steps, bool [L].

        It is what the environment `reported` [L]; without reports (None) it follows from the
        rewards for `achieved` [L + 1, goal] and the desired `goal` [goal].
        """
        if not self.goal_dim:
            return np.zeros(len(achieved) - 1, bool)
        success = self.success(achieved[1:], goal) if reported is None else reported
        return np.asarray(success, bool)


def make_env(task: EnvTask, **settings: Any) -> gym.Env:
    """The environment whose observations are as the task describes them."""
    env = gym.make(task.spec, disable_env_checker=True, **settings)
    return env if task.achieved_in_obs else TransformObservation(env, _append_achieved, None)


def _append_achieved(obs: dict[str, Any]) -> dict[str, Any]:
    """What the environment returned, with a longer observation."""
    longer = np.concatenate([obs["observation"], obs["achieved_goal"]])
    return {**obs, "observation": longer}


reward_env = lru_cache(maxsize=8)(make_env)  # an environment that only computes rewards


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
