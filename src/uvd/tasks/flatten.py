"""Observations and goals that are not vectors, as vectors: parts in a row, choices one-hot."""

from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import FlattenObservation


def has_goals(space: gym.Space) -> TypeGuard[Dict]:
    """Whether an observation names goals."""
    return isinstance(space, Dict) and bool({"achieved_goal", "desired_goal"} & space.keys())


def can_flatten(space: gym.Space) -> bool:
    """Whether a space is made of vectors and choices: no pictures, nothing whose size varies."""
    if isinstance(space, (Dict, Tuple)):
        return all(map(can_flatten, space.values() if isinstance(space, Dict) else space))
    return _is_vector(space) or isinstance(space, (Discrete, MultiBinary, MultiDiscrete))


def flat_env(env: gym.Env) -> gym.Env:
    """The environment itself, or with flat observations and goals if they can be flattened."""
    space = env.observation_space
    parts = list(space.values()) if has_goals(space) else [space]
    if all(map(_is_vector, parts)) or not all(map(can_flatten, parts)):
        return env
    return FlattenGoals(env) if has_goals(space) else FlattenObservation(env)


class FlattenGoals(gym.ObservationWrapper, RecordConstructorArgs):
    """Flattens each part of an observation with goals."""

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        assert isinstance(env.observation_space, Dict)
        self.parts = env.observation_space.spaces
        self.observation_space = Dict({key: flatten_space(s) for key, s in self.parts.items()})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {key: flatten(space, observation[key]) for key, space in self.parts.items()}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """The environment's own reward, asked for one pair of goals after the other."""
        space, reward = self.parts["achieved_goal"], self.env.get_wrapper_attr("compute_reward")
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
