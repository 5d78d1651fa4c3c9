"""Gymnasium environments with rewards and without goals.

Observations are a box of one dimension, actions a bounded one, and there is a time limit; an
episode may end before it. What does not fit is refused in one line before training starts. No JAX
here: worker processes import this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from uvd.core.config import require
from uvd.core.errors import refused
from uvd.tasks.goalenv import EnvTask, examine_frame, random_steps, vector_space

_NO_GOAL = np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class RewardTask(EnvTask):
    """An environment without goals that was examined and accepted."""

    previous_action: bool = False  # observations end with the previous action; `obs_dim` counts it

    def split(self, raw: Any, previous_action: np.ndarray) -> Sequence[np.ndarray]:
        """The task's observation, and no goals."""
        obs = np.array(raw, np.float32)
        obs = np.concatenate([obs, previous_action]) if self.previous_action else obs
        return obs, _NO_GOAL, _NO_GOAL

    def episode_success(
        self, achieved: np.ndarray, goal: np.ndarray, reported: Sequence[bool] | None
    ) -> np.ndarray:
        """None: there is nothing to reach."""
        return np.zeros(len(achieved) - 1, bool)


def examine_rewards(name: str, env: gym.Env) -> RewardTask:
    """The environment as a task, if it can be trained on by its rewards."""
    space = vector_space(env.observation_space, f"{name} cannot be trained on: its observation is")
    frame = examine_frame(name, env)
    with refused(f"{name} does not play"):
        steps = random_steps(env)
        shapes = {np.shape(obs) for step in steps for obs in (step.start, step.obs)}
        rewards = [float(step.reward) for step in steps]
    require(
        shapes == {space.shape},
        f"{name} gives observations of other shapes than its observation_space says",
    )
    require(bool(np.isfinite(rewards).all()), f"{name} gives rewards that are not finite")
    privileged = int(getattr(env.unwrapped, "privileged_dim", 0))
    return RewardTask(*frame, obs_dim=space.shape[0], privileged_dim=privileged)
