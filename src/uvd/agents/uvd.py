"""Universal value density estimation (Algorithm 1, sections 3 and 4, appendix A.1).

    collect a cycle of episodes with mu(s; g) and exploration noise
    for each update:
        density F: one step of maximum likelihood on (s, a, goal achieved j steps later)
        draw transitions (s, a, s') and goals g that depend on (s, a) alone
        target  y = (1 - gamma) F(g | s, a) + gamma Q'(s', mu'(s'; g); g)    (`sum`, the default)
                or gamma max(F(g | s', a'), Q'(s', a'; g))                   (`max-paper`)
        critics Q and actor mu: TD3's steps towards y

Hindsight samples train a *density* by maximum likelihood, never a TD target, so there is no
hindsight bias. `goals` has the ways of choosing g, `goal_density` the density.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from uvd.agents.actor_critic import ActorCritic, TargetFn, TD3Config, TD3State, clipped
from uvd.agents.agent import ALGORITHMS, Agent, Algorithm, Preset, Spec
from uvd.agents.futures import Context
from uvd.agents.goal_density import DensityConfig, GoalDensity
from uvd.agents.goals import GoalsConfig, Source, choose_goals
from uvd.agents.heads import make_head
from uvd.agents.td3 import ENVIRONMENT, SIZES
from uvd.collect.exploration import CollectConfig
from uvd.core import replay
from uvd.core.config import require, validate
from uvd.core.flows import Params
from uvd.core.replay import Batch, Ring


@dataclass(frozen=True)
class UVDConfig:
    """TD3's settings, the density's, the goals', and how density and TD meet."""

    td3: TD3Config = field(
        default_factory=lambda: TD3Config(
            critic_head="sigmoid", critic_start=0.5, action_penalty=0.01
        )
    )
    collect: CollectConfig = field(default_factory=CollectConfig)
    density: DensityConfig = field(default_factory=DensityConfig)
    goals: GoalsConfig = field(default_factory=GoalsConfig)
    combine: Literal["sum", "max", "max-next", "max-paper"] = "sum"
    """How density and TD meet in the target: sum, max (Algorithm 2's reading), max-next (the
    authors' code) or max-paper (Algorithm 1 to the letter)."""

    def __post_init__(self) -> None:
        validate(self)
        density = self.density
        require(
            density.short <= self.collect.capacity,
            f"short = {density.short} is larger than the replay buffer "
            f"(capacity = {self.collect.capacity})",
        )
        require(
            self.combine != "sum" or density.lookahead == 1,
            "combine = sum adds the density of one step, not of "
            f"lookahead = {density.lookahead}: take lookahead = 1, or a max",
        )


class UVDState(NamedTuple):
    """TD3's state, the density and its optimiser."""

    td3: TD3State
    flow: Params
    flow_opt: optax.OptState


class Signals(NamedTuple):
    """What a target is made of. Densities are functions, so that only what is used is computed."""

    f: Callable[[], jax.Array]  # c F(g | s, a)
    f_next: Callable[[], jax.Array]  # c F(g | s', a')
    q: jax.Array  # min Q'(s', a'; g)
    gamma: float


def _sum(s: Signals) -> jax.Array:
    """The Bellman equation of the discounted density (Eq. 3): rewards staying at the goal. Linear
    in Q', so the mean over s' passes through it."""
    return (1 - s.gamma) * s.f() + s.gamma * s.q


def _max(s: Signals) -> jax.Array:
    """max(F(s, a), gamma Q'(s', a')): Algorithm 2's reading of Eq. 5; rewards passing through."""
    return jnp.maximum(s.f(), s.gamma * s.q)


def _max_next(s: Signals) -> jax.Array:
    """max(F(s', a'), gamma Q'(s', a')): the authors' released code."""
    return jnp.maximum(s.f_next(), s.gamma * s.q)


def _max_paper(s: Signals) -> jax.Array:
    """gamma max(F(s', a'), Q'(s', a')): Algorithm 1 to the letter, its reward being 0 a.s."""
    return s.gamma * jnp.maximum(s.f_next(), s.q)


COMBINE = {"sum": _sum, "max": _max, "max-next": _max_next, "max-paper": _max_paper}


def make_target(config: UVDConfig, density: GoalDensity, flow: Params, step: jax.Array) -> TargetFn:
    """The critic's target: TD lifted by the density, within its bound."""
    gamma = config.td3.gamma

    def target_fn(state: TD3State, batch: Batch, goal: jax.Array, q: jax.Array, action: jax.Array):
        def scaled(context: Context) -> jax.Array:
            log_f = density.log_prob(flow, state.norm, context._replace(intended=goal), goal)
            return density.scaled(log_f, step)

        def f_next() -> jax.Array:
            return scaled(Context.after(batch)._replace(action=action)) * ~batch.terminated

        signals = Signals(lambda: scaled(Context.before(batch)), f_next, q, gamma)
        target, metrics = clipped(COMBINE[config.combine](signals), density.bound)
        return target, {"critic/frac_td": (target <= gamma * q * (1 + 1e-3)).mean(), **metrics}

    return target_fn


def make_uvd(config: UVDConfig, spec: Spec) -> Agent:
    """UVD, its settings bound."""
    td3, choices = config.td3, config.goals
    density = GoalDensity(config.density, spec, td3.optimiser, td3.gamma)
    ac = ActorCritic(td3, make_head(td3.critic_head, density.bound, td3.critic_start), spec)

    def init(key: jax.Array) -> UVDState:
        key_td3, key_flow = jax.random.split(key)
        flow = density.flow.init(key_flow)
        return UVDState(ac.init(key_td3), flow, density.optimiser.init(flow))

    def update(state: UVDState, ring: Ring, key: jax.Array, step: jax.Array):
        key_density, key_rows, key_td, key_actor, key_target = jax.random.split(key, 5)
        norm = state.td3.norm
        flow, flow_opt, density_metrics = density.fit(
            state.flow, state.flow_opt, norm, ring, key_density, step, td3.batch,
            choices.needs_long_spans, choices.needs_after_spans,
        )  # fmt: skip
        batch = replay.fetch(ring, replay.sample(ring, key_rows, td3.batch))
        source = Source(density, flow, norm, ring, batch, step, choices.futures)
        goals = choose_goals(choices.td_goals, source, key_td)

        def actor_goal() -> jax.Array:
            if choices.actor_goals == choices.td_goals:
                return goals.goal
            return choose_goals(choices.actor_goals, source, key_actor).goal

        target_fn = make_target(config, density, flow, step)
        inner, metrics = ac.learn(state.td3, batch, goals, target_fn, actor_goal, key_target, step)
        metrics["critic/weight"] = jnp.mean(goals.weight)
        metrics["critic/weight_spread"] = jnp.std(goals.weight)
        return UVDState(inner, flow, flow_opt), {**density_metrics, **metrics}

    return Agent(init, update, lambda state: ac.policy(state.td3))


# Algorithm 1 and Table 1 of the paper.
PAPER = {
    "batch": 512, "hidden": (400, 400), "actor_lr": 8e-4, "critic_lr": 8e-4, "tau": 0.01,
    "action_penalty": 0.0, "critic_head": "linear", "critic_start": 0.0, "goal_input": "absolute",
    "noise": 0.1, "random": 0.0, "hold": 1, "capacity": 1_500_000, "updates_per_step": 1.0,
    "combine": "max-paper", "td_goals": "intended", "actor_goals": "intended", "lookahead": 4,
    "smoothing": 0.0, "bijectors": 6, "flow_hidden": (300, 300), "flow_lr": 2e-4,
}  # fmt: skip
# The authors' released code, as far as it is known (docs/uvd.md); scale and couplings follow.
AUTHORS = {
    "batch": 512, "hidden": (500, 500), "actor_lr": 8e-4, "critic_lr": 8e-4, "tau": 0.01,
    "action_penalty": 0.0, "critic_head": "linear", "critic_start": 0.0, "goal_input": "absolute",
    "noise": 0.1, "random": 0.0, "hold": 1, "capacity": 1_500_000, "updates_per_step": 1.0,
    "optimiser": "rmsprop", "actor_start": 10_000, "combine": "max-next", "td_goals": "intended",
    "actor_goals": "intended", "lookahead": 4, "offsets": "uniform", "smoothing": 0.0,
    "flow_hidden": (300, 300), "flow_lr": 2e-4, "l2": 1e-5,
}  # fmt: skip
PUSH = {"density_scale": 0.02, "bijectors": 6}
SMALL_GOAL = {"density_scale": 0.02, "bijectors": 10}
SLIDE = {
    "density_scale": 0.1, "bijectors": 5, "td_goals": "shuffled", "actor_goals": "shuffled",
}  # fmt: skip
# For goals much smaller than the task: draws from the density are a few hundredths of the goals'
# range off, true futures are exact.
PRECISE = {"futures": 0.8, "smoothing_half": 4000}
SIMULATED = SIZES | {"actor_lr": 5e-4}  # Gymnasium environments; chosen on FetchPush

ALGORITHMS["uvd"] = Algorithm(
    about="TD3 lifted by a density of achieved goals (UVD)",
    config=UVDConfig,
    make=make_uvd,
    presets={
        "environment": ENVIRONMENT._replace(settings=SIMULATED),
        "precise": Preset("goals of a hundredth of the area", PRECISE),
        "environment-precise": Preset("the same in Gymnasium environments", SIMULATED | PRECISE),
        "paper": Preset("the paper's Algorithm 1 and Table 1 to the letter", PAPER),
        "paper-slide": Preset(
            "the same with Table 1's couplings for slide", PAPER | {"bijectors": 5}
        ),
        "authors-push": Preset("push as the authors' released code has it", AUTHORS | PUSH),
        "authors-slide": Preset("the same for slide", AUTHORS | SLIDE),
        "authors-sparse": Preset("the same for push with the small goal", AUTHORS | SMALL_GOAL),
    },
)
