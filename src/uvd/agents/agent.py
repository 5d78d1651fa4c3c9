"""The contract of an algorithm, and the registry.

An algorithm is three pure functions over a pytree of state, and two more where not everybody who
plays is to be shown. A run of n seeds is the same program under `vmap`; `step`, the update's
number, is shared by all seeds, so that a `cond` on it (a delayed actor, a hard copy) stays a branch
there instead of becoming a select that computes both sides.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd.core.policy import Norm, Policy
from uvd.core.replay import Ring
from uvd.errors import UserError, nearest

State = Any
Metrics = dict[str, jax.Array]


class Demos(NamedTuple):
    """The chosen pairs of all chosen demonstrations, as the task's own float32 arrays."""

    obs: Any  # [N, obs]
    action: Any | None = None  # [N, action], in [-1, 1]; None: observations alone
    next_obs: Any | None = None  # [N, obs]; None where the data do not hold it


@dataclass(frozen=True)
class Spec:
    """What an algorithm knows of its task."""

    obs_dim: int
    action_dim: int
    goal_dim: int
    success: Callable[[Any, Any], Any]  # (achieved, goal) -> bool
    norm: Norm
    live: tuple[int, ...]  # goal dimensions that vary in what is asked for
    radius: float | None = None  # success is a distance of at most this, where it is one
    reward: Callable[[Any, Any], Any] | None = None  # (achieved, goal); None: success - 1
    reward_range: tuple[float, float] = (-1.0, 0.0)
    rewards: bool = False  # the task has rewards of its own, in `Batch.reward`
    demos: Demos | None = None  # what is to be imitated
    live_obs: tuple[int, ...] = ()  # observation columns that move in roll-outs or demonstrations
    told: int = 0  # numbers at the end of an observation that critics read, but no policy
    cycle: int = 0  # transitions that a cycle brings: what an on-policy algorithm learns from

    @property
    def columns(self) -> np.ndarray:
        """The observation's columns that densities are over: all, where none are known to move."""
        return np.array(self.live_obs or range(self.obs_dim), np.int32)

    def value_range(self, gamma: float) -> tuple[float, float]:
        """What discounted sums of rewards lie between; an episode may end at any step.

        Of a task's own rewards no range is known.
        """
        if self.rewards:
            return -math.inf, math.inf
        low, high = self.reward_range
        return min(low, 0.0) / (1 - gamma), max(high, 0.0) / (1 - gamma)


def demonstrations(spec: Spec) -> Demos:
    """What is to be imitated, as device arrays."""
    if spec.demos is None or not len(spec.demos.obs):
        raise UserError("there is nothing to imitate: give demonstrations (--demos)")
    return Demos(*(None if x is None else jnp.asarray(x, jnp.float32) for x in spec.demos))


class Agent(NamedTuple):
    """An algorithm, its settings already bound."""

    init: Callable[[jax.Array, Spec], State]
    update: Callable[[State, Ring, jax.Array, jax.Array], tuple[State, Metrics]]
    policy: Callable[[State], Policy]  # who plays
    chosen: Callable[[State], Policy] | None = None
    # told who played the newest cycle, and whether episodes are as long by now as they will be
    judge: Callable[[State, Policy, Ring, jax.Array | bool], State] | None = None

    def result(self, state: State) -> Policy:
        """Who is evaluated, kept and shown: who plays, unless another was chosen."""
        return (self.chosen or self.policy)(state)

    def judged(
        self, state: State, player: Policy, ring: Ring, settled: jax.Array | bool = True
    ) -> State:
        """The state once it knows who played the newest cycle's episodes."""
        return self.judge(state, player, ring, settled) if self.judge else state


class Algorithm(NamedTuple):
    """A registered algorithm: its settings' dataclass and the maker of its functions."""

    about: str
    config: type
    make: Callable[[Any, Spec], Agent]
    learns_from: str = "goals"  # or "demos": what it is told to do
    on_policy: bool = False  # one `update` a cycle, which reads the newest rows of the ring
    needs_actions: bool = False  # demonstrations of observations alone are refused
    takes_rewards: bool = False  # works on tasks without goals too, from their rewards


ALGORITHMS: dict[str, Algorithm] = {}


def get_algorithm(name: str) -> Algorithm:
    """The registered algorithm of that name."""
    if name not in ALGORITHMS:
        raise nearest(name, ALGORITHMS, "algorithm")
    return ALGORITHMS[name]
