"""Behavioural cloning (section 2.3): regression on the demonstrations' actions.

No experience enters; the loop plays episodes all the same, as for every algorithm.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Spec, demonstrations
from uvd.core.nets import init_mlp
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.core.replay import Ring
from uvd.errors import UserError


@dataclass(frozen=True)
class BCConfig:
    """Settings of the regression."""

    batch: int = 256
    """Pairs in an update, drawn with replacement."""
    hidden: tuple[int, ...] = (128, 128)
    """Hidden layers of the actor."""
    actor_lr: float = 1e-3
    """Adam's learning rate."""
    l2: float = 0.0
    """L2 regularisation of the actor."""
    updates_per_step: float = 0.25
    """Updates for each environment step."""
    capacity: int = 100_000
    """Transitions in the replay memory, which nothing reads."""


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
    wanted = jnp.clip(demos.action, -0.999, 0.999)
    no_goal = jnp.zeros((config.batch, spec.goal_dim))
    optimiser = optax.chain(optax.add_decayed_weights(config.l2), optax.adam(config.actor_lr))

    def init(key: jax.Array, spec: Spec) -> BCState:
        actor = init_mlp(key, (spec.obs_dim + spec.goal_dim, *config.hidden, spec.action_dim), 0.1)
        return BCState(actor, optimiser.init(actor), jax.tree.map(jnp.asarray, spec.norm))

    def update(state: BCState, ring: Ring, key: jax.Array, step: jax.Array):
        pick = jax.random.randint(key, (config.batch,), 0, len(wanted))

        def actor_loss(actor: MLP) -> tuple[jax.Array, jax.Array]:
            action = act(Policy(actor, state.norm), demos.obs[pick], no_goal)
            return ((action - wanted[pick]) ** 2).mean(), abs(action).mean()

        (loss, size), grads = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        updates, opt = optimiser.update(grads, state.actor_opt, state.actor)
        state = state._replace(actor=optax.apply_updates(state.actor, updates), actor_opt=opt)
        return state, {"actor/loss": loss, "actor/abs_action": size}

    return Agent(init, update, lambda state: Policy(state.actor, state.norm))


ALGORITHMS["bc"] = Algorithm(
    "behavioural cloning: regression on demonstrated actions",
    BCConfig,
    make_bc,
    learns_from="demos",
    needs_actions=True,
)
