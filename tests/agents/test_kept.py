"""Who is kept: the best by its score, or by the mean of its trials."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.training.select import init_kept, judge, plays
from uvd.core.policy import MLP

LEARNER = 99


def net(number):
    """A policy that is its number."""
    return MLP((jnp.full((2, 1), float(number)),), (jnp.full(1, float(number)),))


def number(policy):
    return int(policy.biases[0][0])


def told(steps, trials):
    """Kept after each of `steps`: (who played, its score, whether it counts)."""
    kept, out = init_kept(net(0), trials), []
    step = jax.jit(judge, static_argnums=4)
    for who, score, counts in steps:
        kept = step(kept, net(who), jnp.float32(score), jnp.asarray(counts), trials)
        out.append((number(kept.actor), float(kept.score), number(plays(kept, net(LEARNER)))))
    return out


def test_without_trials_the_best_score_decides():
    found = told([(1, 5, False), (2, 1, True), (3, 3, True), (4, 2, True), (5, 9, True)], 0)
    assert [kept for kept, *_ in found] == [1, 2, 3, 3, 5]
    assert [score for _, score, _ in found] == [5, 1, 3, 3, 9]
    assert {plays for *_, plays in found} == {LEARNER}


def test_the_first_to_pass_its_trials_is_kept_until_then_who_played_last():
    steps = [(1, 9, False), (2, 5, True), (3, 7, True), (2, 1, True), (2, 2, True), (4, 0, True)]
    found = told(steps, 2)
    assert [kept for kept, *_ in found] == [1, 2, 3, 2, 2, 2]
    # 3 was played while 2 was being noticed. The 5 that 2 was noticed by does not count.
    assert found[4][1] == pytest.approx(1.5)
    assert [plays for *_, plays in found] == [LEARNER, 2, 2, 2, LEARNER, LEARNER]


@pytest.mark.parametrize(
    ("scores", "kept", "score", "after"),
    [
        ([4.0, 2.0], 5, 3.0, 2),  # the mean of both is above 2.5
        ([4.0, 0.9], 1, 2.5, 2),  # it is not: dropped at the last
        ([2.0, 9.0], 1, 2.5, 1),  # dropped after its first trial, no second one
    ],
)
def test_a_candidate_needs_the_higher_mean_of_its_trials(scores, kept, score, after):
    first = [(1, 0, True), (1, 2, True), (1, 3, True)]
    steps = [*first, (2, 2.4, True), (5, 8, True), *((5, s, True) for s in scores)]
    found = told(steps, 2)
    assert [who for who, *_ in found[:5]] == [1] * 5
    assert found[3][2] == LEARNER, "2 is not above 2.5"
    assert found[4][2] == 5
    assert found[4 + after][0] == kept
    assert found[4 + after][1] == pytest.approx(score)
    assert found[4 + after][2] == LEARNER


def test_who_is_kept_is_not_tried_against_itself():
    """Its last episode may be over only when its place is decided."""
    first = [(1, 0, True), (1, 2, True)]
    assert [x[0] for x in told([*first, (1, 9, True)], 1)] == [1, 1, 1]
    assert told([*first, (1, 9, True)], 1)[-1][2] == LEARNER
    np.testing.assert_allclose(told([*first, (1, 9, True)], 1)[-1][1], 2.0)
