"""Universal value density estimation (Algorithm 1, sections 3 and 4, appendix A.1).

Hindsight samples train a *density* F(g | s, a, g_intended) by maximum likelihood; F then enters the
critic's target. A target never sees a goal that was chosen by looking at s':

    the goals of a TD update may depend on (s, a), never on what happened after them.

That line is what separates UVD from HER. `GOALS` below lists the ways of choosing goals; all but
`future` obey it (`balanced` by its weights), and `future` is allowed where no s' enters: in the
actor's update.

The density models the goal relative to what is achieved now, in normalised units, over the goal
dimensions that vary. Its training targets carry Gaussian noise of standard deviation `smoothing`
(the paper's spatial smoothing). In units of that kernel's peak, F(g | s, a) is the expectation of
exp(-|g - achieved|² / 2 smoothing²): a soft probability of success, at most 1. This is the bound
of the targets; without smoothing it is the flow's own (`Flow.log_bound`). The smoothing narrows to
the size of the task's goals, and no further.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Metrics, Spec
from uvd.agents.td3 import (
    HEADS,
    Head,
    TargetFn,
    TD3Config,
    TD3State,
    init_td3,
    learn,
    next_value,
)
from uvd.core import replay
from uvd.core.flows import Flow, Params, make_flow
from uvd.core.policy import Policy, features
from uvd.core.replay import Batch, Ring


@dataclass(frozen=True)
class UVDConfig:
    """TD3's settings, the density's, and how the two meet."""

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(
            critic_head="sigmoid", critic_start=0.5, action_penalty=0.01
        )
    )
    combine: str = "sum"
    """How density and TD meet in the target: sum, max, max-next, max-paper, reward."""
    td_goals: str = "balanced"
    """Goals of the TD update: intended, shuffled, marginal, density, balanced; future (biased)."""
    actor_goals: str = "future"
    """Goals of the actor's update: the same choices, all of them sound here."""
    futures: float = 0.5
    """Share of true futures among balanced goals."""
    intended: float = 0.2
    """Share of intended goals kept in either update."""
    intended_early: float = 0.6
    """The same at the start; the difference halves every `smoothing_half` updates (0: no start)."""
    horizon: int = 1
    """T: how many steps ahead the density in the target looks (paper: 4)."""
    offsets: str = "geometric"
    """How the density's targets are spread over 1..T: geometric or uniform."""
    smoothing: float = 0.3
    """Spatial smoothing: Gaussian noise on the density's targets, in normalised goal units."""
    smoothing_half: int = 6000
    """Updates in which the smoothing halves (0: it stays)."""
    smoothing_end: float = 0.0
    """The smoothing never falls below this (0: four fifths of the success radius)."""
    smoothing_long: float = 0.05
    """The smoothing of the long horizons never falls below this: what differs by less is taken for
    the same when goals are drawn or balanced."""
    density_scale: float = 1.0
    """c: factor on the density, in units of the bound that the smoothing sets (or of F itself)."""
    temporal_smoothing: float = 0.0
    """lambda: F <- lambda gamma Q' + (1 - lambda) F before the max."""
    bijectors: int = 0
    """Couplings of the flow: a resolution, the narrowest width is exp(-bijectors / 2) (0: as many
    as the narrowest smoothing asks for)."""
    flow_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of each coupling's net."""
    flow_lr: float = 1e-3
    """Adam's learning rate of the density."""
    flow_decay: float = 0.0
    """Weight decay of the density."""
    flow_delay: int = 0
    """Updates between hard copies of the density into the one that targets use (0: no copy)."""
    short: int = 50_000
    """Newest transitions that train the density: the short replay memory."""


class UVDState(NamedTuple):
    """TD3's state, the density, its delayed copy and its optimiser."""

    td3: TD3State
    flow: Params
    flow_target: Params
    flow_opt: optax.OptState


# The density's horizons, as it reads them: the T steps of the target, or one offset from all those
# that are left of the episode.
SHORT = 0.0


def long_horizon(offset: jax.Array) -> jax.Array:
    """The input that asks the density for what is achieved exactly `offset` steps later."""
    return 1 + jnp.log(offset.astype(jnp.float32)) / 2


def after_horizon(offset: jax.Array) -> jax.Array:
    """The same, `offset` steps after an action's outcome: given s' and the action that led there,
    not the one that follows."""
    return -long_horizon(offset)


class Density(NamedTuple):
    """The flow, seen from the algorithm: goals in the task's own units."""

    log_prob: Callable[..., jax.Array]  # (params, norm, batch-like, goal, intended, horizon)
    sample: Callable[..., jax.Array]
    flow: Flow
    dim: int
    smoothing: Callable[[jax.Array], jax.Array]  # the kernel's width at an update
    smoothing_long: Callable[[jax.Array], jax.Array]  # the same of the long horizons
    log_kernel: Callable[..., jax.Array]  # (goal, achieved, width): its density
    blur: Callable[..., jax.Array]  # (goal, key, step): noise that fades as the kernel does
    log_scale: Callable[[jax.Array], jax.Array]  # log c at an update; c F <= bound
    bound: jax.Array | float


def learns_long(config: UVDConfig) -> bool:
    """Whether the density also learns its long horizon: only if goals are drawn from it."""
    return bool({"density", "balanced"} & {config.td_goals, config.actor_goals})


def learns_after(config: UVDConfig) -> bool:
    """Whether it also learns what follows an outcome: only if goals are balanced by it."""
    return "balanced" in (config.td_goals, config.actor_goals)


def goal_unit(spec: Spec) -> np.ndarray:
    """What counts as 1 in each live dimension: its half-range, or where success is a distance, the
    mean of these, so that the kernel is round as the goal is."""
    scale = np.asarray(spec.norm.goal_scale)[list(spec.live)]
    return scale if spec.radius is None else np.full_like(scale, scale.mean())


def smoothing_end(config: UVDConfig, spec: Spec) -> float:
    """The narrowest kernel, in normalised goal units: as asked for, or by the success radius."""
    if not config.smoothing_half:
        return config.smoothing
    radius = 0.1 if spec.radius is None else spec.radius / float(goal_unit(spec)[0])
    return min(config.smoothing_end or 0.8 * radius, config.smoothing)


def fading(start: float, half: int, end: float, step: jax.Array) -> jax.Array:
    """A width that halves every `half` updates (0: it stays), down to its end."""
    return jnp.maximum(start * 0.5 ** (step / half), end) if half else jnp.asarray(start)


def make_density(config: UVDConfig, spec: Spec) -> Density:
    """F(g | s, a, g_intended, horizon) over the live goal dimensions, relative to the present."""
    live, dim, unit = jnp.array(spec.live), len(spec.live), jnp.asarray(goal_unit(spec))
    end = smoothing_end(config, spec)
    context_dim = spec.obs_dim + spec.goal_dim + spec.action_dim + 1
    couplings = config.bijectors or max(6, 2 * math.ceil(-math.log(end)))
    flow = make_flow(dim, context_dim, couplings, config.flow_hidden)
    smooth = config.smoothing > 0
    bound = config.density_scale * (1.0 if smooth else math.exp(flow.log_bound))

    def smoothing(step: jax.Array) -> jax.Array:
        return fading(config.smoothing, config.smoothing_half, end, step)

    def smoothing_long(step: jax.Array) -> jax.Array:
        return jnp.maximum(smoothing(step), config.smoothing_long)

    def log_unit(width: jax.Array) -> jax.Array:
        return dim * jnp.log(width * math.sqrt(2 * math.pi))

    def log_scale(step: jax.Array) -> jax.Array:
        return jnp.log(config.density_scale) + (log_unit(smoothing(step)) if smooth else 0.0)

    def context(norm, obs, action, intended, horizon):
        flag = jnp.broadcast_to(horizon, (*action.shape[:-1], 1))
        seen = features(norm, obs, intended)
        if config.horizon == 1:  # one step ahead, what is pursued makes no difference
            seen = seen.at[..., spec.obs_dim :].multiply(flag != SHORT)
        return jnp.concatenate([seen, action, flag], -1)

    def relative(goal, achieved):
        return (goal - achieved)[..., live] / unit

    def log_kernel(goal, achieved, width):
        return -((relative(goal, achieved) / width) ** 2).sum(-1) / 2 - log_unit(width)

    def blur(goal, key, step):
        noise = (smoothing(step) - end) * jax.random.normal(key, (len(goal), dim))
        return goal.at[:, live].add(noise * unit)

    def log_prob(params, norm, obs, action, achieved, goal, intended, horizon, noise=0.0):
        x = relative(goal, achieved) + noise
        ctx = context(norm, obs, action, intended, horizon)
        return jax.vmap(flow.log_prob, (None, 0, 0))(params, x, ctx)

    def sample(params, norm, key, obs, action, achieved, intended, horizon):
        ctx = context(norm, obs, action, intended, horizon)
        keys = jax.random.split(key, len(ctx))
        x = jax.vmap(flow.sample, (None, 0, 0))(params, keys, ctx)
        return achieved.at[:, live].add(x * unit)

    return Density(
        log_prob, sample, flow, dim, smoothing, smoothing_long, log_kernel, blur, log_scale, bound
    )


class Goals(NamedTuple):
    """Goals for a batch, and the weight that each transition has with its goal."""

    goal: jax.Array
    weight: jax.Array


def _plain(goal: jax.Array) -> Goals:
    return Goals(goal, jnp.ones(len(goal)))


# (config, density, state, ring, batch, key, step) -> goals
GoalChoice = Callable[..., Goals]


def _intended(config, density, state, ring, batch, key, step):
    """What the roll-out pursued: fixed before s'."""
    return _plain(batch.goal)


def _shuffled(config, density, state, ring, batch, key, step):
    """What another roll-out pursued."""
    return _plain(jax.random.permutation(key, batch.goal))


def _marginal(config, density, state, ring, batch, key, step):
    """What was achieved at another time: independent of this transition."""
    return _plain(ring.achieved[replay.sample(ring, key, len(batch.row))])


def _proposal(density, state, batch, offset, key):
    """A likely achievement `offset` steps after (s, a), drawn from the density."""
    return density.sample(
        state.flow, state.td3.norm, key, batch.obs, batch.action, batch.achieved, batch.goal,
        long_horizon(offset)[:, None],
    )  # fmt: skip


def _density(config, density, state, ring, batch, key, step):
    """A likely future of (s, a), drawn from the long-horizon density: it never saw s'."""
    key_offset, key_goal = jax.random.split(key)
    offset = replay.uniform_offset(key_offset, ring.steps_left[batch.row])
    return _plain(_proposal(density, state, batch, offset, key_goal))


def _future(config, density, state, ring, batch, key, step):
    """What was really achieved later: depends on s', so it biases a TD target (this is HER's)."""
    return _plain(replay.future_uniform(ring, batch.row, key))


def _balanced(config, density, state, ring, batch, key, step):
    """True futures and draws from the density, weighted so that s' gains nothing from the goal.

    Given s', a goal is drawn from the mixture m = (1 - share) p + share q, where p = p(g | s, a) is
    the density's and q = p(g | a, s') is the true future's; a still matters where exploration holds
    an action. Weighted by p / m, the goal is distributed as p for every s': unbiased, with weights
    of at most 1 / (1 - share).
    """
    key_offset, key_goal, key_noise, key_who = jax.random.split(key, 4)
    norm, n = state.td3.norm, len(batch.row)
    offset = replay.uniform_offset(key_offset, ring.steps_left[batch.row])
    true = jax.random.uniform(key_who, (n, 1)) < config.futures
    goal = jnp.where(
        true,
        density.blur(replay.future(ring, batch.row, offset), key_noise, step),
        _proposal(density, state, batch, offset, key_goal),
    )
    log_p = density.log_prob(
        state.flow, norm, batch.obs, batch.action, batch.achieved, goal, batch.goal,
        long_horizon(offset)[:, None],
    )  # fmt: skip
    log_later = density.log_prob(
        state.flow, norm, batch.next_obs, batch.action, batch.next_achieved, goal, batch.goal,
        after_horizon(jnp.maximum(offset - 1, 1))[:, None],
    )  # fmt: skip
    log_now = density.log_kernel(goal, batch.next_achieved, density.smoothing_long(step))
    log_q = jnp.where(offset == 1, log_now, log_later)
    weight = 1 / (1 - config.futures + config.futures * jnp.exp(jnp.clip(log_q - log_p, -30, 30)))
    return Goals(goal, weight)


GOALS: dict[str, GoalChoice] = {
    "intended": _intended,
    "shuffled": _shuffled,
    "marginal": _marginal,
    "density": _density,
    "balanced": _balanced,
    "future": _future,
}


def choose_goals(
    choice: str,
    config: UVDConfig,
    density: Density,
    state: UVDState,
    ring: Ring,
    batch: Batch,
    key: jax.Array,
    step: jax.Array,
) -> Goals:
    """Goals by `choice`, a share of them replaced by the intended ones."""
    key_goal, key_who = jax.random.split(key)
    faded = 0.5 ** (step / config.smoothing_half) if config.smoothing_half else 0.0
    share = config.intended + (config.intended_early - config.intended) * faded
    keep = jax.random.uniform(key_who, batch.row.shape) < share
    goals = GOALS[choice](config, density, state, ring, batch, key_goal, step)
    return Goals(
        jnp.where(keep[:, None], batch.goal, goals.goal), jnp.where(keep, 1.0, goals.weight)
    )


class Signals(NamedTuple):
    """What a target may be made of; the densities are thunks, so only what is used is computed."""

    f: Callable[[], jax.Array]  # c F(g | s, a, g)
    f_next: Callable[[], jax.Array]  # c F(g | s', a', g)
    success: Callable[[], jax.Array]  # whether s' achieves g, in units of the bound
    q: jax.Array  # min Q'(s', a'; g)
    gamma: float
    smooth: float  # lambda


def _sum(s: Signals) -> jax.Array:
    """The Bellman equation of the discounted density (Eq. 3): rewards staying. Linear in Q', so
    the mean over s' passes through it."""
    return (1 - s.gamma) * s.f() + s.gamma * s.q


def _reward(s: Signals) -> jax.Array:
    """The same with the task's own sparse reward for F: the density only proposes goals."""
    return (1 - s.gamma) * s.success() + s.gamma * s.q


def _max(s: Signals) -> jax.Array:
    """max(F(s, a), gamma Q'(s', a')): Algorithm 2's reading of Eq. 5; rewards passing through."""
    q = s.gamma * s.q
    return jnp.maximum(s.smooth * q + (1 - s.smooth) * s.f(), q)


def _max_next(s: Signals) -> jax.Array:
    """max(F(s', a'), gamma Q'(s', a')): the authors' released code."""
    q = s.gamma * s.q
    return jnp.maximum(s.smooth * q + (1 - s.smooth) * s.f_next(), q)


def _max_paper(s: Signals) -> jax.Array:
    """gamma max(F(s', a'), Q'(s', a')): Algorithm 1 to the letter, its reward being 0 a.s."""
    return s.gamma * (s.smooth * s.q + (1 - s.smooth) * jnp.maximum(s.f_next(), s.q))


COMBINE: dict[str, Callable[[Signals], jax.Array]] = {
    "sum": _sum,
    "reward": _reward,
    "max": _max,
    "max-next": _max_next,
    "max-paper": _max_paper,
}


def density_step(
    config: UVDConfig,
    density: Density,
    state: UVDState,
    ring: Ring,
    key: jax.Array,
    step: jax.Array,
) -> tuple[UVDState, Metrics]:
    """One step of maximum likelihood on the short memory, half for each horizon (Alg. 1, 4-6)."""
    key_rows, key_short, key_long, key_noise = jax.random.split(key, 4)
    n = config.td3.batch
    batch = replay.fetch(ring, replay.sample(ring, key_rows, n, config.short))
    left = ring.steps_left[batch.row]
    limit = jnp.minimum(left, config.horizon)
    if config.offsets == "geometric":
        ahead = replay.geometric_offset(key_short, limit, config.td3.gamma)
    else:
        ahead = replay.uniform_offset(key_short, limit)
    # The long horizon is only there to propose goals: no need to learn it where it is not used.
    long = (jnp.arange(n) % 2 == 1) & learns_long(config)
    offset = jnp.where(long, replay.uniform_offset(key_long, left), ahead)
    goal = replay.future(ring, batch.row, offset)
    width = jnp.where(long, density.smoothing_long(step), density.smoothing(step))
    noise = width[:, None] * jax.random.normal(key_noise, (n, density.dim))
    # Half of the long ones are seen from s', if goals are to be balanced.
    after = long & (jnp.arange(n) % 4 == 3) & (offset > 1) & learns_after(config)
    later = after_horizon(jnp.maximum(offset - 1, 1))
    horizon = jnp.select([after, long], [later, long_horizon(offset)], SHORT)[:, None]
    obs = jnp.where(after[:, None], batch.next_obs, batch.obs)
    achieved = jnp.where(after[:, None], batch.next_achieved, batch.achieved)

    def density_loss(flow: Params) -> tuple[jax.Array, jax.Array]:
        log_prob = density.log_prob(
            flow, state.td3.norm, obs, batch.action, achieved, goal, batch.goal, horizon, noise,
        )  # fmt: skip
        return -log_prob.mean(), log_prob

    (loss, log_prob), grads = jax.value_and_grad(density_loss, has_aux=True)(state.flow)
    optimiser = optax.adamw(config.flow_lr, weight_decay=config.flow_decay)
    updates, opt = optimiser.update(grads, state.flow_opt, state.flow)
    state = state._replace(flow=optax.apply_updates(state.flow, updates), flow_opt=opt)
    n_short = jnp.maximum((~long).sum(), 1)
    metrics = {
        "density/loss": loss,
        "density/log_f_short": jnp.where(long, 0, log_prob).sum() / n_short,
        "density/log_f_max": log_prob.max(),
    }
    return state, metrics


def make_target(
    config: UVDConfig, spec: Spec, density: Density, head: Head, flow: Params, step: jax.Array
) -> TargetFn:
    """The critic's target: TD lifted by the density, within its bound."""
    td3 = config.td3

    def scaled(state, obs, action, achieved, goal):
        log_f = density.log_prob(
            flow, state.norm, obs, action, achieved, goal, goal, jnp.full((len(goal), 1), SHORT)
        )
        return jnp.exp(jnp.minimum(log_f + density.log_scale(step), jnp.log(density.bound)))

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, key: jax.Array):
        q, action = next_value(td3, head, state, batch, goal, key)
        signals = Signals(
            lambda: scaled(state, batch.obs, batch.action, batch.achieved, goal),
            lambda: (
                scaled(state, batch.next_obs, action, batch.next_achieved, goal) * ~batch.terminated
            ),
            lambda: density.bound * spec.success(batch.next_achieved, goal),
            q,
            td3.gamma,
            config.temporal_smoothing,
        )
        free = COMBINE[config.combine](signals)
        target = jnp.clip(free, 0.0, density.bound)
        return target, {
            "critic/frac_td": (target <= td3.gamma * q * (1 + 1e-3)).mean(),
            "critic/target_over_bound_max": free.max() / density.bound,  # before the clip
            "actor/abs_action": abs(action).mean(),
        }

    return target_fn


def make_uvd(config: UVDConfig, spec: Spec) -> Agent:
    """UVD, its settings bound."""
    density = make_density(config, spec)
    head = HEADS[config.td3.critic_head](density.bound, config.td3.critic_start)

    def init(key: jax.Array, spec: Spec) -> UVDState:
        key_td3, key_flow = jax.random.split(key)
        flow = density.flow.init(key_flow)
        opt = optax.adamw(config.flow_lr, weight_decay=config.flow_decay).init(flow)
        return UVDState(init_td3(config.td3, head, spec, key_td3), flow, flow, opt)

    def update(state: UVDState, ring: Ring, key: jax.Array, step: jax.Array):
        key_density, key_rows, key_td, key_actor, key_target = jax.random.split(key, 5)
        state, density_metrics = density_step(config, density, state, ring, key_density, step)
        if config.flow_delay:
            copy = step % config.flow_delay == 0
            state = state._replace(
                flow_target=jax.lax.cond(copy, lambda: state.flow, lambda: state.flow_target)
            )
        flow = state.flow_target if config.flow_delay else state.flow
        # The unit of F is that of the update at which this flow was current.
        made = step - step % config.flow_delay if config.flow_delay else step

        batch = replay.fetch(ring, replay.sample(ring, key_rows, config.td3.batch))

        def goals_by(choice: str, key: jax.Array) -> Goals:
            return choose_goals(choice, config, density, state, ring, batch, key, step)

        goals = goals_by(config.td_goals, key_td)

        def actor_goal() -> jax.Array:
            if config.actor_goals == config.td_goals:
                return goals.goal
            return goals_by(config.actor_goals, key_actor).goal

        td3, metrics = learn(
            config.td3, head, state.td3, batch, goals.goal, goals.weight,
            make_target(config, spec, density, head, flow, made), actor_goal, key_target, step,
        )  # fmt: skip
        metrics["critic/weight"] = goals.weight.mean()
        metrics["critic/weight_spread"] = goals.weight.std()
        return state._replace(td3=td3), {**density_metrics, **metrics}

    return Agent(init, update, lambda s: Policy(s.td3.actor_target, s.td3.norm))


ALGORITHMS["uvd"] = Algorithm(
    "TD3 lifted by a density of achieved goals (UVD)", UVDConfig, make_uvd
)
