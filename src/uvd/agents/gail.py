"""Generative adversarial imitation (Ho & Ermon 2016) with PPO (Schulman et al. 2017), on-policy.

    for each cycle, played by pi:
        discriminator D: some steps between demonstrated (s, a) and the cycle's
        reward r(s, a) = -log(1 - D(s, a)) of each transition; advantages by GAE(lambda)
        PPO: some epochs of minibatches over the cycle's transitions

One update a cycle, on the episodes that the current policy has just played. The policy is Gaussian
around the actor's output. After the step that ends an episode nothing more is earned, as in the
original: with its positive reward that is a bias against ending, which DAC's absorbing state
removes.
"""

import math
from dataclasses import dataclass, field
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
    simulated,
)
from uvd.agents.discriminator import Discriminator, DiscriminatorConfig, DiscriminatorState
from uvd.collect.exploration import CollectConfig
from uvd.core.config import Count, Discount, Layers, NotNegative, Positive, Share, validate
from uvd.core.nets import gradient_step, init_mlp
from uvd.core.policy import MLP, Norm, Policy, act, features, mlp
from uvd.core.replay import Batch, Ring, fetch

RATIO_CLIP = 0.2  # how far the ratio of new to old probabilities counts
MAX_GRAD = 0.5  # longer gradients are shortened to this


@dataclass(frozen=True)
class GAILConfig:
    """The discriminator's settings and PPO's."""

    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    discriminator_steps: Count = 20
    """Steps of the discriminator in a cycle."""
    gamma: Discount = 0.98
    """Discount."""
    gae: Share = 0.95
    """lambda of the advantages: 0 is one step of TD, 1 the whole episode."""
    epochs: Count = 10
    """Passes over the cycle's transitions."""
    batch: Count = 256
    """Transitions in a minibatch (and pairs in a step of the discriminator)."""
    entropy: NotNegative = 0.0
    """Weight of the policy's entropy."""
    start_std: Positive = 0.5
    """Standard deviation of the policy at the start."""
    hidden: Layers = (128, 128)
    """Hidden layers of actor and value."""
    actor_lr: Positive = 1e-3
    """Adam's learning rate of the policy."""
    critic_lr: Positive = 1e-3
    """Adam's learning rate of the value."""

    def __post_init__(self) -> None:
        validate(self)


class PPOState(NamedTuple):
    """Policy and value with their optimisers, and the feature ranges they read through."""

    actor: MLP
    log_std: jax.Array
    critic: MLP
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    norm: Norm


class GAILState(NamedTuple):
    """PPO's state and the discriminator's."""

    ppo: PPOState
    discriminator: DiscriminatorState


class Rollout(NamedTuple):
    """What an epoch of PPO reads of each transition."""

    obs: jax.Array  # [n, obs]
    goal: jax.Array  # [n, goal]
    action: jax.Array  # [n, action]
    log_prob: jax.Array  # [n], of the action, when it was drawn
    advantage: jax.Array  # [n]
    ret: jax.Array  # [n], what the value is fitted to


def optimiser(lr: float) -> optax.GradientTransformation:
    """Adam on gradients of bounded length."""
    return optax.chain(optax.clip_by_global_norm(MAX_GRAD), optax.adam(lr))


def init_ppo(config: GAILConfig, spec: Spec, key: jax.Array) -> PPOState:
    """A fresh policy and value."""
    key_actor, key_critic = jax.random.split(key)
    inputs = spec.obs_dim + spec.goal_dim
    actor = init_mlp(key_actor, (inputs, *config.hidden, spec.action_dim), 0.1)
    critic = init_mlp(key_critic, (inputs, *config.hidden, 1), 0.1, 0.0)
    log_std = jnp.full((spec.action_dim,), math.log(config.start_std), jnp.float32)
    return PPOState(
        actor=actor,
        log_std=log_std,
        critic=critic,
        actor_opt=optimiser(config.actor_lr).init((actor, log_std)),
        critic_opt=optimiser(config.critic_lr).init(critic),
        norm=jax.tree.map(jnp.asarray, spec.norm),
    )


def value_of(critic: MLP, norm: Norm, obs: jax.Array, goal: jax.Array) -> jax.Array:
    """V(s)."""
    return mlp(critic, features(norm, obs, goal))[..., 0]


def log_prob(mean: jax.Array, log_std: jax.Array, action: jax.Array) -> jax.Array:
    """Of an action under the Gaussian policy, as it was drawn: before the task clips it."""
    z = (action - mean) / jnp.exp(log_std)
    return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def advantages(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    last: jax.Array,
    gamma: float,
    lam: float,
) -> jax.Array:
    """GAE over transitions in the order they were played; `last` marks the end of each episode.

    A terminal step has no value after it; a time limit has, but no advantage is carried over it.
    """
    delta = reward + gamma * next_value * ~terminated - value

    def back(carry: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, last = xs
        here = delta + gamma * lam * carry * ~last
        return here, here

    return jax.lax.scan(back, jnp.zeros(()), (delta, last), reverse=True)[1]


def ppo_step(config: GAILConfig, state: PPOState, rows: Rollout) -> tuple[PPOState, Metrics]:
    """One step of policy and value on a minibatch."""
    advantage = (rows.advantage - rows.advantage.mean()) / (rows.advantage.std() + 1e-8)

    def actor_loss(params: tuple[MLP, jax.Array]) -> tuple[jax.Array, Metrics]:
        actor, log_std = params
        mean = act(Policy(actor, state.norm), rows.obs, rows.goal)
        log_ratio = log_prob(mean, log_std, rows.action) - rows.log_prob
        ratio = jnp.exp(jnp.clip(log_ratio, -20, 20))
        clipped = jnp.clip(ratio, 1 - RATIO_CLIP, 1 + RATIO_CLIP)
        gain = jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return -gain - config.entropy * log_std.sum(), {
            "actor/abs_action": abs(mean).mean(),
            "actor/kl": (ratio - 1 - log_ratio).mean(),
            "actor/clipped": (abs(ratio - 1) > RATIO_CLIP).mean(),
        }

    def critic_loss(critic: MLP) -> tuple[jax.Array, Metrics]:
        value = value_of(critic, state.norm, rows.obs, rows.goal)
        loss = ((value - rows.ret) ** 2).mean()
        return loss, {"critic/loss": loss, "critic/q": value.mean()}

    (actor, log_std), actor_opt, metrics = gradient_step(
        actor_loss, optimiser(config.actor_lr), (state.actor, state.log_std), state.actor_opt
    )
    critic, critic_opt, critic_metrics = gradient_step(
        critic_loss, optimiser(config.critic_lr), state.critic, state.critic_opt
    )
    metrics |= {"critic/target": rows.ret.mean(), "actor/std": jnp.exp(log_std).mean()}
    state = PPOState(actor, log_std, critic, actor_opt, critic_opt, state.norm)
    return state, {**metrics, **critic_metrics}


def ppo_epochs(
    config: GAILConfig, state: PPOState, rows: Rollout, key: jax.Array
) -> tuple[PPOState, Metrics]:
    """Epochs of minibatches, each over all transitions in an order of its own."""
    n = len(rows.obs)
    size = min(config.batch, n)

    def epoch(state: PPOState, key: jax.Array) -> tuple[PPOState, Metrics]:
        order = jax.random.permutation(key, n)[: n // size * size].reshape(-1, size)
        pick = lambda s, i: ppo_step(config, s, jax.tree.map(lambda x: x[i], rows))  # noqa: E731
        return jax.lax.scan(pick, state, order)

    state, metrics = jax.lax.scan(epoch, state, jax.random.split(key, config.epochs))
    return state, jax.tree.map(jnp.mean, metrics)


def make_rollout(
    config: GAILConfig, state: PPOState, batch: Batch, reward: jax.Array, last: jax.Array
) -> Rollout:
    """Advantages and old probabilities of transitions in the order they were played.

    Rewards count (1 - gamma) times, so that values are means and not sums of them.
    """
    value = value_of(state.critic, state.norm, batch.obs, batch.goal)
    after = value_of(state.critic, state.norm, batch.next_obs, batch.goal)
    reward = (1 - config.gamma) * reward
    advantage = advantages(reward, value, after, batch.terminated, last, config.gamma, config.gae)
    mean = act(Policy(state.actor, state.norm), batch.obs, batch.goal)
    old = log_prob(mean, state.log_std, batch.action)
    return Rollout(batch.obs, batch.goal, batch.action, old, advantage, advantage + value)


def cycle_rows(ring: Ring, n: int) -> jax.Array:
    """The rows of the n newest transitions in the order they were played; the last, where fewer."""
    number = jnp.maximum(ring.last - n, ring.first) + jnp.arange(n)
    return ring.order[jnp.minimum(number, ring.last - 1) % len(ring.order)]


def make_gail(config: GAILConfig, spec: Spec) -> Agent:
    """GAIL, its settings bound."""
    discriminator = Discriminator(config.discriminator, spec, jax.nn.softplus)

    def init(key: jax.Array) -> GAILState:
        key_ppo, key_discriminator = jax.random.split(key)
        return GAILState(init_ppo(config, spec, key_ppo), discriminator.init(key_discriminator))

    def update(state: GAILState, ring: Ring, key: jax.Array, step: jax.Array):
        key_fit, key_ppo = jax.random.split(key)
        row = cycle_rows(ring, spec.cycle_steps)
        ppo, norm = state.ppo, state.ppo.norm
        size = min(config.batch, spec.cycle_steps)

        def fit(state: DiscriminatorState, key: jax.Array):
            key_rows, key_step = jax.random.split(key)
            agent_batch = fetch(ring, row[jax.random.randint(key_rows, (size,), 0, len(row))])
            return discriminator.step(state, norm, agent_batch, jnp.zeros(size), key_step)

        keys = jax.random.split(key_fit, config.discriminator_steps)
        fitted, fit_metrics = jax.lax.scan(fit, state.discriminator, keys)
        batch = fetch(ring, row)
        x = discriminator.read(norm, batch.obs, batch.action, batch.next_obs)
        reward = discriminator.reward(fitted.net, x)
        rows = make_rollout(config, ppo, batch, reward, ring.steps_left[row] == 1)
        ppo, metrics = ppo_epochs(config, ppo, rows, key_ppo)
        metrics |= jax.tree.map(jnp.mean, fit_metrics)
        return GAILState(ppo, fitted), {"critic/reward": reward.mean(), **metrics}

    return Agent(init, update, lambda s: Policy(s.ppo.actor, s.ppo.norm, s.ppo.log_std))


# The settings of OpenAI's baselines, which the paper ran, for MuJoCo's walkers; PPO for TRPO.
SIMULATED = {
    "gamma": 0.995, "gae": 0.97, "hidden": (100, 100), "actor_lr": 3e-4, "epochs": 5,
    "start_std": 1.0, "discriminator_hidden": (100, 100), "discriminator_lr": 3e-4,
}  # fmt: skip

ALGORITHMS["gail"] = Algorithm(
    about="adversarial imitation with PPO, on-policy (GAIL)",
    config=GAILConfig,
    make=make_gail,
    presets={"environment": Preset("Gymnasium environments", SIMULATED, simulated)},
    learns_from="demos",
    on_policy=True,
    collect=lambda config: CollectConfig(noise=0, random=0, hold=1, warmup=0, capacity=0),
)
