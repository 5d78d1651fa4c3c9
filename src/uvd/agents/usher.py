"""USHER: HER with importance weights against its bias (after Schramm et al. 2022).

    draw transitions (s, a, s'), the goals h that their roll-outs pursued, and the t steps left
    densities of goals g, relative to a mixture of goals from other roll-outs, by least squares:
        p(g | s, a, t)  of what is achieved in the t steps:
                        p = [g = achieved(s')] / t + (t - 1) / t p'(g | s', mu'(s'; h), t - 1)
        q(g | s, a, t)  of what is achieved in them but the first:   q = E[p'(g | s', ., t - 1)]
        v(g | a, s', t - 1)  the same once s' is known; q and v are means over h
        u(g | s, a)     of the goals that roll-outs pursue
    with probability b = k / (k + 1): g <- a goal achieved two or more steps later, else g = h
    weight of all of them:  ((1 - b) u(g) + b q(g | s, a)) / ((1 - b) u(g) + b v(g | a, s'))
    TD3's update with these goals and weights

The weight is how likely g is to be drawn at (s, a) over how likely it is once s' is known. It gives
the outcomes their true shares again. Where g is out of reach (a pit), pursued goals weigh more.
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
from uvd.core.config import NotNegative, Size, validate
from uvd.core.nets import gradient_step, init_mlp, make_optimiser, polyak
from uvd.core.policy import MLP, Norm, features, mlp
from uvd.core.replay import Ring, fetch, future, sample, uniform_offset

FLOOR = 1e-3  # added to numerator and denominator of a weight: both may be near 0


@dataclass(frozen=True)
class USHERConfig:
    """TD3's settings, the share of hindsight goals, and how far they are weighted."""

    td3: TD3Config = field(default_factory=TD3Config)
    collect: CollectConfig = field(default_factory=CollectConfig)
    k: Size = 4
    """Hindsight goals for each intended one."""
    ratio_clip: NotNegative = 4.0
    """Weights lie within 1 / (1 + ratio_clip) and 1 + ratio_clip."""

    def __post_init__(self) -> None:
        validate(self)
        refuse_sigmoid(self.td3)


class USHERState(NamedTuple):
    """TD3's state, the relative densities with their slow copy, and their optimiser."""

    td3: TD3State
    density: MLP
    density_target: MLP
    density_opt: optax.OptState


class Query(NamedTuple):
    """What the relative densities are asked about, besides the goal."""

    obs: jax.Array
    action: jax.Array
    left: jax.Array  # [batch], steps left


class Densities(NamedTuple):
    """How likely goals are, relative to those of other roll-outs. `[batch]` each."""

    achieved: jax.Array  # p
    achieved_later: jax.Array  # q
    pursued: jax.Array  # u
    outcome: jax.Array  # v, of s' and the action that led there


def relative_densities(net: MLP, norm: Norm, query: Query, goal: jax.Array) -> Densities:
    """All four, above 0 (1 for a fresh net)."""
    time = 1 / jnp.maximum(query.left, 1)[:, None]
    x = jnp.concatenate([features(norm, query.obs, goal), query.action, time], -1)
    return Densities(*(jax.nn.elu(mlp(net, x)) + 1).T)


def weights(before: Densities, after: jax.Array, share: jax.Array, clip: float) -> jax.Array:
    """Of goals of which that `share` is hindsight; `after` is their v."""
    pursued = (1 - share) * before.pursued + FLOOR
    ratio = (pursued + share * before.achieved_later) / (pursued + share * after)
    return jnp.clip(ratio, 1 / (1 + clip), 1 + clip)


def make_usher(config: USHERConfig, spec: Spec) -> Agent:
    """TD3 with weighted goals."""
    ac = sparse_actor_critic(config.td3, spec)
    target_fn = sparse_target(ac, spec)
    optimiser = make_optimiser(config.td3.optimiser, config.td3.critic_lr)
    sizes = (spec.obs_dim + spec.goal_dim + spec.action_dim + 1, *config.td3.hidden, 4)

    def init(key: jax.Array) -> USHERState:
        key_td3, key_density = jax.random.split(key)
        net = init_mlp(key_density, sizes, 0.1, 0.0)
        return USHERState(ac.init(key_td3), net, net, optimiser.init(net))

    def update(state: USHERState, ring: Ring, key: jax.Array, step: jax.Array):
        key_rows, key_goal, key_alter, key_mix, key_half, key_target = jax.random.split(key, 6)
        td3, norm = state.td3, state.td3.norm
        batch = fetch(ring, sample(ring, key_rows, config.td3.batch))
        steps = ring.steps_left[batch.row]
        left = steps.astype(jnp.float32)
        before = Query(batch.obs, batch.action, left)
        action = ac.action(td3.actor_target, norm, batch.next_obs, batch.goal)
        after = Query(batch.next_obs, action, left - 1)
        outcome = Query(batch.next_obs, batch.action, left - 1)
        offset = 1 + uniform_offset(key_goal, jnp.maximum(steps - 1, 1))
        hindsight = future(ring, batch.row, jnp.minimum(offset, steps))
        half = jax.random.bernoulli(key_half, 0.5, (len(left), 1))
        any_goal = jax.random.permutation(key_mix, jnp.where(half, hindsight, batch.goal))
        after_any = relative_densities(state.density_target, norm, after, any_goal).achieved

        def density_loss(net: MLP) -> tuple[jax.Array, Metrics]:
            here = relative_densities(net, norm, before, any_goal)
            hit = relative_densities(net, norm, before, batch.next_achieved).achieved
            own = relative_densities(net, norm, before, batch.goal).pursued
            loss = here.achieved**2 - 2 / left * ((left - 1) * here.achieved * after_any + hit)
            known = relative_densities(net, norm, outcome, any_goal).outcome
            loss += (left > 1) * ((here.achieved_later - after_any) ** 2 + (known - after_any) ** 2)
            loss = (loss + here.pursued**2 - 2 * own).mean()
            return loss, {"density/loss": loss}

        net, opt, metrics = gradient_step(density_loss, optimiser, state.density, state.density_opt)
        slow = polyak(state.density_target, net, config.td3.tau)
        share = config.k / (1 + config.k) * (left > 1)
        alter = jax.random.uniform(key_alter, left.shape) < share
        goal = jnp.where(alter[:, None], hindsight, batch.goal)
        here, there = (relative_densities(net, norm, x, goal) for x in (before, outcome))
        weight = weights(here, there.outcome, share, config.ratio_clip)
        td3, own = ac.learn(
            td3, batch, Goals(goal, weight), target_fn, lambda: goal, key_target, step
        )
        metrics |= {"critic/weight": weight.mean(), "critic/weight_spread": weight.std(), **own}
        return USHERState(td3, net, slow, opt), metrics

    return Agent(init, update, lambda state: ac.policy(state.td3))


ALGORITHMS["usher"] = Algorithm(
    about="HER with importance weights against its bias (after USHER)",
    config=USHERConfig,
    make=make_usher,
    presets={"environment": ENVIRONMENT},
)
