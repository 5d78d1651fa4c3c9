"""Value density imitation (Algorithm 2, section 5, appendices A and B).

    for each update:
        densities F(t | s, a) and d(s): one step of maximum likelihood on recent experience
        every `flow_delay` updates: copy F; weigh each demonstrated state t by 1 / d(t), bounded
        draw transitions (s, a, s') and demonstrated states t, all alike
        target  y = max(F(t | s, a), gamma Q'(s', mu'(s'); t))                  (line 11)
        critics: TD3's step of Q(s, a; t) towards y
        actor: TD3's step up Q(s, mu(s); t) for states t drawn by their weights (line 14)

The agent learns to visit the states that an expert visited, from the states alone. A demonstrated
state is a goal of the critic, but the policy mu(s) pursues no single one of them: the gradient of
log d(t) is that of Q(.; t) over d(t) (Eq. 8), so it ascends Q over states that are drawn the more
often the less the agent visits them. With averaged logits F, d and Q stand for their N-th roots.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from uvd.agents.actor_critic import ActorCritic, Goals, TargetFn, TD3Config, TD3State, clipped
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
from uvd.agents.demo_weights import demo_metrics, draw, log_weights
from uvd.agents.heads import make_head
from uvd.agents.state_flows import FlowParams, StateFlowConfig, StateFlows
from uvd.collect.exploration import CollectConfig
from uvd.core import replay
from uvd.core.config import Count, Share, Size, require, validate
from uvd.core.flows import Params
from uvd.core.replay import Batch, Ring

WEIGHT_BOUND = 4.0  # a demonstrated state is drawn with weight mean d / d(t), at most this


@dataclass(frozen=True)
class VDIConfig:
    """TD3's settings, the densities', and when which of them learns."""

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(
            gamma=0.995, critic_head="huber", action_penalty=0.01, actor_start=500
        )
    )
    collect: CollectConfig = field(default_factory=CollectConfig)
    density: StateFlowConfig = field(default_factory=StateFlowConfig)
    temporal_smoothing: Share = 0.0
    """lambda: F <- lambda gamma Q' + (1 - lambda) F before the max."""
    flow_delay: Count = 500
    """Updates between copies of the densities, at which demonstrations are weighed anew."""
    early_delay: Size = 0
    """The same during the first `early_updates` (0: as later)."""
    early_updates: Size = 0
    """Updates for which `early_delay` holds."""
    density_only: Size = 500
    """Updates for which only the densities learn; `actor_start` counts from the same zero."""

    def __post_init__(self) -> None:
        validate(self)
        require(
            self.density.short <= self.collect.capacity,
            f"short = {self.density.short} is larger than the replay buffer "
            f"(capacity = {self.collect.capacity})",
        )
        require(
            (self.early_delay > 0) == (self.early_updates > 0),
            "early_delay and early_updates have a meaning only together",
        )
        require(
            self.td3.actor_start >= self.density_only,
            f"actor_start = {self.td3.actor_start}: the actor cannot start before the critic, "
            f"which waits for density_only = {self.density_only} updates",
        )


class VDIState(NamedTuple):
    """TD3's state, whose critic reads a state as a goal; the densities and their copies."""

    td3: TD3State
    flows: FlowParams
    flows_opt: optax.OptState
    future_target: Params  # F as of the last copy
    log_d: jax.Array  # [demonstrated states], as of the last copy


def with_state_goals(spec: Spec) -> Spec:
    """The task as the critic sees it: a goal is the varying columns of a state."""
    columns, norm = spec.columns, spec.norm
    norm = norm._replace(
        goal_shift=np.asarray(norm.obs_shift)[columns],
        goal_scale=np.asarray(norm.obs_scale)[columns],
        achieved_columns=columns,
    )
    return replace(spec, norm=norm, goal_dim=len(columns))


def make_target(config: VDIConfig, flows: StateFlows, future: Params) -> TargetFn:
    """max(F(t | s, a), gamma Q'(s', mu'(s'); t)), zero at a terminal step (Alg. 2, line 11)."""
    gamma, smooth, bound = config.td3.gamma, config.temporal_smoothing, math.exp(flows.log_bound)

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, q: jax.Array, action: jax.Array):
        target_obs = batch.obs.at[:, flows.columns].set(goal)
        f = jnp.exp(flows.log_f(future, state.norm, batch.obs, batch.action, target_obs))
        td = gamma * q
        free = jnp.maximum(smooth * td + (1 - smooth) * f, td) * ~batch.terminated
        target, metrics = clipped(free, bound)
        return target, {"critic/frac_td": (target <= td * (1 + 1e-3)).mean(), **metrics}

    return target_fn


def make_vdi(config: VDIConfig, spec: Spec) -> Agent:
    """VDI, its settings bound."""
    td3, demos = config.td3, demonstrations(spec)
    flows = StateFlows(config.density, spec, td3.optimiser, td3.lr_half)
    demo_states = demos.obs[:, flows.columns]
    head = make_head(td3.critic_head, math.exp(flows.log_bound), td3.critic_start)
    ac = ActorCritic(td3, head, with_state_goals(spec), actor_reads_goal=False)

    def init(key: jax.Array) -> VDIState:
        key_td3, key_density = jax.random.split(key)
        fresh = flows.init(key_density)
        return VDIState(
            td3=ac.init(key_td3),
            flows=fresh,
            flows_opt=flows.optimiser.init(fresh),
            future_target=fresh.future,
            log_d=jnp.zeros(len(demo_states)),
        )

    def fit_densities(
        state: VDIState, ring: Ring, key: jax.Array, step: jax.Array
    ) -> tuple[VDIState, Metrics]:
        """Both densities (lines 4-8); now and then they are copied."""
        norm = state.td3.norm
        fitted, opt, metrics = flows.fit(
            state.flows, state.flows_opt, norm, ring, key, td3.batch, td3.gamma
        )
        early = config.early_delay or config.flow_delay
        delay = jnp.where(step < config.early_updates, early, config.flow_delay)
        future_target, log_d = jax.lax.cond(
            step % delay == 0,
            lambda: (fitted.future, flows.log_d(fitted.state, norm, demos.obs)),
            lambda: (state.future_target, state.log_d),
        )
        return VDIState(state.td3, fitted, opt, future_target, log_d), metrics

    def update(state: VDIState, ring: Ring, key: jax.Array, step: jax.Array):
        key_density, key_rows, key_td, key_actor, key_target = jax.random.split(key, 5)
        state, metrics = fit_densities(state, ring, key_density, step)
        weight = jnp.exp(log_weights(state.log_d, WEIGHT_BOUND))

        def improve(inner: TD3State) -> tuple[TD3State, Metrics]:
            batch = replay.fetch(ring, replay.sample(ring, key_rows, td3.batch))
            # The critic learns of all states alike (line 10), the actor by 1 / d (line 14).
            goal = demo_states[jax.random.randint(key_td, (td3.batch,), 0, len(demo_states))]
            actor_goal = demo_states[draw(key_actor, weight, td3.batch)]
            target_fn = make_target(config, flows, state.future_target)
            return ac.learn(
                inner, batch, Goals(goal), target_fn, lambda: actor_goal, key_target, step
            )

        def wait(inner: TD3State) -> tuple[TD3State, Metrics]:
            like = jax.eval_shape(improve, inner)[1]
            return inner, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

        inner, td3_metrics = jax.lax.cond(step >= config.density_only, improve, wait, state.td3)
        metrics |= {**td3_metrics, **demo_metrics(state.log_d, weight)}
        return state._replace(td3=inner), metrics

    return Agent(init, update, lambda state: ac.policy(state.td3))


# Table 2 of the paper as it is printed, HalfCheetah's and Humanoid's. What it leaves open: as the
# authors' code has it.
PAPER = {
    "gamma": 0.995, "batch": 256, "hidden": (400, 400), "actor_hidden": (400, 300),
    "actor_lr": 3e-4, "critic_lr": 3e-4, "tau": 0.005, "policy_delay": 1, "action_penalty": 0.0,
    "critic_head": "linear", "goal_input": "absolute", "noise": 0.3, "late_noise": 0.1,
    "late_updates": 25_000, "random": 0.0, "hold": 1, "capacity": 1_500_000, "short": 500_000,
    "updates_per_step": 0.1, "flow_hidden": (400, 400), "flow_lr": 1e-4, "flow_delay": 8000,
    "density_only": 8000, "actor_start": 9000,
}  # fmt: skip
PAPER_HUMANOID = {
    **PAPER,
    "noise": 0.1, "late_updates": 0, "critic_lr": 1e-4, "flow_lr": 2e-5, "l2": 1e-6,
    "temporal_smoothing": 0.98, "flow_delay": 50_000, "early_delay": 5000, "early_updates": 50_000,
    "density_only": 5000, "actor_start": 8000,
}  # fmt: skip
# The likelihood is a mean over 16 dimensions there, against which l2 counts 16 times as much.
AUTHORS = {
    **PAPER,
    "critic_head": "huber", "goal_input": "relative", "late_updates": 250_000,
    "optimiser": "rmsprop", "critic_tau": 0.0025, "critic_start": -0.025, "actor_scale": 1.0,
    "store_unclipped": True, "probe_noise": 0.3, "flow_lr": 1e-5, "l2": 1.6e-4,
}  # fmt: skip
# Against actors at the ends of their range and critics that promise too much (docs/vdi.md).
STEADY = {
    **PAPER,
    "critic_head": "huber", "goal_input": "relative", "gamma": 0.95, "critic_norm": True,
    "action_penalty": 0.005, "late_noise": 0.15, "probe_noise": 0.3,
}  # fmt: skip

ALGORITHMS["vdi"] = Algorithm(
    about="value density imitation: visit the states of demonstrations (VDI)",
    config=VDIConfig,
    make=make_vdi,
    presets={
        "environment": Preset(
            "Gymnasium environments: 400-400, one update for ten steps; millions of steps",
            STEADY,
            simulated,
        ),
        "paper": Preset("the paper's Algorithm 2 and Table 2 for HalfCheetah", PAPER),
        "paper-humanoid": Preset("the same for Humanoid", PAPER_HUMANOID),
        "authors": Preset("HalfCheetah as the authors' released code has it", AUTHORS),
    },
    learns_from="demos",
)
