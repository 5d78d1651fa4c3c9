"""Feature ranges from random roll-outs (appendix A, "Normalizing states")."""

import numpy as np

from uvd.core.policy import Norm

FLOOR = 1e-3  # a feature that moves less than this share of the widest one counts as dead


def ranges(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half-width of each column; a dead column gets the widest column's half-width.

    Dividing by a range near zero would blow a feature's noise up to the size of its signal.
    """
    low, high = x.min(0), x.max(0)
    scale = (high - low) / 2
    widest = max(float(scale.max(initial=0.0)), 1e-6)
    dead = scale < FLOOR * widest
    return (low + high) / 2, np.where(dead, widest, scale)


def live_features(x: np.ndarray) -> tuple[int, ...]:
    """The columns that move at all: a density over the others would be unbounded."""
    spread = x.max(0) - x.min(0)
    widest = max(float(spread.max(initial=0.0)), 1e-6)
    return tuple(int(i) for i in np.flatnonzero(spread >= FLOOR * widest))


def find_achieved(obs: np.ndarray, achieved: np.ndarray) -> np.ndarray | None:
    """For each goal dimension the observation's column that equals it; None if one has none.

    Also None where there are no goals.
    """
    same = [np.flatnonzero((obs == column[:, None]).all(0)) for column in achieved.T]
    return np.array([s[0] for s in same], np.int32) if same and all(map(len, same)) else None


def fit_norm(obs: np.ndarray, achieved: np.ndarray, goals: np.ndarray) -> Norm:
    """Ranges of rows of observations, and of goals both achieved and asked for."""
    goal_ranges = ranges(np.concatenate([achieved, goals]))
    shift_scale = (column.astype(np.float32) for column in (*ranges(obs), *goal_ranges))
    return Norm(*shift_scale)._replace(seen=find_achieved(obs, achieved))
