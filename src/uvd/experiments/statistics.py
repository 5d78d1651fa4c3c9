"""Few seeds, honestly summarised: interquartile means with stratified bootstrap intervals.

The interquartile mean (IQM) drops the best and the worst quarter of the runs: steadier than the
mean when one seed fails, finer than the median. Its interval comes from resampling the seeds, each
task's among themselves (Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice").
With fewer than about ten seeds such intervals are somewhat too narrow: 4 seeds can only resample 4.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

RESAMPLES = 5000
SEED = 0  # of the resamples: the same scores have the same interval
LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval; arrays where it is one for each report."""

    value: NDArray[np.float64] | float
    low: NDArray[np.float64] | float
    high: NDArray[np.float64] | float


def iqm(scores: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Mean of what is left without the lowest and the highest quarter (whole runs only)."""
    return trim_mean(np.asarray(scores, float), 0.25, axis)


def _resampled(scores: NDArray[np.float64], rng: np.random.Generator, n: int) -> NDArray:
    """IQMs of `n` resamples of `[tasks, seeds]`: seeds are drawn within their own task."""
    tasks, seeds = scores.shape
    pick = rng.integers(seeds, size=(n, tasks, seeds))
    return iqm(np.take_along_axis(scores[None], pick, 2).reshape(n, -1))


def _weights(seeds: int, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Resamples of one task as weights of its seeds, `[n, seeds]`: they sum to 1."""
    return rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=n) / seeds


def _table(scores: ArrayLike) -> NDArray[np.float64]:
    table = np.atleast_2d(np.asarray(scores, float))
    if table.ndim != 2 or not table.size:
        raise ValueError(f"scores must be [seeds] or [tasks, seeds], got shape {np.shape(scores)}")
    return table


def _between(value: ArrayLike, resampled: NDArray[np.float64]) -> Interval:
    tail = (1 - LEVEL) / 2
    # Between two infinities there is nothing to interpolate.
    method: Any = "inverted_cdf" if np.isinf(resampled).any() else "linear"
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0, method=method)
    return Interval(*(x if np.ndim(x) else float(x) for x in (np.asarray(value), low, high)))


def interval(scores: ArrayLike, resamples: int = RESAMPLES) -> Interval:
    """IQM of `[seeds]`, or of `[tasks, seeds]` taken together, with its bootstrap interval."""
    table, rng = _table(scores), np.random.default_rng(SEED)
    return _between(iqm(table.ravel()), _resampled(table, rng, resamples))


def difference(ours: ArrayLike, theirs: ArrayLike, resamples: int = RESAMPLES) -> Interval:
    """IQM of one method less that of another; both are resampled, independently."""
    a, b, rng = _table(ours), _table(theirs), np.random.default_rng(SEED)
    gaps = _resampled(a, rng, resamples) - _resampled(b, rng, resamples)
    return _between(iqm(a.ravel()) - iqm(b.ravel()), gaps)


def improvement(ours: ArrayLike, theirs: ArrayLike, resamples: int = RESAMPLES) -> Interval:
    """Probability that a run of ours scores above one of theirs, over all pairs of runs.

    Both are `[seeds]`; equal scores count half.
    """
    a, b, rng = np.asarray(ours)[:, None], np.asarray(theirs), np.random.default_rng(SEED)
    wins = (a > b) + 0.5 * (a == b)
    of_a, of_b = (_weights(seeds, rng, resamples) for seeds in wins.shape)
    return _between(wins.mean(), (of_a @ wins * of_b).sum(1))


def profile(
    scores: Sequence[ArrayLike], thresholds: ArrayLike, resamples: int = RESAMPLES
) -> Interval:
    """Performance profile: the share of runs that score above each threshold, mean over tasks.

    Each task has its own `[seeds]`, and their numbers may differ.
    """
    rng = np.random.default_rng(SEED)
    above = [1.0 * (np.asarray(x)[:, None] > np.asarray(thresholds)) for x in scores]
    shares = [_weights(len(x), rng, resamples) @ x for x in above]
    return _between(np.mean([x.mean(0) for x in above], 0), np.mean(shares, 0))


def time_to_threshold(times: ArrayLike, values: ArrayLike, threshold: float) -> NDArray[np.float64]:
    """When each row of `[seeds, reports]` reaches the threshold; infinity where it never does."""
    reached = np.asarray(values, float) >= threshold
    return np.where(reached.any(1), np.asarray(times, float)[reached.argmax(1)], np.inf)


def curve(values: ArrayLike, resamples: int = RESAMPLES) -> Interval:
    """IQM over seeds of `[seeds, reports]`, for each report; a resample takes whole curves."""
    curves, rng = np.asarray(values, float), np.random.default_rng(SEED)
    pick = rng.integers(len(curves), size=(resamples, len(curves)))
    return _between(iqm(curves, 0), iqm(curves[pick], 1))
