"""Discriminator-actor-critic (Kostrikov et al. 2018): adversarial imitation, off-policy.

TD3 on the reward of a discriminator between the demonstrations and the whole replay memory. The
reward is computed anew whenever a transition is learned from: the memory never holds a stale one.

The reward log D - log(1 - D) may be of either sign, and an episode that ends goes on in an
absorbing state with a reward of its own, r_abs for ever: without it, a positive reward alone would
teach not to end episodes and a negative one to end them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Spec
from uvd.agents.discriminator import (
    Discriminator,
    DiscriminatorConfig,
    DiscriminatorState,
    make_discriminator,
)
from uvd.agents.td3 import HEADS, Head, TargetFn, TD3Config, TD3State, init_td3, learn, next_value
from uvd.core.policy import MLP, Policy
from uvd.core.replay import Batch, Ring, fetch, sample


@dataclass(frozen=True)
class DACConfig:
    """TD3's settings and the discriminator's."""

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(critic_head="linear", action_penalty=0.1)
    )
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)


class DACState(NamedTuple):
    """TD3's state and the discriminator's."""

    td3: TD3State
    discriminator: DiscriminatorState


def make_target(config: DACConfig, head: Head, discriminator: Discriminator, net: MLP) -> TargetFn:
    """r + gamma Q'(s', mu'(s')), or r + gamma r_abs / (1 - gamma) where the episode ends."""
    gamma = config.td3.gamma
    bound = config.discriminator.reward_bound / (1 - gamma)

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, key: jax.Array):
        x = discriminator.read(state.norm, batch.obs, batch.action, batch.next_obs)
        reward = discriminator.reward(net, x)
        after_end = discriminator.reward(net, discriminator.absorbing) / (1 - gamma)
        q, action = next_value(config.td3, head, state, batch, goal, key)
        value = jnp.where(batch.terminated, after_end, q)
        target = jnp.clip(reward + gamma * value, -bound, bound)
        return target, {"critic/reward": reward.mean(), "actor/abs_action": abs(action).mean()}

    return target_fn


def make_dac(config: DACConfig, spec: Spec) -> Agent:
    """DAC, its settings bound."""
    td3 = config.td3
    discriminator = make_discriminator(config.discriminator, spec)
    head = HEADS[td3.critic_head](
        config.discriminator.reward_bound / (1 - td3.gamma), td3.critic_start
    )

    def init(key: jax.Array, spec: Spec) -> DACState:
        key_td3, key_discriminator = jax.random.split(key)
        return DACState(init_td3(td3, head, spec, key_td3), discriminator.init(key_discriminator))

    def update(state: DACState, ring: Ring, key: jax.Array, step: jax.Array):
        key_judge, key_judged, key_rows, key_target = jax.random.split(key, 4)
        seen = fetch(ring, sample(ring, key_judged, td3.batch))
        judge, judged = discriminator.step(
            state.discriminator, state.td3.norm, seen, seen.terminated, key_judge
        )
        batch = fetch(ring, sample(ring, key_rows, td3.batch))
        target_fn = make_target(config, head, discriminator, judge.net)
        inner, metrics = learn(
            td3, head, state.td3, batch, batch.goal, 1.0, target_fn, lambda: batch.goal,
            key_target, step,
        )  # fmt: skip
        return DACState(inner, judge), {**judged, **metrics}

    return Agent(init, update, lambda s: Policy(s.td3.actor_target, s.td3.norm))


ALGORITHMS["dac"] = Algorithm(
    "adversarial imitation on TD3, off-policy (DAC)", DACConfig, make_dac, learns_from="demos"
)
