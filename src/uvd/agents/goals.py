"""The goals of an update: where hindsight bias enters, or does not (section 3.1).

    The goals of a TD update may depend on (s, a), never on what happened after them.

That line is what separates UVD from HER. All choices below obey it (`balanced` by its weights) but
`future`, which is allowed where no s' enters: in the actor's update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from uvd.agents.actor_critic import Goals
from uvd.agents.futures import Context, after_outcome, long_term
from uvd.agents.goal_density import GoalDensity
from uvd.core import replay
from uvd.core.config import Range, require, validate
from uvd.core.flows import Params
from uvd.core.policy import Norm
from uvd.core.replay import Batch, Ring

Choice = Literal["intended", "shuffled", "density", "balanced", "future"]
INTENDED = 0.2  # share of intended goals that is kept beside density, balanced or future ones
INTENDED_EARLY = 0.6  # the same at the start; the difference halves as the kernel does


@dataclass(frozen=True)
class GoalsConfig:
    """Which goals the critic and the actor learn from."""

    td_goals: Choice = "balanced"
    """Goals of the TD update: intended, shuffled, density, balanced; future (biased). With the
    last three, a fifth of the goals are still the intended ones (at first three fifths)."""
    actor_goals: Choice = "future"
    """Goals of the actor's update: the same choices, all of them sound here."""
    futures: Annotated[float, Range(0, 1)] = 0.5
    """Share of true futures among balanced goals, below 1."""

    def __post_init__(self) -> None:
        validate(self)
        require(self.futures < 1, f"futures = {self.futures} must be below 1")

    @property
    def needs_long_spans(self) -> bool:
        """Whether goals are drawn from the density."""
        return bool({"density", "balanced"} & {self.td_goals, self.actor_goals})

    @property
    def needs_after_spans(self) -> bool:
        """Whether goals are balanced by what follows s'."""
        return "balanced" in (self.td_goals, self.actor_goals)


class Source(NamedTuple):
    """What goals are made from."""

    density: GoalDensity
    flow: Params
    norm: Norm
    ring: Ring
    batch: Batch
    step: jax.Array
    futures: float

    def offset(self, key: jax.Array) -> jax.Array:
        """Steps ahead, uniform over those that are left of each episode."""
        return replay.uniform_offset(key, self.ring.steps_left[self.batch.row])

    def proposal(self, offset: jax.Array, key: jax.Array) -> jax.Array:
        """A likely achievement `offset` steps after (s, a), drawn from the density."""
        context, time_code = Context.before(self.batch), long_term(offset)[:, None]
        return self.density.sample(self.flow, self.norm, key, context, time_code)

    def log_prob(self, context: Context, goal: jax.Array, time_code: jax.Array) -> jax.Array:
        """The logarithm of the density of each goal."""
        return self.density.log_prob(self.flow, self.norm, context, goal, time_code[:, None])


def _intended(source: Source, key: jax.Array) -> Goals:
    """What the roll-out pursued: fixed before s'."""
    return Goals(source.batch.goal)


def _shuffled(source: Source, key: jax.Array) -> Goals:
    """What another roll-out pursued."""
    return Goals(jax.random.permutation(key, source.batch.goal))


def _density(source: Source, key: jax.Array) -> Goals:
    """A likely future of (s, a), drawn from the density: independent of s'."""
    key_offset, key_goal = jax.random.split(key)
    return Goals(source.proposal(source.offset(key_offset), key_goal))


def _future(source: Source, key: jax.Array) -> Goals:
    """What was really achieved later: depends on s', so it biases a TD target (this is HER's)."""
    return Goals(replay.future_uniform(source.ring, source.batch.row, key))


def _balanced(source: Source, key: jax.Array) -> Goals:
    """True futures and draws from the density, weighted so that, given (s, a), the
    goal is independent of s' (but for the width of the kernel: docs/uvd.md has what was measured).

    Given s', a goal is drawn from the mixture m = (1 - share) p + share q, where p = p(g | s, a) is
    the density's and q = p(g | a, s') is the true future's; a still matters where exploration holds
    an action. Weighted by p / m, the goal is distributed as p for every s': unbiased, with weights
    of at most 1 / (1 - share).
    """
    density, batch, share = source.density, source.batch, source.futures
    key_offset, key_goal, key_noise, key_mix = jax.random.split(key, 4)
    offset = source.offset(key_offset)
    is_future = jax.random.uniform(key_mix, (len(batch.row), 1)) < share
    future = replay.future(source.ring, batch.row, offset)
    goal = jnp.where(
        is_future,
        density.kernel.blur(future, key_noise, source.step),
        source.proposal(offset, key_goal),
    )
    log_p = source.log_prob(Context.before(batch), goal, long_term(offset))
    later = after_outcome(jnp.maximum(offset - 1, 1))
    log_later = source.log_prob(Context.after(batch), goal, later)
    log_now = density.kernel.log_prob(goal, batch.next_achieved, source.step)
    log_q = jnp.where(offset == 1, log_now, log_later)
    weight = 1 / (1 - share + share * jnp.exp(jnp.clip(log_q - log_p, -30, 30)))
    return Goals(goal, weight)


CHOICES: dict[str, Callable[[Source, jax.Array], Goals]] = {
    "intended": _intended,
    "shuffled": _shuffled,
    "density": _density,
    "balanced": _balanced,
    "future": _future,
}


def choose_goals(choice: Choice, source: Source, key: jax.Array) -> Goals:
    """Goals by `choice`. Among likely and real futures a share of intended goals is kept."""
    key_goal, key_keep = jax.random.split(key)
    goal, weight = CHOICES[choice](source, key_goal)
    if choice in ("intended", "shuffled"):
        return Goals(goal, weight)
    half, batch = source.density.config.smoothing_half, source.batch
    early = 0.5 ** (source.step / half) if half else 0.0
    share = INTENDED + (INTENDED_EARLY - INTENDED) * early
    keep = jax.random.uniform(key_keep, batch.row.shape) < share
    return Goals(jnp.where(keep[:, None], batch.goal, goal), jnp.where(keep, 1.0, weight))
