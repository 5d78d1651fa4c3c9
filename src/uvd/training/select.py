"""The best policy of a run, for algorithms that score each cycle and do not converge.

The policy that played a cycle's episodes has that cycle's score. A single score is noisy, and the
best of hundreds is mostly luck. With `confirm` cycles, a policy that scores higher than the best is
therefore a candidate first: it plays so many more cycles, and becomes the best if their mean is
higher.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from uvd.core.policy import MLP


class Candidate(NamedTuple):
    """A policy that has to confirm its score."""

    net: MLP
    cycles: jax.Array  # that it has played so far; -1: there is no candidate
    total: jax.Array  # of its scores in them


class Best(NamedTuple):
    """The best policy so far."""

    net: MLP
    score: jax.Array
    found: jax.Array  # whether its score counted; until then it is the policy that played last
    candidate: Any  # `Candidate`, or () where nothing has to be confirmed


def init_best(net: MLP, confirm: int) -> Best:
    """No best policy yet."""
    zero, none = jnp.zeros(()), jnp.full((), -1, jnp.int32)
    candidate = Candidate(net, none, zero) if confirm else ()
    return Best(net, zero, jnp.asarray(False), candidate)


def next_to_play(best: Best, net: MLP) -> MLP:
    """The candidate while there is one, else the learner's own net."""
    if not best.candidate:
        return net
    return _where(best.candidate.cycles >= 0, best.candidate.net, net)


def update_best(
    best: Best, net: MLP, score: jax.Array, counts: jax.Array | bool, confirm: int
) -> Best:
    """The best policy once `net` has played a cycle of that score.

    A cycle that does not `count` decides nothing. A candidate is dropped as soon as its mean is not
    above the best; the score that it was noticed by is no part of that mean.
    """
    bar = jnp.where(best.found, best.score, -jnp.inf)
    noticed = counts & (score > bar) & ~(best.found & _same(net, best.net))
    if not confirm:
        return _replaced(best, noticed, net, score, net, score)
    candidate = best.candidate
    noticed &= candidate.cycles < 0
    played = (candidate.cycles >= 0) & _same(net, candidate.net)
    cycles = candidate.cycles + played
    total = candidate.total + jnp.where(played, score, 0.0)
    mean = total / jnp.maximum(cycles, 1)
    fails = played & (mean <= bar)
    wins = played & ~fails & (cycles >= confirm)
    waiting = Candidate(candidate.net, jnp.where(fails | wins, -1, cycles), total)
    fresh = Candidate(net, jnp.zeros_like(cycles), jnp.zeros_like(total))
    replaced = _replaced(best, wins, candidate.net, mean, net, score)
    return replaced._replace(candidate=_where(noticed, fresh, waiting))


def _replaced(
    best: Best, wins: jax.Array, winner: MLP, its_score: jax.Array, last: MLP, score: jax.Array
) -> Best:
    """The winner if there is one; until a best policy is found, the one that played last."""
    won = Best(winner, its_score, jnp.asarray(True), ())
    newest = Best(last, score, jnp.asarray(False), ())
    return _where(wins, won, _where(best.found, best._replace(candidate=()), newest))


def _where(which: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), a, b)


def _same(a: MLP, b: MLP) -> jax.Array:
    equal = [(x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))]
    return jnp.stack(equal).all()
