"""Hindsight experience replay: TD3 over batches whose goals are relabelled.

    draw a batch of transitions (s, a, s') with the goals g that the roll-outs pursued
    for k of k + 1 of them: g <- a goal achieved later in the same roll-out
    TD3's update, with the reward r(s', g) of each transition for its new goal

The new goal is drawn from what happened *after* the transition, so it depends on s'. That is
the source of hindsight bias (section 3.1); how large it is depends on the strategy.
The reward is computed from the transition's own next achieved goal and the new goal.
"""

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp

from uvd.agents.actor_critic import TD3Config
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Preset, Spec
from uvd.agents.td3 import ENVIRONMENT, PAPER, make_sparse, refuse_sigmoid
from uvd.collect.exploration import CollectConfig
from uvd.core.config import Size, validate
from uvd.core.replay import (
    Batch,
    Ring,
    fetch,
    future,
    future_uniform,
    past_kept,
    sample,
    uniform_offset,
)


@dataclass(frozen=True)
class HERConfig:
    """TD3's settings and how goals are altered."""

    td3: TD3Config = field(default_factory=TD3Config)
    collect: CollectConfig = field(default_factory=CollectConfig)
    strategy: Literal["future", "final", "episode", "paper"] = "future"
    """How new goals are chosen: future, final, episode, or paper (for whole unsuccessful
    roll-outs)."""
    k: Size = 4
    """Relabelled goals for each intended one (future, final, episode)."""

    def __post_init__(self) -> None:
        validate(self)
        refuse_sigmoid(self.td3)


def _future(ring: Ring, batch: Batch, key: jax.Array) -> jax.Array:
    """A goal achieved later in the same episode."""
    return future_uniform(ring, batch.row, key)


def _final(ring: Ring, batch: Batch, key: jax.Array) -> jax.Array:
    """The goal achieved at the episode's end."""
    return future(ring, batch.row, ring.steps_left[batch.row])


def _episode(ring: Ring, batch: Batch, key: jax.Array) -> jax.Array:
    """A goal achieved anywhere in the same episode (as far back as the ring still holds it)."""
    back = past_kept(ring, batch.row)
    offset = uniform_offset(key, back + ring.steps_left[batch.row] + 1)
    return future(ring, batch.row, offset - 1 - back)


STRATEGIES = {"future": _future, "final": _final, "episode": _episode}


def hindsight_goals(config: HERConfig, ring: Ring, batch: Batch, key: jax.Array) -> jax.Array:
    """The batch's goals, altered as the strategy says."""
    key_goal, key_alter = jax.random.split(key)
    if config.strategy == "paper":
        # "We alter the goal on unsuccessful roll-outs and only learn about the true goal based on
        # successful ones" (section 3.1). Unsuccessful: the goal was never reached.
        alter = ~ring.reached[batch.row]
        goal = _future(ring, batch, key_goal)
    else:
        alter = jax.random.uniform(key_alter, batch.row.shape) < config.k / (1 + config.k)
        goal = STRATEGIES[config.strategy](ring, batch, key_goal)
    return jnp.where(alter[:, None], goal, batch.goal)


def make_her(config: HERConfig, spec: Spec) -> Agent:
    """TD3 with hindsight goals."""

    def draw(ring: Ring, key: jax.Array) -> tuple[Batch, jax.Array]:
        key_rows, key_goals = jax.random.split(key)
        batch = fetch(ring, sample(ring, key_rows, config.td3.batch))
        return batch, hindsight_goals(config, ring, batch, key_goals)

    return make_sparse(config.td3, spec, draw)


ALGORITHMS["her"] = Algorithm(
    about="TD3 with hindsight goals (HER)",
    config=HERConfig,
    make=make_her,
    presets={
        "environment": ENVIRONMENT,
        "paper": Preset("the paper's Table 1 to the letter", PAPER),
    },
)
