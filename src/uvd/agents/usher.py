"""USHER: hindsight whose bias is weighted away (Schramm et al. 2022), the principled rival.

    draw transitions (s, a, s'), the goals h that their roll-outs pursued, and the t steps left
    density p(g | s, a, t, h) of what the roll-out achieves in its t steps, relative to all goals:
        p = [g = achieved(s')] / t + (t - 1) / t p'(g | s', mu'(s'; h), t - 1, h)
        one step down  E[p(g)^2 - 2 (t - 1) / t p(g) p'(g)] - 2 / t p(achieved(s')),   g of all
    for k of k + 1 of them: g <- a goal achieved later in the same roll-out, with the weight
        p(g | s, a) / (alpha p(g | s, a) + (1 - alpha) p'(g | s'))    within [1 / (1 + c), 1 + c]
    TD3's update with these goals and weights

A goal that was achieved after s' is likelier after s' than after another outcome of (s, a). The
weight takes this back. Constants are the authors'. Their critic reads h as well, ours is HER's;
"all goals" are what other roll-outs achieved, in theirs what other roll-outs pursued.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.actor_critic import Goals, TD3Config, TD3State
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Metrics, Spec
from uvd.agents.td3 import ENVIRONMENT, refuse_sigmoid, sparse_actor_critic, sparse_target
from uvd.collect.exploration import CollectConfig
from uvd.core.config import NotNegative, Share, Size, validate
from uvd.core.nets import gradient_step, init_mlp, make_optimiser, polyak
from uvd.core.policy import MLP, features, mlp
from uvd.core.replay import Batch, Ring, fetch, future_uniform, sample

OFFSET = 0.01  # added above and below the fraction, for goals that are hardly ever achieved


@dataclass(frozen=True)
class USHERConfig:
    """TD3's settings, the share of hindsight goals, and how far they are weighted."""

    td3: TD3Config = field(default_factory=TD3Config)
    collect: CollectConfig = field(default_factory=CollectConfig)
    k: Size = 4
    """Hindsight goals for each intended one."""
    alpha: Share = 0.01
    """How much of the goal's own density stands below the fraction: it bounds the weight."""
    ratio_clip: NotNegative = 0.3
    """Weights lie within 1 / (1 + ratio_clip) and 1 + ratio_clip."""

    def __post_init__(self) -> None:
        validate(self)
        refuse_sigmoid(self.td3)


class USHERState(NamedTuple):
    """TD3's state, the relative density with its slow copy, and its optimiser."""

    td3: TD3State
    density: MLP
    density_target: MLP
    density_opt: optax.OptState


class Query(NamedTuple):
    """What the relative density is asked about, besides the goal."""

    obs: jax.Array
    action: jax.Array
    left: jax.Array  # [batch], steps left of the roll-out
    pursued: jax.Array  # the goal that the roll-out pursues


def relative_density(net: MLP, state: TD3State, query: Query, goal: jax.Array) -> jax.Array:
    """p(g | s, a, t, h), above 0 and 1 for a fresh net. `[batch]`."""
    here, there = (features(state.norm, query.obs, g) for g in (goal, query.pursued))
    time = 1 / jnp.maximum(query.left, 1)[:, None]
    x = jnp.concatenate([here, there[:, -goal.shape[-1] :], query.action, time], -1)
    return jax.nn.elu(mlp(net, x)[..., 0]) + 1


def weights(now: jax.Array, later: jax.Array, alpha: float, clip: float) -> jax.Array:
    """The importance of a hindsight goal, from its density before and after the outcome."""
    ratio = (now + OFFSET) / (alpha * now + (1 - alpha) * later + OFFSET)
    return jnp.clip(ratio, 1 / (1 + clip), 1 + clip)


def make_usher(config: USHERConfig, spec: Spec) -> Agent:
    """TD3 with weighted hindsight goals."""
    ac = sparse_actor_critic(config.td3, spec)
    target_fn = sparse_target(ac, spec)
    optimiser = make_optimiser(config.td3.optimiser, config.td3.critic_lr)
    sizes = (spec.obs_dim + 2 * spec.goal_dim + spec.action_dim + 1, *config.td3.hidden, 1)

    def init(key: jax.Array) -> USHERState:
        key_td3, key_density = jax.random.split(key)
        net = init_mlp(key_density, sizes, 0.1, 0.0)
        return USHERState(ac.init(key_td3), net, net, optimiser.init(net))

    def queries(state: USHERState, ring: Ring, batch: Batch) -> tuple[Query, Query]:
        """Before and after each transition."""
        td3, left = state.td3, ring.steps_left[batch.row].astype(jnp.float32)
        action = ac.action(td3.actor_target, td3.norm, batch.next_obs, batch.goal)
        after = Query(batch.next_obs, action, left - 1, batch.goal)
        return Query(batch.obs, batch.action, left, batch.goal), after

    def fit_density(
        state: USHERState, before: Query, after: Query, achieved: jax.Array, any_goal: jax.Array
    ) -> tuple[USHERState, Metrics]:
        """One step of least squares on p and its recursion over the steps left."""
        later = relative_density(state.density_target, state.td3, after, any_goal)
        left = before.left

        def density_loss(net: MLP) -> tuple[jax.Array, Metrics]:
            p = relative_density(net, state.td3, before, any_goal)
            hit = relative_density(net, state.td3, before, achieved)
            loss = (p**2 - 2 * (left - 1) / left * p * later - 2 / left * hit).mean()
            return loss, {"density/loss": loss}

        net, opt, metrics = gradient_step(density_loss, optimiser, state.density, state.density_opt)
        slow = polyak(state.density_target, net, config.td3.tau)
        return state._replace(density=net, density_target=slow, density_opt=opt), metrics

    def update(state: USHERState, ring: Ring, key: jax.Array, step: jax.Array):
        key_rows, key_goal, key_alter, key_mix, key_target = jax.random.split(key, 5)
        batch = fetch(ring, sample(ring, key_rows, config.td3.batch))
        before, after = queries(state, ring, batch)
        future = future_uniform(ring, batch.row, key_goal)
        any_goal = jax.random.permutation(key_mix, future)
        state, metrics = fit_density(state, before, after, batch.next_achieved, any_goal)
        now = relative_density(state.density, state.td3, before, future)
        later = relative_density(state.density_target, state.td3, after, future)
        alter = jax.random.uniform(key_alter, batch.row.shape) < config.k / (1 + config.k)
        weight = jnp.where(alter, weights(now, later, config.alpha, config.ratio_clip), 1.0)
        goals = Goals(jnp.where(alter[:, None], future, batch.goal), weight)
        td3, own = ac.learn(
            state.td3, batch, goals, target_fn, lambda: goals.goal, key_target, step
        )
        metrics |= {"critic/weight": weight.mean(), "critic/weight_spread": weight.std(), **own}
        return state._replace(td3=td3), metrics

    return Agent(init, update, lambda state: ac.policy(state.td3))


ALGORITHMS["usher"] = Algorithm(
    about="HER with importance weights against its bias (USHER)",
    config=USHERConfig,
    make=make_usher,
    presets={"environment": ENVIRONMENT},
)
