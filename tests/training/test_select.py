"""The best policy of a run: the one with the highest score, or the highest confirmed mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.core.policy import MLP
from uvd.training.select import init_best, next_to_play, update_best

LEARNER = 99


def net(number):
    """A policy that is its number."""
    return MLP((np.full((2, 1), number, np.float32),), (np.full(1, number, np.float32),))


def number(policy):
    return int(policy.biases[0][0])


update = jax.jit(update_best, static_argnums=4)


def selected(cycles, confirm):
    """After each of `cycles` (policy, score, whether it counts): the best policy, its score, and
    the policy that plays next."""
    best, rows = init_best(net(0), confirm), []
    for policy, score, counts in cycles:
        best = update(best, net(policy), jnp.float32(score), jnp.asarray(counts), confirm)
        after = next_to_play(best, net(LEARNER))
        rows.append((number(best.net), float(best.score), number(after)))
    return rows


def test_without_confirmation_the_best_score_decides():
    cycles = [(1, 5, False), (2, 1, True), (3, 3, True), (4, 2, True), (5, 9, True)]
    found = selected(cycles, 0)
    assert [best for best, *_ in found] == [1, 2, 3, 3, 5]
    assert [score for _, score, _ in found] == [5, 1, 3, 3, 9]
    assert {plays for *_, plays in found} == {LEARNER}


def test_until_the_first_is_confirmed_the_newest_policy_is_the_best():
    cycles = [(1, 9, False), (2, 5, True), (3, 7, True), (2, 1, True), (2, 2, True), (4, 0, True)]
    found = selected(cycles, 2)
    assert [best for best, *_ in found] == [1, 2, 3, 2, 2, 2]
    # 3 played while 2 became a candidate. The 5 that 2 was noticed by does not count.
    assert found[4][1] == pytest.approx(1.5)
    assert [plays for *_, plays in found] == [LEARNER, 2, 2, 2, LEARNER, LEARNER]


@pytest.mark.parametrize(
    ("scores", "best", "score", "after"),
    [
        ([4.0, 2.0], 5, 3.0, 2),  # the mean of both is above 2.5
        ([4.0, 0.9], 1, 2.5, 2),  # it is not: dropped after the last
        ([2.0, 9.0], 1, 2.5, 1),  # dropped after its first cycle, there is no second one
    ],
)
def test_a_candidate_needs_the_higher_mean_of_its_cycles(scores, best, score, after):
    first = [(1, 0, True), (1, 2, True), (1, 3, True)]
    cycles = [*first, (2, 2.4, True), (5, 8, True), *((5, s, True) for s in scores)]
    found = selected(cycles, 2)
    assert [policy for policy, *_ in found[:5]] == [1] * 5
    assert found[3][2] == LEARNER, "2 is not above 2.5"
    assert found[4][2] == 5
    assert found[4 + after][0] == best
    assert found[4 + after][1] == pytest.approx(score)
    assert found[4 + after][2] == LEARNER


def test_the_best_policy_is_no_candidate_against_itself():
    """Its last episode may be over only when it has become the best."""
    found = selected([(1, 0, True), (1, 2, True), (1, 9, True)], 1)
    assert [best for best, *_ in found] == [1, 1, 1]
    assert found[-1][1:] == (2.0, LEARNER)
