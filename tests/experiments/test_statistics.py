import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from uvd.experiments import statistics


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11, 40])
def test_iqm_is_the_mean_without_the_outer_quarters(n):
    scores = np.random.default_rng(n).normal(size=(3, n))
    np.testing.assert_allclose(statistics.iqm(scores), trim_mean(scores, 0.25, axis=1))
    np.testing.assert_allclose(statistics.iqm(scores.T, 0), trim_mean(scores, 0.25, axis=1))


def test_one_failed_seed_of_four_does_not_move_the_iqm():
    assert statistics.iqm([0.9, 0.9, 0.9, 0.0]) == pytest.approx(0.9)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        got = statistics.interval(rng.normal(2.0, 1.0, 30), resamples=400)
        assert got.low <= got.value <= got.high
        hits.append(got.low <= 2.0 <= got.high)  # the IQM of a symmetric distribution is its mean
    assert 0.90 <= np.mean(hits) <= 0.98


def test_intervals_of_a_difference_cover_the_truth():
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(400):
        ours, theirs = rng.normal(1.0, 1.0, (2, 15)), rng.normal(0.5, 2.0, (2, 15))
        got = statistics.difference(ours, theirs, resamples=400)
        hits.append(got.low <= 0.5 <= got.high)
    assert 0.90 <= np.mean(hits) <= 0.98


def test_tasks_are_resampled_on_their_own():
    # Between two tasks that no seed tells apart there is nothing to resample; mixed, there were.
    scores = np.repeat([[0.0], [1.0]], 6, axis=1)
    assert statistics.interval(scores) == (0.5, 0.5, 0.5)
    assert statistics.interval(scores.ravel()).low < 0.5


def test_equal_scores_have_no_width():
    assert statistics.interval([0.7] * 5) == pytest.approx((0.7, 0.7, 0.7))
    assert statistics.difference([0.7] * 5, [0.2] * 4) == pytest.approx((0.5, 0.5, 0.5))
    assert statistics.interval([0.3]) == pytest.approx((0.3, 0.3, 0.3))


def test_a_curve_is_an_interval_at_each_report():
    curves = np.random.default_rng(2).normal(size=(9, 4))
    got = statistics.curve(curves)
    np.testing.assert_allclose(got.value, trim_mean(curves, 0.25))
    for i in range(4):
        one = statistics.interval(curves[:, i])
        assert got.low[i] == pytest.approx(one.low, abs=0.05)
        assert got.high[i] == pytest.approx(one.high, abs=0.05)


def test_the_same_scores_give_the_same_interval():
    scores = np.random.default_rng(3).random(7)
    assert statistics.interval(scores) == statistics.interval(scores)


@pytest.mark.parametrize("scores", [[], np.zeros((2, 2, 2))])
def test_scores_of_another_shape_are_refused(scores):
    with pytest.raises(ValueError, match="seeds"):
        statistics.interval(scores)


def every_resample(scores):
    """All resamples of `[tasks, seeds]`, within each task: `[n, tasks, seeds]`."""
    rows = [list(itertools.product(row, repeat=len(row))) for row in scores]
    return np.array(list(itertools.product(*rows)))


SCORES = np.array([[0.1, 0.5, 0.7], [0.3, 0.35, 0.9]])  # all 729 resamples are soon counted


def ends_of(all_values):
    """A little inside and outside the exact quantiles: between them lie those of the bootstrap."""
    inner, outer = np.quantile(all_values, [[0.02, 0.97], [0.03, 0.98]], axis=0)
    return inner - 1e-9, outer + 1e-9


def test_the_bootstrap_is_stratified():
    got = statistics.interval(SCORES, 50_000)
    exact = trim_mean(every_resample(SCORES).reshape(-1, 6), 0.25, axis=1)
    (low, high), (above, top) = ends_of(exact)
    assert low <= got.low <= above
    assert high <= got.high <= top
    assert got.value == pytest.approx((0.3 + 0.35 + 0.5 + 0.7) / 4)


def test_improvement_counts_all_pairs():
    ours, theirs = SCORES[0], np.array([0.5, 0.5, 0.1])

    def share(ours, theirs):
        return np.mean([(x > y) + 0.5 * (x == y) for x in ours for y in theirs])

    got = statistics.improvement(ours, theirs, 50_000)
    assert got.value == pytest.approx(share(ours, theirs))
    assert statistics.improvement(theirs, ours).value == pytest.approx(1 - got.value)
    mine, others = every_resample([ours])[:, 0], every_resample([theirs])[:, 0]
    (low, high), (above, top) = ends_of([share(a, b) for a in mine for b in others])
    assert low <= got.low <= above
    assert high <= got.high <= top
    assert statistics.improvement([1.0, 2.0], [0.0]) == (1.0, 1.0, 1.0)


def test_a_profile_is_the_share_of_runs_above():
    at = [0.0, 0.35, 0.6, 0.9]
    got = statistics.profile(SCORES, at, 50_000)
    np.testing.assert_allclose(got.value, [np.mean(x < SCORES) for x in at])
    resamples = every_resample(SCORES)
    exact = np.array([(resamples > x).mean((1, 2)) for x in at]).T
    (low, high), (above, top) = ends_of(exact)
    assert np.all((low <= got.low) & (got.low <= above))
    assert np.all((high <= got.high) & (got.high <= top))
    uneven = statistics.profile([[0.5], [0.1, 0.2, 0.7]], [0.4])  # tasks count alike
    np.testing.assert_allclose(uneven.value, [(1 + 1 / 3) / 2])
    np.testing.assert_allclose(statistics.profile([[0.5, 0.7]], [0.6]).value, [0.5])


def test_time_to_threshold_is_the_first_report_that_reaches_it():
    values = [[0.1, 0.5, 0.4, 0.9], [0.6, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, np.nan]]
    times = statistics.time_to_threshold([10, 20, 30, 40], values, 0.5)
    assert times.tolist() == [20, 10, np.inf]
    # Half never reach it: the mean of the middle two is infinite, and so is the upper end.
    got = statistics.interval([10, 20, np.inf, np.inf])
    assert got.value == got.high == np.inf
    assert got.low >= 10
    assert statistics.interval([10, 20, 30, np.inf]).value == 25


def test_a_number_that_is_not_finite_is_not_averaged_away():
    assert np.isnan(statistics.iqm([0.1, 0.2, 0.3, np.nan]))
