"""Gymnasium environments with rewards and without goals.

Observations are a box of one dimension, actions a bounded one, and there is a time limit; an
episode may end before it. What does not fit is refused in one line before training starts. No JAX
here: worker processes import this.
"""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from uvd.core.config import require
from uvd.core.errors import refused
from uvd.tasks.goalenv import EnvTask, examine_frame, random_steps, vector_space


@dataclass(frozen=True, eq=False)
class RewardTask(EnvTask):
    """An environment without goals that was examined and accepted."""

    previous_action: bool = False  # observations end with the previous action; `obs_dim` counts it

    def observation(self, obs: np.ndarray, previous_action: np.ndarray) -> np.ndarray:
        """The task's observation, from the environment's and the previous action in [-1, 1]."""
        obs = np.array(obs, np.float32)
        return np.concatenate([obs, previous_action]) if self.previous_action else obs


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
