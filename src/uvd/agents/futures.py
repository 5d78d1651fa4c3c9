"""What was achieved how long after (s, a): time spans, and what the goal density learns from.

One flow answers for several time spans. A number in its context, the time code, says which: the T
steps of the critic's target (`SHORT_TERM`), exactly so many steps after (s, a) (`long_term`), or so
many steps after s' (`after_outcome`), where what follows no longer depends on a.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from uvd.core import replay
from uvd.core.replay import Batch, Ring

SHORT_TERM = 0.0  # the time code of the T steps of the critic's target


def long_term(offset: jax.Array) -> jax.Array:
    """The time code of exactly `offset` steps after (s, a)."""
    return 1 + jnp.log(offset.astype(jnp.float32)) / 2


def after_outcome(offset: jax.Array) -> jax.Array:
    """The time code of `offset` steps after s', given s' and the action that led there."""
    return -long_term(offset)


class Context(NamedTuple):
    """Where the density looks from."""

    obs: jax.Array  # [n, obs]
    action: jax.Array  # [n, action]
    achieved: jax.Array  # [n, goal]
    intended: jax.Array  # [n, goal], the goal that is pursued

    @classmethod
    def before(cls, batch: Batch) -> "Context":
        """The transitions' own (s, a)."""
        return cls(batch.obs, batch.action, batch.achieved, batch.goal)

    @classmethod
    def after(cls, batch: Batch) -> "Context":
        """s', with the action that led there."""
        return cls(batch.next_obs, batch.action, batch.next_achieved, batch.goal)


class Futures(NamedTuple):
    """Goals achieved after transitions, and from where and how far ahead they are seen."""

    context: Context
    goal: jax.Array  # [n, goal]
    time_code: jax.Array  # [n, 1]
    long: jax.Array  # [n], whether the time span is a long one


def draw_futures(
    ring: Ring, batch: Batch, short_offset: Callable[[jax.Array], jax.Array],
    key: jax.Array, long_spans: bool, after_spans: bool,
) -> Futures:  # fmt: skip
    """One future of each transition, `short_offset` steps ahead (given the steps that are left).

    With `long_spans` every second one lies anywhere ahead in its episode; with `after_spans` every
    second one of these is seen from s', unless it is what s' achieved.
    """
    left = ring.steps_left[batch.row]
    place = jnp.arange(len(left))
    long = (place % 2 == 1) & long_spans
    offset = jnp.where(long, replay.uniform_offset(key, left), short_offset(left))
    after = long & (place % 4 == 3) & (offset > 1) & after_spans
    later = after_outcome(jnp.maximum(offset - 1, 1))
    time_code = jnp.select([after, long], [later, long_term(offset)], SHORT_TERM)[:, None]
    context = jax.tree.map(
        lambda a, b: jnp.where(after[:, None], a, b), Context.after(batch), Context.before(batch)
    )
    return Futures(context, replay.future(ring, batch.row, offset), time_code, long)
