"""The discriminator D of GAIL and DAC: which pairs are the expert's, and the reward that follows.

    one step down  -log D(expert) - log(1 - D(agent)) + penalty * (|gradient of the logit| - 1)^2

Trained on as many pairs of the expert as of the agent, its logit log D - log(1 - D) tends to the
logarithm of the ratio of their densities. The penalty is taken between pairs of both. What it reads
is observation and action, observation and next observation, or the observation alone where
demonstrations have no actions.

An episode that ends leads to an absorbing state, in which the agent stays (section 4.2 of
"Discriminator-Actor-Critic", Kostrikov et al. 2018). It is one more input, all other inputs zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.agent import Metrics, Spec, demonstrations
from uvd.core.config import Layers, NotNegative, Positive, require, validate
from uvd.core.nets import gradient_step, init_mlp
from uvd.core.policy import MLP, Norm, mlp, normalised
from uvd.core.replay import Batch

REWARD_BOUND = 10.0  # rewards are clipped to this size


@dataclass(frozen=True)
class DiscriminatorConfig:
    """What the discriminator reads, and how it learns."""

    reads: Literal["auto", "action", "next", "state"] = "auto"
    """What it compares: action (s, a), next (s, s'), state (s); auto: action where demonstrations
    have them, else state."""
    discriminator_hidden: Layers = (64, 64)
    """Hidden layers of the discriminator."""
    discriminator_lr: Positive = 1e-3
    """Adam's learning rate of the discriminator."""
    gradient_penalty: NotNegative = 10.0
    """Weight of (|gradient of the logit| - 1)² between pairs of the expert and the agent."""

    def __post_init__(self) -> None:
        validate(self)


class DiscriminatorState(NamedTuple):
    """The net and its optimiser."""

    net: MLP
    net_opt: optax.OptState


def logits(net: MLP, x: jax.Array) -> jax.Array:
    """log D - log(1 - D) of inputs."""
    return mlp(net, x)[..., 0]


class Discriminator:
    """The discriminator between the demonstrations' pairs and an agent's.

    Its logit is the reward, or what `reward_of` makes of it.
    """

    def __init__(
        self,
        config: DiscriminatorConfig,
        spec: Spec,
        reward_of: Callable[[jax.Array], jax.Array] = lambda logit: logit,
    ) -> None:
        demos, reads = demonstrations(spec), config.reads
        if reads == "auto":
            reads = "state" if demos.action is None else "action"
        require(
            reads != "action" or demos.action is not None, "no actions, which reads = action needs"
        )
        require(
            reads != "next" or demos.next_obs is not None,
            "not all steps have a next one, which reads = next needs",
        )
        width = {"action": spec.action_dim, "next": spec.obs_dim, "state": 0}[reads]
        self.config, self.reads, self.demos, self.reward_of = config, reads, demos, reward_of
        self.inputs = spec.obs_dim + width + 1
        self.absorbing = jnp.zeros(self.inputs).at[-1].set(1.0)  # the absorbing state's inputs
        self.optimiser = optax.adam(config.discriminator_lr)

    def init(self, key: jax.Array) -> DiscriminatorState:
        """A fresh net."""
        net = init_mlp(key, (self.inputs, *self.config.discriminator_hidden, 1), 0.1)
        return DiscriminatorState(net, self.optimiser.init(net))

    def read(
        self, norm: Norm, obs: jax.Array, action: jax.Array | None, next_obs: jax.Array | None
    ) -> jax.Array:
        """The net's inputs for transitions."""
        parts = [normalised(norm, obs)]
        if self.reads == "action" and action is not None:
            parts.append(jnp.clip(action, -1, 1))
        elif self.reads == "next" and next_obs is not None:
            parts.append(normalised(norm, next_obs))
        return jnp.concatenate([*parts, jnp.zeros((*obs.shape[:-1], 1))], -1)

    def step(
        self, state: DiscriminatorState, norm: Norm, batch: Batch, ends: jax.Array, key: jax.Array
    ) -> tuple[DiscriminatorState, Metrics]:
        """One step on the agent's transitions and as many pairs of the expert.

        Where `ends` is true the transition is followed by one of the absorbing state, so that a
        memory of transitions counts as if it held those too.
        """
        key_expert, key_mix = jax.random.split(key)
        n = len(batch.obs)
        pick = jax.random.randint(key_expert, (n,), 0, len(self.demos.obs))
        expert = self.read(norm, *jax.tree.map(lambda x: x[pick], self.demos))
        agent = self.read(norm, batch.obs, batch.action, batch.next_obs)
        mix = jax.random.uniform(key_mix, (n, 1))
        between = mix * expert + (1 - mix) * agent

        def discriminator_loss(net: MLP) -> tuple[jax.Array, Metrics]:
            on_expert, on_agent = logits(net, expert), logits(net, agent)
            after_end = jax.nn.softplus(logits(net, self.absorbing)) * ends.sum()
            agent_loss = (jax.nn.softplus(on_agent).sum() + after_end) / (n + ends.sum())
            slope = jax.vmap(jax.grad(logits, 1), (None, 0))(net, between)
            size = jnp.sqrt((slope**2).sum(-1) + 1e-12)
            penalty = ((size - 1) ** 2).mean()
            loss = jax.nn.softplus(-on_expert).mean() + agent_loss
            right = ((on_expert > 0).mean() + (on_agent <= 0).mean()) / 2
            return loss + self.config.gradient_penalty * penalty, {
                "discriminator/loss": loss,
                "discriminator/penalty": penalty,
                "discriminator/right": right,
                "discriminator/logit_expert": on_expert.mean(),
                "discriminator/logit_agent": on_agent.mean(),
            }

        net, opt, metrics = gradient_step(
            discriminator_loss, self.optimiser, state.net, state.net_opt
        )
        return DiscriminatorState(net, opt), metrics

    def reward(self, net: MLP, x: jax.Array) -> jax.Array:
        """The reward of inputs."""
        return jnp.clip(self.reward_of(logits(net, x)), -REWARD_BOUND, REWARD_BOUND)
