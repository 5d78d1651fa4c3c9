"""Of all policies that played, the one to keep: for learners that do not settle.

Who played a cycle's episodes has a score. One score says little where a fall is a matter of luck,
and the best of hundreds is mostly luck: so who scores more than the best may first have to play
again, for a number of cycles, and takes its place if their mean is higher.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.core.policy import MLP


class Kept(NamedTuple):
    """The best so far, and who is on trial for its place."""

    actor: MLP
    score: jax.Array
    sure: jax.Array  # whether it won its place; until somebody has, it is whoever played last
    candidate: MLP
    tried: jax.Array  # cycles that the candidate has played on trial; -1: there is none
    total: jax.Array  # of its scores in them


def init_kept(actor: MLP) -> Kept:
    """Nobody yet."""
    nought = jnp.zeros(())
    return Kept(_copy(actor), nought, jnp.asarray(False), _copy(actor), jnp.asarray(-1), nought)


def plays(kept: Kept, actor: MLP) -> MLP:
    """Who is to play: the candidate while there is one, else the learner's own actor."""
    return _choose(kept.tried >= 0, kept.candidate, actor)


def judge(kept: Kept, net: MLP, score: jax.Array, counts: jax.Array | bool, trials: int) -> Kept:
    """What is kept once `net` has played a cycle of that score.

    A cycle that does not `count` decides nothing. A candidate is dropped as soon as its mean is not
    above the best; the score that it was noticed by is no part of that mean.
    """
    best = jnp.where(kept.sure, kept.score, -jnp.inf)
    on_trial = kept.tried >= 0
    noticed = ~on_trial & counts & (score > best) & ~(kept.sure & _same(net, kept.actor))
    if not trials:
        return kept._replace(
            actor=_choose(noticed | ~kept.sure, net, kept.actor),
            score=jnp.where(noticed | ~kept.sure, score, kept.score),
            sure=kept.sure | noticed,
        )
    its = on_trial & _same(net, kept.candidate)
    tried, total = kept.tried + its, kept.total + jnp.where(its, score, 0.0)
    mean = total / jnp.maximum(tried, 1)
    fails = its & (mean <= best)
    wins = its & ~fails & (tried >= trials)
    last = _choose(kept.sure, kept.actor, net)
    return Kept(
        _choose(wins, kept.candidate, last),
        jnp.where(wins, mean, jnp.where(kept.sure, kept.score, score)),
        kept.sure | wins,
        _choose(noticed, net, kept.candidate),
        jnp.where(noticed, 0, jnp.where(fails | wins, -1, tried)),
        jnp.where(noticed, 0.0, total),
    )


def _copy(net: MLP) -> MLP:
    return jax.tree.map(jnp.copy, net)


def _choose(which: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), a, b)


def _same(a: MLP, b: MLP) -> jax.Array:
    equal = [(x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))]
    return jnp.stack(equal).all()
