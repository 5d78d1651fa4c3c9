"""Observations and goals that are not vectors, as vectors: parts in a row, choices one-hot.

No JAX here: worker processes import this.
"""

from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space, iterate

from uvd.tasks.env import KEYS


def has_goals(space: gym.Space) -> TypeGuard[Dict]:
    """Whether an observation names goals: otherwise it is one thing, whatever its parts are."""
    return isinstance(space, Dict) and bool({"achieved_goal", "desired_goal"} & space.keys())


def flat_env(env: gym.Env) -> gym.Env:
    """The environment itself, or with flat observations and goals if they can be flattened."""
    space = env.observation_space
    parts = list(space.values()) if has_goals(space) else [space]
    return env if all(map(_is_vector, parts)) or not all(map(can_flatten, parts)) else Flat(env)


def can_flatten(space: gym.Space) -> bool:
    """Whether a space is made of vectors and choices: no pictures, nothing whose size varies."""
    if isinstance(space, (Dict, Tuple)):
        return all(map(can_flatten, space.values() if isinstance(space, Dict) else space))
    return _is_vector(space) or isinstance(space, (Discrete, MultiBinary, MultiDiscrete))


def flat_rows(space: gym.Space, rows: Any, number: int) -> np.ndarray:
    """So many stacked members of a space as flat rows."""
    return np.array([flatten(space, row) for row in iterate(batch_space(space, number), rows)])


class Flat(gym.ObservationWrapper, RecordConstructorArgs):
    """Flattens observation and goals."""

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.parts: Any = env.observation_space
        self.observation_space = flatten_space(self.parts)
        if has_goals(self.parts):
            self.observation_space = Dict({key: flatten_space(s) for key, s in self.parts.items()})

    def observation(self, observation: Any) -> Any:
        """The flat arrays of what the environment returned."""
        if not has_goals(self.parts):
            return flatten(self.parts, observation)
        return {key: flatten(self.parts[key], observation[key]) for key in KEYS}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        """The environment's own reward, asked for one pair of goals after the other."""
        space, reward = self.parts["achieved_goal"], self.env.get_wrapper_attr("compute_reward")
        if _is_vector(space):
            return reward(achieved, desired, info)
        pairs = zip(achieved, desired, strict=True)
        return np.array([reward(_member(space, a), _member(space, b), info) for a, b in pairs])


def _is_vector(space: gym.Space) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1


def _member(space: gym.Space, x: np.ndarray) -> Any:
    """What a flat array stands for; of a choice's numbers the largest decides."""
    if isinstance(space, (Dict, Tuple)):
        parts = list(space.values() if isinstance(space, Dict) else space)
        pieces = np.split(x, np.cumsum([flatdim(part) for part in parts])[:-1])
        members = [_member(part, piece) for part, piece in zip(parts, pieces, strict=True)]
        return dict(zip(space, members)) if isinstance(space, Dict) else tuple(members)
    if isinstance(space, (Discrete, MultiDiscrete)):
        sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
        pieces = np.split(x, np.cumsum(sizes)[:-1])
        x = np.concatenate([piece == piece.max() for piece in pieces]).astype(x.dtype)
    return unflatten(space, x)
