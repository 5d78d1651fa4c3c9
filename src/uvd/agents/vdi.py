"""Value density imitation (Algorithm 2, section 5, appendices A and B).

The agent learns to visit the states that an expert visited, from the states alone. Demonstration
states are goals: F(t | s, a) is the density of states a few steps after (s, a), trained by maximum
likelihood on the agent's own experience, and Q(s, a; t) carries it further by TD. The policy mu(s)
pursues no single one of them: it ascends Q over demonstration states that are drawn the more often
the less the agent visits them (Eq. 8: the gradient of log d(t) is that of Q(.; t), over d(t)).

What F and d are made of is the densities' own matter (`DENSITIES`): flows that learn, or kernels
around what was met. With averaged logits they stand for their N-th roots, and so does Q.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Metrics, Spec, demonstrations
from uvd.agents.densities import Densities, Flows, Stack, make_flows
from uvd.agents.kept import init_kept, judge, plays
from uvd.agents.kernels import make_kernels
from uvd.agents.td3 import (
    HEADS,
    Head,
    TargetFn,
    TD3Config,
    TD3State,
    init_td3,
    learn,
    next_value,
    optimiser,
)
from uvd.agents.uvd import COMBINE, Signals, fading
from uvd.core import replay
from uvd.core.policy import MLP, Norm, Policy
from uvd.core.replay import Batch, Ring


@dataclass(frozen=True)
class VDIConfig:
    """TD3's settings, the densities', and how demonstrations are weighed.

    The defaults suit tasks of the built-in size, the presets `cheetah` and `humanoid` the walkers,
    `ratio`, `kernel`, `changes` and `kernel-humanoid` (the one taken on Humanoid) few demonstration
    states, with targets of their own: docs/vdi.md;
    `paper` and `paper-humanoid` carry the paper's Table 2 as it is printed, `authors` its
    HalfCheetah as the authors' code has it.
    """

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(
            gamma=0.995, critic_head="huber", action_penalty=0.01, actor_start=500
        )
    )
    density: str = "flow"
    """What F and d are: flow (learned), or, with a pool, kernel (the smoothing's own Gaussians
    around what was met, which is what a flow learns one step ahead)."""
    compare: str = "states"
    """What kernels compare: states, pairs (of state and action, as demonstrated), or changes (a
    state and what the step from it changed: no actions are needed, but what came next)."""
    combine: str = "max"
    """How density and TD meet in the target: max (Algorithm 2), max-next, max-paper, sum."""
    horizon: int = 4
    """T: how many steps ahead the density looks; TD carries its value further."""
    average: bool = True
    """Average the logits over the dimensions (appendix B): densities and Q become N-th roots, and
    offsets are drawn with gamma^N."""
    smoothing: float = 0.1
    """Spatial smoothing: Gaussian noise on the densities' samples, in normalised units."""
    smoothing_half: int = 0
    """Updates in which the smoothing halves (0: it stays)."""
    smoothing_end: float = 0.0
    """The smoothing never falls below this (given together with `smoothing_half`)."""
    temporal_smoothing: float = 0.0
    """lambda: F <- lambda gamma Q' + (1 - lambda) F before the max."""
    pool: int = 0
    """Demonstration states that a target takes together (with `sum`): one critic learns Eq. 8 as a
    whole, the mean of F(t | s, a) / d(t), or of its root. As many as there are, or more: all of
    them, none drawn. 0: the critic is asked for one state at a time, as the paper's is."""
    weight_bound: float = 4.0
    """A demonstration state is drawn with weight mean d / d(t), at most this."""
    bijectors: int = 5
    """Couplings of both flows: a resolution, the narrowest width is exp(-bijectors / 2); of an odd
    number exp(-(bijectors + 1) / 2) for half of the columns, exp(-(bijectors - 1) / 2) for the
    others."""
    flow_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of each coupling's net."""
    flow_lr: float = 1e-3
    """Learning rate of the densities."""
    l2: float = 1e-5
    """L2 regularisation of the densities."""
    flow_delay: int = 500
    """Updates between hard copies of the densities, at which demonstrations are weighed anew."""
    early_delay: int = 0
    """The same during the first `early_updates` (0: as later)."""
    early_updates: int = 0
    """Updates for which `early_delay` holds."""
    density_only: int = 500
    """Updates for which only the densities learn; `actor_start` counts from the same zero."""
    late_noise: float = 0.1
    """Exploration noise after `late_updates`; `noise` holds before."""
    late_updates: int = 0
    """Updates after which `late_noise` holds (0: never)."""
    keep: bool = False
    """Who is evaluated is, of all policies that played, the one under which the demonstrations were
    likeliest in its own episodes (with kernels only); while training episodes are still cut shorter
    than they will be (`late_steps`), who plays."""
    trials: int = 0
    """Cycles that a policy plays again before it is kept, for their mean to decide (0: the one that
    it was noticed by decides)."""
    short: int = 50_000
    """Newest transitions that train the densities: the short replay memory."""


class VDIState(NamedTuple):
    """TD3's state, what the densities learn, and what is kept of them at each copy.

    `td3.norm` is the critic's: its goal is a demonstration state's live columns.
    """

    td3: TD3State
    learned: Any  # `Learned` flows, or () where densities are kernels
    future_target: Any  # F as of the last copy: a flow's parameters, or the kernels' width
    log_d: jax.Array  # [demonstration states], as of the last copy
    noise: jax.Array  # of exploration, as of the last update
    kept: Any  # `Kept`, or () without `keep`


class Learned(NamedTuple):
    """Both flows, and their optimiser's state."""

    stack: Stack
    opt: optax.OptState


# (norm, transitions, goals): F as a target takes it
DensityFn = Callable[[Norm, Batch, jax.Array], jax.Array]
FARTHEST = 60.0  # in logarithms: d counts as no less than this below F's bound
RARE = 3.0  # in logarithms below the kernel's peak: where a state begins to count for a policy


class Pool(NamedTuple):
    """Demonstration states that a target takes together."""

    states: jax.Array | None  # [pool, batch, columns]; None: all that are shown, in their order
    # The mean of F / exp(log_unit) over the pool is that of F / d over all demonstration states,
    # 1 / d bounded: one unit where they are drawn by weight, [pool, 1] where all are here.
    log_unit: jax.Array


def goal_norm(spec: Spec) -> Norm:
    """Feature ranges under which the live columns of a state are a goal."""
    norm, live = spec.norm, spec.columns
    return norm._replace(
        goal_shift=np.asarray(norm.obs_shift)[live],
        goal_scale=np.asarray(norm.obs_scale)[live],
        seen=live,
    )


def free_policy(actor: MLP, norm: Norm) -> Policy:
    """mu(s): whatever the critic is asked for, the actor pursues no goal."""
    none = norm.goal_shift[..., :0]
    return Policy(actor, norm._replace(goal_shift=none, goal_scale=none, seen=None))


def narrowest(config: VDIConfig) -> float:
    """The smoothing's width in the end."""
    return config.smoothing_end or config.smoothing


def smoothing(config: VDIConfig, step: jax.Array) -> jax.Array:
    """The smoothing's width at an update."""
    return fading(config.smoothing, config.smoothing_half, narrowest(config), step)


def make_optimiser(config: VDIConfig) -> optax.GradientTransformation:
    """Of the likelihood plus an L2 penalty."""
    return optax.chain(optax.add_decayed_weights(config.l2), optimiser(config.td3, config.flow_lr))


def flows_of(config: VDIConfig, spec: Spec) -> Flows:
    """Both flows, as the settings have them."""
    width = narrowest(config)
    return make_flows(spec, config.bijectors, config.flow_hidden, config.average, width)


def density_step(
    config: VDIConfig,
    flows: Flows,
    learned: Learned,
    norm: Norm,
    ring: Ring,
    key: jax.Array,
    step: jax.Array,
) -> tuple[Learned, Metrics]:
    """One step of maximum likelihood of both flows on the short memory (Alg. 2, 4-8)."""
    key_rows, key_offset, key_noise = jax.random.split(key, 3)
    n = config.td3.batch
    batch = replay.fetch(ring, replay.sample(ring, key_rows, n, config.short))
    limit = jnp.minimum(ring.steps_left[batch.row], config.horizon)
    # Q is an N-th root that TD discounts by gamma, so F is discounted by gamma^N (appendix B).
    offset = replay.geometric_offset(key_offset, limit, config.td3.gamma**flows.root)
    target = ring.obs[replay.later(ring, batch.row, offset)]
    noise = jax.random.normal(key_noise, (2, n, len(flows.live)))
    noise *= smoothing(config, step)

    def density_loss(stack: Stack) -> tuple[jax.Array, Metrics]:
        log_f, log_d = flows.log_both(stack, norm, batch.obs, batch.action, target, noise)
        loss = -flows.root * (log_f.mean() + log_d.mean())
        return loss, {
            "density/loss": loss, "density/log_f": log_f.mean(),
            "density/log_f_max": log_f.max(), "density/log_d": log_d.mean(),
        }  # fmt: skip

    grads, metrics = jax.grad(density_loss, has_aux=True)(learned.stack)
    updates, opt = make_optimiser(config).update(grads, learned.opt, learned.stack)
    return Learned(optax.apply_updates(learned.stack, updates), opt), metrics


def flow_densities(config: VDIConfig, spec: Spec) -> Densities:
    """F and d as flows, by maximum likelihood."""
    demos, flows = demonstrations(spec), flows_of(config, spec)
    shown = demos.obs[:, flows.live]

    def init(key: jax.Array) -> Learned:
        stack = flows.init(key)
        return Learned(stack, make_optimiser(config).init(stack))

    def fit(learned, norm, ring, key, step):
        return density_step(config, flows, learned, norm, ring, key, step)

    def current_f(learned, step):
        return learned.stack.future

    def log_d(learned, norm, ring, step):
        return flows.log_d(learned.stack.state, norm, demos.obs)

    def log_f(future, norm, batch, t):
        target = batch.obs.at[:, flows.live].set(t)
        free = flows.log_f(future, norm, batch.obs, batch.action, target)
        return jnp.minimum(free, flows.log_bound)

    def log_f_all(future, norm, batch):
        return jax.vmap(lambda t: log_f(future, norm, batch, t))(shown)

    return Densities(shown, init, fit, current_f, log_d, log_f, log_f_all, flows.log_bound)


def kernel_densities(config: VDIConfig, spec: Spec) -> Densities:
    """F and d as kernels around what was met: nothing to learn, F is its width."""
    kernels = make_kernels(spec, config.compare)

    def init(key):
        return ()

    def fit(learned, norm, ring, key, step):
        return learned, {}

    def current_f(learned, step):
        return smoothing(config, step)

    def log_d(learned, norm, ring, step):
        return kernels.log_d(smoothing(config, step), norm, ring, config.short)

    return Densities(
        kernels.shown, init, fit, current_f, log_d, kernels.log_f, kernels.log_f_all, log_bound=0.0
    )


DENSITIES = {"flow": flow_densities, "kernel": kernel_densities}


def log_mean(log_x: jax.Array) -> jax.Array:
    """The logarithm of the mean, from logarithms."""
    return jax.nn.logsumexp(log_x) - math.log(len(log_x))


def log_weights(log_d: jax.Array, bound: float) -> jax.Array:
    """log min(mean d / d, bound) of each demonstration state (appendix A.2)."""
    return jnp.minimum(log_mean(log_d) - log_d, math.log(bound))


def draw(key: jax.Array, weight: jax.Array, n: int) -> jax.Array:
    """n indices, each drawn in proportion to its weight."""
    total = jnp.cumsum(weight)
    u = jax.random.uniform(key, (n,)) * total[-1]
    return jnp.minimum(jnp.searchsorted(total, u, side="right"), len(weight) - 1)


def density_of(densities: Densities, future: Any, pool: Pool | None = None) -> DensityFn:
    """F(t | s, a) of a goal t, or its mean over a pool, in units of d."""

    def density(norm: Norm, batch: Batch, goal: jax.Array) -> jax.Array:
        if pool is None:
            return jnp.exp(densities.log_f(future, norm, batch, goal))
        if pool.states is None:
            log_f = densities.log_f_all(future, norm, batch)
        else:
            log_f = jax.vmap(lambda t: densities.log_f(future, norm, batch, t))(pool.states)
        return jnp.exp(log_f - pool.log_unit).mean(0)

    return density


def make_target(
    config: VDIConfig, head: Head, density: DensityFn, bound: jax.Array | float
) -> TargetFn:
    """max(F(t | s, a), gamma Q'(s', mu'(s'); t)), zero at a terminal step (Alg. 2, line 11), where
    of pairs and changes F still counts.

    Where the density is that of many states together, Q is of no one state. `bound`: its largest.
    """
    gamma = config.td3.gamma

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, key: jax.Array):
        q, action = next_value(config.td3, head, state, batch, goal, key, free_policy)
        after = batch._replace(obs=batch.next_obs, action=action)
        signals = Signals(
            lambda: density(state.norm, batch, goal),
            lambda: density(state.norm, after, goal),
            lambda: jnp.zeros(()),
            q,
            gamma,
            config.temporal_smoothing,
        )
        free = COMBINE[config.combine](signals)
        if config.compare == "states":  # the others were played before anything ended
            free *= ~batch.terminated
        target = jnp.clip(free, 0.0, bound)
        return target, {
            "critic/frac_td": (target <= gamma * q * (1 + 1e-3)).mean(),
            "critic/target_over_bound_max": free.max() / bound,  # before the clip
            "actor/abs_action": abs(action).mean(),
        }

    return target_fn


def demo_metrics(log_d: jax.Array, weight: jax.Array) -> Metrics:
    """How the agent's density spreads over demonstration states, and what their weights are."""
    return {
        "demos/log_d_min": log_d.min(),
        "demos/log_d_mean": log_d.mean(),
        "demos/log_d_max": log_d.max(),
        "demos/weight_max": weight.max(),
        # 1: all are drawn alike; 1 / number of states: one is drawn always
        "demos/spread": weight.sum() ** 2 / (weight**2).sum() / len(weight),
    }


def score(config: VDIConfig, spec: Spec, norm: Norm, ring: Ring) -> jax.Array:
    """How likely what is shown is under the newest cycle alone, at the kernel's last width."""
    log_d = make_kernels(spec, config.compare).log_d(narrowest(config), norm, ring, spec.cycle)
    return jnp.logaddexp(log_d, -RARE).mean()


def make_vdi(config: VDIConfig, spec: Spec) -> Agent:
    """VDI, its settings bound."""
    densities = DENSITIES[config.density](config, spec)
    shown, top = densities.shown, densities.log_bound
    # A pool's values are of the order of 1 whatever the densities are.
    bound = 1.0 if config.pool else math.exp(top)
    head = HEADS[config.td3.critic_head](bound, config.td3.critic_start)
    critic_spec = spec
    if not config.pool:  # the critic reads a state as a goal
        critic_spec = dataclasses.replace(spec, norm=goal_norm(spec), goal_dim=len(spec.columns))

    def init(key: jax.Array, spec: Spec) -> VDIState:
        key_td3, key_density = jax.random.split(key)
        td3 = init_td3(config.td3, head, critic_spec, key_td3, 0)
        learned = densities.init(key_density)
        return VDIState(
            td3,
            learned,
            densities.current_f(learned, jnp.zeros((), jnp.int32)),
            jnp.zeros(len(shown)),
            jnp.asarray(config.td3.noise, jnp.float32),
            init_kept(td3.actor, config.trials) if config.keep else (),
        )

    def pooled_target(state: VDIState, log_weight: jax.Array, key: jax.Array) -> TargetFn:
        """The target of one critic for all demonstration states (Eq. 8 as one value)."""

        def unit(log_weight: jax.Array) -> jax.Array:
            """d, bounded from below. Who is too far to count is not to count infinitely."""
            return jnp.maximum(log_mean(state.log_d) - log_weight, top - FARTHEST)

        if config.pool < len(shown):  # drawn by weight: one unit for all
            size = (config.pool, config.td3.batch)
            states = shown[draw(key, jnp.exp(log_weight), math.prod(size))].reshape(*size, -1)
            pool = Pool(states, unit(log_mean(log_weight)))
        else:  # each has its own
            pool = Pool(None, unit(log_weight)[:, None])
        density = density_of(densities, state.future_target, pool)
        return make_target(config, head, density, jnp.exp(top - pool.log_unit).mean())

    def update(state: VDIState, ring: Ring, key: jax.Array, step: jax.Array):
        key_density, key_rows, key_td, key_actor, key_target = jax.random.split(key, 5)
        norm = state.td3.norm
        # Both densities, on the short memory (Alg. 2, 4-8); now and then they are copied.
        learned, metrics = densities.fit(state.learned, norm, ring, key_density, step)
        early = config.early_delay or config.flow_delay
        delay = jnp.where(step < config.early_updates, early, config.flow_delay)
        future_target, log_d = jax.lax.cond(
            step % delay == 0,
            lambda: (
                densities.current_f(learned, step),
                densities.log_d(learned, norm, ring, step),
            ),
            lambda: (state.future_target, state.log_d),
        )
        state = state._replace(learned=learned, future_target=future_target, log_d=log_d)
        log_weight = log_weights(state.log_d, config.weight_bound)
        weight = jnp.exp(log_weight)
        n = config.td3.batch

        def improve(td3: TD3State) -> tuple[TD3State, Metrics]:
            if config.pool:
                target_fn = pooled_target(state, log_weight, key_td)
                goal = actor_goal = jnp.zeros((n, 0))
            else:
                density = density_of(densities, state.future_target)
                target_fn = make_target(config, head, density, bound)
                # The critic is asked for all alike (Alg. 2, 10), the actor by 1 / d (14).
                goal = shown[jax.random.randint(key_td, (n,), 0, len(shown))]
                actor_goal = shown[draw(key_actor, weight, n)]
            return learn(
                config.td3, head, td3, replay.fetch(ring, replay.sample(ring, key_rows, n)), goal,
                1.0, target_fn, lambda: actor_goal, key_target, step, free_policy,
            )  # fmt: skip

        def wait(td3: TD3State) -> tuple[TD3State, Metrics]:
            like = jax.eval_shape(improve, td3)[1]
            return td3, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

        if config.density_only:
            td3, of_td3 = jax.lax.cond(step >= config.density_only, improve, wait, state.td3)
        else:
            td3, of_td3 = improve(state.td3)
        late = (step >= config.late_updates) & (config.late_updates > 0)
        noise = jnp.where(late, config.late_noise, config.td3.noise)
        state = state._replace(td3=td3, noise=noise.astype(jnp.float32))
        if config.keep:
            metrics["demos/score"] = state.kept.score
        return state, {**metrics, **of_td3, **demo_metrics(state.log_d, weight)}

    def policy(state: VDIState) -> Policy:
        actor = state.td3.actor_target
        if config.keep:
            actor = plays(state.kept, actor)
        return free_policy(actor, state.td3.norm)._replace(noise=state.noise)

    def chosen(state: VDIState) -> Policy:
        return policy(state)._replace(net=state.kept.actor)

    def judged(state: VDIState, player: Policy, ring: Ring, settled: Any) -> VDIState:
        """Scores of shorter episodes (not `settled`) are no measure for those of longer ones."""
        likely = score(config, spec, state.td3.norm, ring)
        return state._replace(kept=judge(state.kept, player.net, likely, settled, config.trials))

    if not config.keep:
        return Agent(init, update, policy)
    return Agent(init, update, policy, chosen, judged)


ALGORITHMS["vdi"] = Algorithm(
    "value density imitation: visit the states of demonstrations (VDI)",
    VDIConfig,
    make_vdi,
    learns_from="demos",
)
