"""The contract of an algorithm, and the registry.

An algorithm is three pure functions over a pytree of state, and optionally a fourth that says how
good a finished cycle was. A run of n seeds is the same program under `vmap`; `step`, the update's
number, is shared by all seeds, so that a `cond` on it (a delayed actor, a copy now and then) stays
a branch instead of becoming a select that computes both sides.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from uvd.collect.exploration import CollectConfig
from uvd.core.episode import DemoSteps
from uvd.core.errors import UserError, nearest
from uvd.core.policy import Norm, Policy
from uvd.core.replay import Ring

State = Any
Metrics = dict[str, jax.Array]


class GoalTest(Protocol):
    """Success or reward for pairs of goals, single or in batches."""

    def __call__(self, achieved: jax.Array, goal: jax.Array, /) -> jax.Array: ...


@dataclass(frozen=True)
class Spec:
    """What an algorithm knows of its task."""

    obs_dim: int
    action_dim: int
    goal_dim: int
    success: GoalTest
    norm: Norm
    varying_goal: tuple[int, ...]  # goal dimensions that vary in the desired goals
    radius: float | None = None  # success: a distance of at most this (None: another rule)
    reward: GoalTest | None = None  # reward(achieved, goal); None: success - 1
    reward_range: tuple[float, float] = (-1.0, 0.0)
    has_rewards: bool = False  # the task has rewards of its own, in `Batch.reward`
    demos: DemoSteps | None = None  # what is to be imitated
    varying_obs: tuple[int, ...] = ()  # observation columns that vary in play or demonstrations
    privileged_dim: int = 0  # numbers at the end of an observation that only critics read
    cycle_steps: int = 0  # transitions that a cycle collects
    horizon: int = 0  # steps of an episode that nothing ends

    @property
    def policy_obs_dim(self) -> int:
        """How many numbers of an observation the policy reads: the first ones."""
        return self.obs_dim - self.privileged_dim

    @property
    def columns(self) -> np.ndarray:
        """The observation's columns that densities are over: all, where none are known to vary."""
        return np.array(self.varying_obs or range(self.obs_dim), np.int32)

    def value_range(self, gamma: float) -> tuple[float, float]:
        """The bounds of discounted sums of rewards; an episode may end at any step.

        The range of a task's own rewards is not known.
        """
        if self.has_rewards:
            return -math.inf, math.inf
        low, high = self.reward_range
        return min(low, 0.0) / (1 - gamma), max(high, 0.0) / (1 - gamma)


def demonstrations(spec: Spec) -> DemoSteps:
    """What is to be imitated, as device arrays."""
    if spec.demos is None or not len(spec.demos.obs):
        raise UserError("there is nothing to imitate: give demonstrations (--demos)")
    return DemoSteps(*(None if x is None else jnp.asarray(x, jnp.float32) for x in spec.demos))


class Agent(NamedTuple):
    """An algorithm, its settings and its task already bound."""

    init: Callable[[jax.Array], State]  # key -> state
    update: Callable[[State, Ring, jax.Array, jax.Array], tuple[State, Metrics]]
    """(state, replay buffer, key, number of the update) -> (state, metrics)"""
    policy: Callable[[State], Policy]
    score: Callable[[State, Ring], jax.Array] | None = None
    """How good the newest cycle in the buffer was, without reading rewards. With a score, the loop
    keeps the best policy; without one, the newest policy is the result."""


class Facts(NamedTuple):
    """What of a task decides which preset suits it."""

    simulated: bool  # a Gymnasium environment, not one of the small tasks in JAX
    has_goals: bool


class Preset(NamedTuple):
    """Named settings, of the algorithm and of the run."""

    about: str
    settings: Mapping[str, Any]
    suits: Callable[[Facts], bool] = lambda facts: False
    """Whether such a task is trained with it unless a preset is named."""


def simulated(facts: Facts) -> bool:
    """For presets that suit every Gymnasium environment."""
    return facts.simulated


def simulated_goals(facts: Facts) -> bool:
    """For presets that suit Gymnasium environments with goals."""
    return facts.simulated and facts.has_goals


# (settings that were given, demonstrations) -> defaults that follow from both
DefaultsFor = Callable[[Mapping[str, Any], DemoSteps], Mapping[str, Any]]


class Algorithm(NamedTuple):
    """A registered algorithm: its settings, the maker of its functions, and what the loop needs."""

    about: str
    config: type
    make: Callable[[Any, Spec], Agent]
    presets: Mapping[str, Preset]
    learns_from: Literal["goals", "demos"] = "goals"
    on_policy: bool = False  # one update a cycle, which reads the newest transitions
    needs_actions: bool = False  # demonstrations without actions are refused
    takes_rewards: bool = False  # works on tasks without goals too, from their rewards
    collect: Callable[[Any], CollectConfig] = lambda config: config.collect
    defaults_for: DefaultsFor = lambda given, demos: {}
    run_defaults: Mapping[str, Any] = {}  # run settings that differ from the usual defaults


ALGORITHMS: dict[str, Algorithm] = {}


def get_algorithm(name: str) -> Algorithm:
    """The registered algorithm of that name."""
    if name not in ALGORITHMS:
        raise nearest(name, ALGORITHMS, "algorithm")
    return ALGORITHMS[name]
