"""Discriminator-actor-critic (Kostrikov et al. 2018): adversarial imitation, off-policy.

    for each update:
        discriminator D: one step between demonstrated (s, a) and the replay buffer's
        draw transitions (s, a, s'); reward r = log D(s, a) - log(1 - D(s, a))
        TD3's update on r; where the episode ends, an absorbing state earns r_abs for ever

The reward is computed anew whenever a transition is learned from: the buffer never holds a stale
one. It may be of either sign. Without the absorbing state a positive reward alone would teach not
to end episodes, and a negative one to end them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from uvd.agents.actor_critic import ActorCritic, Goals, TargetFn, TD3Config, TD3State
from uvd.agents.agent import (
    ALGORITHMS,
    Agent,
    Algorithm,
    Preset,
    Spec,
    simulated,
)
from uvd.agents.discriminator import (
    REWARD_BOUND,
    Discriminator,
    DiscriminatorConfig,
    DiscriminatorState,
)
from uvd.agents.heads import make_head
from uvd.agents.td3 import refuse_sigmoid
from uvd.collect.exploration import CollectConfig
from uvd.core.policy import MLP
from uvd.core.replay import Batch, Ring, fetch, sample


@dataclass(frozen=True)
class DACConfig:
    """TD3's settings and the discriminator's."""

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(critic_head="linear", action_penalty=0.1)
    )
    collect: CollectConfig = field(default_factory=CollectConfig)
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)

    def __post_init__(self) -> None:
        refuse_sigmoid(self.td3)


class DACState(NamedTuple):
    """TD3's state and the discriminator's."""

    td3: TD3State
    discriminator: DiscriminatorState


def make_target(gamma: float, bound: float, discriminator: Discriminator, net: MLP) -> TargetFn:
    """r + gamma Q'(s', mu'(s')), or r + gamma r_abs / (1 - gamma) where the episode ends."""

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, q: jax.Array, action: jax.Array):
        x = discriminator.read(state.norm, batch.obs, batch.action, batch.next_obs)
        reward = discriminator.reward(net, x)
        after_end = discriminator.reward(net, discriminator.absorbing) / (1 - gamma)
        value = jnp.where(batch.terminated, after_end, q)
        return jnp.clip(reward + gamma * value, -bound, bound), {"critic/reward": reward.mean()}

    return target_fn


def make_dac(config: DACConfig, spec: Spec) -> Agent:
    """DAC, its settings bound."""
    td3 = config.td3
    discriminator = Discriminator(config.discriminator, spec)
    bound = REWARD_BOUND / (1 - td3.gamma)
    ac = ActorCritic(td3, make_head(td3.critic_head, bound, td3.critic_start), spec)

    def init(key: jax.Array) -> DACState:
        key_td3, key_discriminator = jax.random.split(key)
        return DACState(ac.init(key_td3), discriminator.init(key_discriminator))

    def update(state: DACState, ring: Ring, key: jax.Array, step: jax.Array):
        key_step, key_agent_rows, key_rows, key_target = jax.random.split(key, 4)
        agent_batch = fetch(ring, sample(ring, key_agent_rows, td3.batch))
        fitted, fit_metrics = discriminator.step(
            state.discriminator, state.td3.norm, agent_batch, agent_batch.terminated, key_step
        )
        batch = fetch(ring, sample(ring, key_rows, td3.batch))
        target_fn = make_target(td3.gamma, bound, discriminator, fitted.net)
        goals = Goals(batch.goal)
        inner, metrics = ac.learn(
            state.td3, batch, goals, target_fn, lambda: batch.goal, key_target, step
        )
        return DACState(inner, fitted), {**fit_metrics, **metrics}

    return Agent(init, update, lambda state: ac.policy(state.td3))


# The settings of its authors for MuJoCo's walkers, as far as they apply.
SIMULATED = {
    "gamma": 0.99, "batch": 100, "hidden": (400, 300), "critic_lr": 1e-3, "tau": 0.005,
    "target_noise": 0.2, "action_penalty": 0.0, "noise": 0.1, "random": 0.0, "hold": 1,
    "capacity": 1_000_000, "updates_per_step": 1.0, "warmup": 10_000, "warmup_random": True,
    "actor_start": 1000, "discriminator_hidden": (100, 100),
}  # fmt: skip

ALGORITHMS["dac"] = Algorithm(
    about="adversarial imitation on TD3, off-policy (DAC)",
    config=DACConfig,
    make=make_dac,
    presets={"environment": Preset("Gymnasium environments", SIMULATED, simulated)},
    learns_from="demos",
)
