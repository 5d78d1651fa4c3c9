"""Kernel density imitation: off-policy learning of a recomputed reward, without networks for it.

    for each update:
        every 500 updates (`REFRESH`): d(t), the agent's recent density at each demonstrated step
            t, under the width for which the mean of log d is -(2 + columns / 10), at least
            0.15 sqrt(columns); weights w(t) = 1 / d(t), bounded
        draw transitions (s, a, s')
        reward  r(s, a) = mean over t of w(t) F(t | s, a), with kernels F          (`reward_of`)
        target  y = (1 - gamma) r(s, a) + gamma Q'(s', mu'(s'))
        critics Q and actor mu: TD3's steps towards y
    after each cycle of episodes: score = how near the newest steps, at least 1 000, came to the
        demonstrated ones, less where episodes ended early

For single states the width is a constant.

The reward is the kernel-smoothed ratio of the expert's density to the agent's: the gradient of the
likelihood of the demonstrations (Eq. 8) as a single value. There is no goal, no maximum and no
learned density, so this is not the paper's VDI. The agent's density follows the policy at once; a
policy that comes to visit some demonstrated steps finds more reward at the others. Learning
therefore cycles between behaviours that suit different steps, and the score keeps the best.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.agents.actor_critic import (
    ActorCritic,
    Goals,
    TargetFn,
    TD3Config,
    TD3State,
    clipped,
)
from uvd.agents.agent import (
    ALGORITHMS,
    Agent,
    Algorithm,
    DemoSteps,
    Preset,
    Spec,
    simulated,
)
from uvd.agents.demo_weights import demo_metrics, draw, log_mean, log_weights
from uvd.agents.heads import make_head
from uvd.agents.kernels import Kernels, Match, resolve_match
from uvd.collect.exploration import CollectConfig
from uvd.core import replay
from uvd.core.config import Count, NotNegative, Positive, Range, Size, require, validate
from uvd.core.policy import Norm
from uvd.core.replay import Batch, Ring
from uvd.core.schedule import halving

MAX_STEPS = 1000  # demonstrated steps in a reward: of more, so many are drawn by their weights
REFRESH = 500  # updates after which width and weights are computed anew
LOG_DENSITY_FLOOR = -60.0  # d counts as no less, in logarithms below the kernel's peak
SCORED_STEPS = 1000  # a policy's closeness is that of at least so many steps
LOG_SCORE_FLOOR = -3.0  # from here on a demonstrated step begins to count for a policy's score


@dataclass(frozen=True)
class KDIConfig:
    """TD3's settings, the kernels', and how demonstrations are weighed."""

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(
            gamma=0.99, batch=128, hidden=(256, 256), actor_lr=3e-4, critic_lr=6e-4, tau=0.005,
            target_noise=0.2, action_penalty=0.0, critic_head="huber", critic_norm=True,
            actor_start=500,
        )
    )  # fmt: skip
    collect: CollectConfig = field(
        default_factory=lambda: CollectConfig(
            noise=0.15, late_noise=0.07, late_updates=60_000, random=0.0, hold=1, warmup=2000,
            warmup_random=True, capacity=1_000_000, updates_per_step=1.0, probe_noise=0.3,
        )
    )  # fmt: skip
    match: Match = "auto"
    """What is compared: pairs (s, a), changes (s, s' - s) or states (s'); auto: the first of these
    that the demonstrations offer. The defaults of the settings below are those of pairs; changes
    and states have their own."""
    width: NotNegative = 0.0
    """Width of the kernels at the start, in normalised units (states: 1.16). 0: it follows from how
    near the agent is, so that the mean of log d stays the same."""
    width_half: Size = 0
    """Updates in which a width that was given halves (0: it stays)."""
    width_end: Positive = 0.7
    """A width that halves never falls below this."""
    weight_bound: Annotated[float, Range(1)] = 5.0
    """A demonstrated step has weight mean d / d(t), at most this (states: 30)."""
    short: Count = 4000
    """The agent's density d is that of so many of its newest steps (states: 20 000)."""

    def __post_init__(self) -> None:
        validate(self)
        require(
            not (self.width and self.width_half) or self.width_end <= self.width,
            f"width_end = {self.width_end} is above width = {self.width}",
        )
        require(
            self.width or not self.width_half,
            f"width_half = {self.width_half} needs a width: without one it follows from the agent",
        )
        require(
            self.td3.critic_head in ("linear", "huber"),
            f"critic_head = {self.td3.critic_head}: the reward has no known bound, take linear or "
            "huber",
        )


# What differs from the defaults, which are those of pairs.
BY_MATCH: dict[str, dict[str, Any]] = {
    "pairs": {},
    "changes": {
        "noise": 0.3, "late_noise": 0.1, "late_updates": 100_000,
    },
    "states": {
        "width": 1.16, "weight_bound": 30.0, "short": 20_000, "gamma": 0.98,
        "warmup": 10_000, "late_noise": 0.1, "late_updates": 600_000,
    },
}  # fmt: skip


def defaults_for(given: Mapping[str, Any], demos: DemoSteps) -> Mapping[str, Any]:
    """The defaults that follow from what the demonstrations hold and what of it is compared."""
    match = resolve_match(given.get("match", "auto"), demos)
    return {"match": match, **BY_MATCH[match]}


class KDIState(NamedTuple):
    """TD3's state, and the kernels' width and the agent's density at the last refresh."""

    td3: TD3State
    width: jax.Array
    log_d: jax.Array  # [demonstrated steps]


class Weighted(NamedTuple):
    """The demonstrated steps of a reward."""

    points: jax.Array  # [steps, columns]
    log_unit: jax.Array  # [steps, 1]: minus the logarithm of each one's weight


def weigh(config: KDIConfig, points: jax.Array, log_d: jax.Array, key: jax.Array) -> Weighted:
    """All demonstrated steps with weights 1 / d, bounded; of very many, some drawn by weight."""
    log_weight = log_weights(log_d, config.weight_bound)

    def unit(log_weight: jax.Array) -> jax.Array:
        """d, bounded from below: steps far from the agent's must not count without limit."""
        return jnp.maximum(log_mean(log_d) - log_weight, LOG_DENSITY_FLOOR)

    if len(points) <= MAX_STEPS:
        return Weighted(points, unit(log_weight)[:, None])
    drawn = points[draw(key, jnp.exp(log_weight), MAX_STEPS)]
    return Weighted(drawn, jnp.full((MAX_STEPS, 1), unit(log_mean(log_weight))))


def reward_of(
    kernels: Kernels, width: jax.Array, norm: Norm, batch: Batch, weighted: Weighted
) -> jax.Array:
    """The mean over demonstrated steps of F / d."""
    log_f = kernels.log_f(width, norm, batch, weighted.points)
    return jnp.exp(log_f - weighted.log_unit).mean(0)


def make_target(
    config: KDIConfig, kernels: Kernels, width: jax.Array, weighted: Weighted
) -> TargetFn:
    """(1 - gamma) r(s, a) + gamma Q'(s', mu'(s')), within its bound. A step that ends the task
    earns the reward of its pair or change, but not that of the state it leads to."""
    gamma = config.td3.gamma
    bound = jnp.exp(-weighted.log_unit).mean()

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, q: jax.Array, action: jax.Array):
        reward = reward_of(kernels, width, state.norm, batch, weighted)
        free = (1 - gamma) * reward + gamma * q
        if kernels.match == "states":  # pairs and changes were earned before the end
            free *= ~batch.terminated
        target, metrics = clipped(free, bound)
        return target, {"critic/reward": reward.mean(), **metrics}

    return target_fn


def narrowest(columns: int) -> float:
    """No width that follows from the agent is below this: demonstrations may lie close together."""
    return 0.15 * columns**0.5


def wanted_log_d(columns: int) -> float:
    """The mean of log d that a width is chosen for. Chosen on pairs of 6 to 23 columns."""
    return -(2 + columns / 10)


def survival(ring: Ring, newest: int, horizon: int) -> jax.Array:
    """How long the newest steps' episodes lasted, as a share of whole ones; those that the task did
    not end count as whole. Short episodes near a demonstrated start visit nothing else."""
    row, exists = replay.newest(ring, newest)
    ended = (exists & ring.terminated[row]).sum()
    length = exists.sum() / jnp.maximum(ended, 1)
    return jnp.where(ended > 0, jnp.minimum(length / max(horizon, 1), 1.0), 1.0)


def make_kdi(config: KDIConfig, spec: Spec) -> Agent:
    """KDI, its settings bound."""
    td3, kernels = config.td3, Kernels(config.match, spec)
    columns = kernels.demo_points.shape[1]
    ac = ActorCritic(td3, make_head(td3.critic_head, 1.0, td3.critic_start), spec)
    no_goal = jnp.zeros((td3.batch, 0))

    def width_at(step: jax.Array, norm: Norm, ring: Ring) -> jax.Array:
        if config.width:
            return halving(config.width, config.width_half, config.width_end, step)
        follows = kernels.width_for(wanted_log_d(columns), norm, ring, config.short)
        return jnp.maximum(follows, narrowest(columns))

    def init(key: jax.Array) -> KDIState:
        key_td3, _ = jax.random.split(key)
        return KDIState(ac.init(key_td3), jnp.zeros(()), jnp.zeros(len(kernels.demo_points)))

    def update(state: KDIState, ring: Ring, key: jax.Array, step: jax.Array):
        _, key_rows, key_steps, _, key_target = jax.random.split(key, 5)
        norm = state.td3.norm

        def refreshed() -> tuple[jax.Array, jax.Array]:
            width = width_at(step, norm, ring)
            return width, kernels.log_d(width, norm, ring, config.short)

        due = step % REFRESH == 0
        width, log_d = jax.lax.cond(due, refreshed, lambda: (state.width, state.log_d))
        weighted = weigh(config, kernels.demo_points, log_d, key_steps)
        batch = replay.fetch(ring, replay.sample(ring, key_rows, td3.batch))
        target_fn = make_target(config, kernels, width, weighted)
        inner, metrics = ac.learn(
            state.td3, batch, Goals(no_goal), target_fn, lambda: no_goal, key_target, step
        )
        weight = jnp.exp(log_weights(log_d, config.weight_bound))
        metrics |= {"demos/width": width, **demo_metrics(log_d, weight)}
        return KDIState(inner, width, log_d), metrics

    def score(state: KDIState, ring: Ring) -> jax.Array:
        """How near the newest steps came to the demonstrations; with short cycles these are of
        several policies. With a width that was given: how likely the demonstrations are under the
        newest cycle alone, at the last width."""
        norm = state.td3.norm
        if not config.width:
            steps = max(spec.cycle_steps, SCORED_STEPS)
            near = kernels.closeness(norm, ring, steps)
            return near + jnp.log(survival(ring, steps, spec.horizon))
        end = config.width_end if config.width_half else config.width
        log_d = kernels.log_d(end, norm, ring, spec.cycle_steps)
        log_d += jnp.log(survival(ring, spec.cycle_steps, spec.horizon))
        return jnp.logaddexp(log_d, LOG_SCORE_FLOOR).mean()

    return Agent(init, update, lambda state: ac.policy(state.td3), score)


# States with the action before, 60 columns. A policy is confirmed by four more cycles: one cycle
# says little where a fall is a matter of luck.
HUMANOID = {
    "match": "states", "previous_action": True, "batch": 256, "lr_half": 400_000,
    "confirm_cycles": 4,
    "episode_steps": 200, "late_steps": 400_000, "late_episode_steps": 1000,
}  # fmt: skip

ALGORITHMS["kdi"] = Algorithm(
    about="kernel density imitation: minutes on one CPU core, from few pairs (KDI)",
    config=KDIConfig,
    make=make_kdi,
    presets={
        "environment": Preset(
            "Gymnasium environments: updates every 250 steps (--cycle-steps)",
            {"cycle_steps": 250},
            simulated,
        ),
        "humanoid": Preset("Humanoid, from states and the actions before them", HUMANOID),
    },
    learns_from="demos",
    defaults_for=defaults_for,
    run_defaults={"envs": 1},
)
