"""Goals for a Gymnasium environment that has none. No JAX here: worker processes import this."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict


class GoalWrapper(gym.Wrapper):
    """Makes a goal environment of an environment whose observation is a box.

    `achieved(obs)` gives the numbers that goals are about. A desired goal is drawn from the box
    `goals` at each reset. It is achieved within `radius`: the reward is 0 there and -1 elsewhere.
    """

    def __init__(
        self, env: gym.Env, achieved: Callable[[np.ndarray], Any], goals: Box, radius: float
    ) -> None:
        super().__init__(env)
        goal = Box(-np.inf, np.inf, goals.shape, np.float64)
        self.observation_space = Dict(
            observation=env.observation_space, achieved_goal=goal, desired_goal=goal
        )
        self.achieved, self.goals, self.distance_threshold = achieved, goals, radius

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """A new episode with a new goal."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.goal = self.env.unwrapped.np_random.uniform(self.goals.low, self.goals.high)
        return self.observe(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """A step of the environment, with the reward and the success of the goal."""
        obs, _, terminated, truncated, info = self.env.step(action)
        seen = self.observe(obs)
        reward = float(self.compute_reward(seen["achieved_goal"], self.goal, info))
        return seen, reward, terminated, truncated, {**info, "is_success": reward == 0}

    def observe(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """The environment's observation beside the achieved and the desired goal."""
        achieved = np.asarray(self.achieved(obs), np.float64)
        return {"observation": obs, "achieved_goal": achieved, "desired_goal": self.goal.copy()}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """0 where the goal is achieved and -1 elsewhere, for one pair of goals or a batch."""
        return (np.linalg.norm(achieved - desired, axis=-1) <= self.distance_threshold) - 1.0
