"""Any Gymnasium environment with rewards and without goals, by its id.

Observations are a box of one dimension, actions a bounded one, and there is a time limit; an
episode may end before it. What does not fit is refused in one line before training starts. No JAX
here: worker processes make their environments with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from uvd.errors import UserError
from uvd.tasks.goalenv import (
    EnvTask,
    GoalTask,
    examine_frame,
    examine_goals,
    examined,
    kind_of,
    one_line,
    require,
)

LOOK = 16  # random steps that an environment must play before it is accepted


@dataclass(frozen=True, eq=False)
class RewardTask(EnvTask):
    """An environment without goals that was found fit to train on."""

    told: int = 0  # numbers at the end of an observation that critics read, but no policy
    previous_action: bool = False  # appended to what the agent observes; `obs_dim` counts it

    def observation(self, seen: np.ndarray, last: np.ndarray) -> np.ndarray:
        """What the agent observes where the environment shows `seen` after the action `last`."""
        obs = np.array(seen, np.float32)
        return np.concatenate([obs, last]) if self.previous_action else obs


@lru_cache(maxsize=8)
def with_previous_action(task: RewardTask) -> RewardTask:
    """The same task, the action before appended to its observations (zeros at the start)."""
    return replace(task, previous_action=True, obs_dim=task.obs_dim + task.action_dim)


def env_task(
    name: str, settings: dict[str, Any] | None = None, others: Iterable[str] = ()
) -> GoalTask | RewardTask:
    """The environment of that id, with goals or with rewards, examined.

    `others` are names that are known too, for the error that names the nearest ones.
    """
    return examined(name, settings, others, _examine)


def _examine(name: str, env: gym.Env) -> GoalTask | RewardTask:
    if isinstance(env.observation_space, Box):
        return examine_rewards(name, env)
    return examine_goals(name, env)


def examine_rewards(name: str, env: gym.Env) -> RewardTask:
    """What the environment is, if it can be trained on by its rewards."""
    space = env.observation_space
    require(
        len(space.shape or ()) == 1,
        f"{name} cannot be trained on: its observation is {kind_of(space)}, "
        "not a box of one dimension",
    )
    actions, spec, horizon = examine_frame(name, env)
    size = space.shape[0]  # type: ignore[index]
    rng = np.random.default_rng(0)
    try:
        obs, _ = env.reset(seed=0)
        seen, rewards = [obs], []
        for _ in range(min(LOOK, horizon)):
            action = rng.uniform(actions.low, actions.high).astype(actions.dtype)
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append(obs)
            rewards.append(float(reward))
            if terminated or truncated:
                break
    except Exception as error:
        raise UserError(f"{name} does not play: {one_line(error)}") from error
    require(
        all(np.shape(x) == (size,) for x in seen),
        f"{name} gives observations of other shapes than its observation_space says",
    )
    require(bool(np.isfinite(rewards).all()), f"{name} gives rewards that are not finite")
    low, high = (x.astype(np.float64) for x in (actions.low, actions.high))
    told = int(getattr(env.unwrapped, "told", 0))
    return RewardTask(name, spec, size, len(low), 0, horizon, low, high, told=told)
