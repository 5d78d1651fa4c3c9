"""Of all policies that played, the one to keep: for learners that do not settle.

Who played a cycle's episodes has a score. One score says little where a fall is a matter of luck,
and the best of hundreds is mostly luck: so who scores more than the best may first have to play
again, for a number of cycles, and takes its place if their mean is higher.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.core.policy import MLP


class Trial(NamedTuple):
    """Who is on trial for the place of the best."""

    actor: MLP
    tried: jax.Array  # cycles that it has played so far; -1: there is nobody
    total: jax.Array  # of its scores in them


class Kept(NamedTuple):
    """The best so far."""

    actor: MLP
    score: jax.Array
    sure: jax.Array  # whether it won its place; until somebody has, it is whoever played last
    trial: Any  # `Trial`, or () where there are none


def init_kept(actor: MLP, trials: int) -> Kept:
    """Nobody yet."""
    nought, nobody = jnp.zeros(()), jnp.full((), -1, jnp.int32)
    trial = Trial(_copy(actor), nobody, nought) if trials else ()
    return Kept(_copy(actor), nought, jnp.asarray(False), trial)


def plays(kept: Kept, actor: MLP) -> MLP:
    """Who is to play: the candidate while there is one, else the learner's own actor."""
    return _choose(kept.trial.tried >= 0, kept.trial.actor, actor) if kept.trial else actor


def judge(kept: Kept, net: MLP, score: jax.Array, counts: jax.Array | bool, trials: int) -> Kept:
    """What is kept once `net` has played a cycle of that score.

    A cycle that does not `count` decides nothing. A candidate is dropped as soon as its mean is not
    above the best; the score that it was noticed by is no part of that mean.
    """
    best = jnp.where(kept.sure, kept.score, -jnp.inf)
    noticed = counts & (score > best) & ~(kept.sure & _same(net, kept.actor))
    if not trials:
        return _placed(kept, noticed, net, score, net, score)
    trial = kept.trial
    noticed &= trial.tried < 0
    its = (trial.tried >= 0) & _same(net, trial.actor)
    tried, total = trial.tried + its, trial.total + jnp.where(its, score, 0.0)
    mean = total / jnp.maximum(tried, 1)
    fails = its & (mean <= best)
    wins = its & ~fails & (tried >= trials)
    over = jnp.where(fails | wins, -1, tried)
    new = _choose(noticed, Trial(net, jnp.zeros_like(tried), jnp.zeros_like(total)),
                  Trial(trial.actor, over, total))  # fmt: skip
    return _placed(kept, wins, trial.actor, mean, net, score)._replace(trial=new)


def _placed(
    kept: Kept, wins: jax.Array, who: MLP, its: jax.Array, last: MLP, score: jax.Array
) -> Kept:
    """`who` of score `its` in the best's place if it wins; whoever played last if nobody has."""
    best = Kept(who, its, jnp.asarray(True), ())
    other = Kept(last, score, jnp.asarray(False), ())
    return _choose(wins, best, _choose(kept.sure, kept._replace(trial=()), other))


def _copy(net: MLP) -> MLP:
    return jax.tree.map(jnp.copy, net)


def _choose(which: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), a, b)


def _same(a: MLP, b: MLP) -> jax.Array:
    equal = [(x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))]
    return jnp.stack(equal).all()
