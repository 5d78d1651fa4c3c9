"""Behavioural cloning (section 2.3): regression on the demonstrations' actions.

    for each update: draw demonstrated (s, a); one step on (mu(s) - a)^2

No experience enters. The loop plays episodes all the same, so that all algorithms report alike.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import (
    ALGORITHMS,
    Agent,
    Algorithm,
    Metrics,
    Preset,
    Spec,
    demonstrations,
    simulated,
)
from uvd.collect.exploration import CollectConfig
from uvd.core.config import Count, Layers, NotNegative, Positive, validate
from uvd.core.errors import UserError
from uvd.core.nets import gradient_step, init_mlp, make_optimiser
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.core.replay import Ring


@dataclass(frozen=True)
class BCConfig:
    """Settings of the regression."""

    batch: Count = 256
    """Pairs in an update, drawn with replacement."""
    hidden: Layers = (128, 128)
    """Hidden layers of the actor."""
    actor_lr: Positive = 1e-3
    """Adam's learning rate."""
    l2: NotNegative = 0.0
    """L2 regularisation of the actor."""
    updates_per_step: Positive = 0.25
    """Updates for each environment step."""

    def __post_init__(self) -> None:
        validate(self)


class BCState(NamedTuple):
    """The actor, its optimiser, and the feature ranges it reads through."""

    actor: MLP
    actor_opt: optax.OptState
    norm: Norm


def make_bc(config: BCConfig, spec: Spec) -> Agent:
    """Behavioural cloning, its settings bound."""
    demos = demonstrations(spec)
    if demos.action is None:
        raise UserError("bc needs actions, and the demonstrations have none")
    # An actor ends in tanh: actions at its very ends would pull its outputs to infinity.
    target = jnp.clip(demos.action, -0.999, 0.999)
    no_goal = jnp.zeros((config.batch, spec.goal_dim))
    optimiser = make_optimiser("adam", config.actor_lr, l2=config.l2)

    def init(key: jax.Array) -> BCState:
        actor = init_mlp(key, (spec.obs_dim + spec.goal_dim, *config.hidden, spec.action_dim), 0.1)
        return BCState(actor, optimiser.init(actor), jax.tree.map(jnp.asarray, spec.norm))

    def update(state: BCState, ring: Ring, key: jax.Array, step: jax.Array):
        pick = jax.random.randint(key, (config.batch,), 0, len(target))

        def actor_loss(actor: MLP) -> tuple[jax.Array, Metrics]:
            action = act(Policy(actor, state.norm), demos.obs[pick], no_goal)
            loss = ((action - target[pick]) ** 2).mean()
            return loss, {"actor/loss": loss, "actor/abs_action": abs(action).mean()}

        actor, opt, metrics = gradient_step(actor_loss, optimiser, state.actor, state.actor_opt)
        return BCState(actor, opt, state.norm), metrics

    return Agent(init, update, lambda state: Policy(state.actor, state.norm))


SIMULATED = {"hidden": (400, 300), "actor_lr": 3e-4, "l2": 1e-5, "updates_per_step": 0.1}

ALGORITHMS["bc"] = Algorithm(
    about="behavioural cloning: regression on demonstrated actions",
    config=BCConfig,
    make=make_bc,
    presets={"environment": Preset("Gymnasium environments", SIMULATED, simulated)},
    learns_from="demos",
    needs_actions=True,
    collect=lambda config: CollectConfig(
        updates_per_step=config.updates_per_step, noise=0, random=0, hold=1, warmup=0, capacity=0
    ),
)
