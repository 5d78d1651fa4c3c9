"""How wide features are in random roll-outs (appendix A, "Normalizing states")."""

import numpy as np

from uvd.core.policy import Norm

FLOOR = 1e-3  # a feature that moves less than this share of the widest one counts as dead
FAR_CLIP = 20.0  # in standard deviations of random play: a trained runner's speed lies far outside


def ranges(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half-width of each column."""
    low, high = x.min(0), x.max(0)
    return (low + high) / 2, _no_dead((high - low) / 2)


def spreads(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column."""
    return x.mean(0), _no_dead(x.std(0))


def _no_dead(scale: np.ndarray) -> np.ndarray:
    """A dead column gets the widest one's scale.

    Dividing by a range near zero would blow a feature's noise up to the size of its signal.
    """
    widest = max(float(scale.max(initial=0.0)), 1e-6)
    return np.where(scale < FLOOR * widest, widest, scale)


def varying_columns(x: np.ndarray) -> tuple[int, ...]:
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
    """Ranges of rows of observations, and of goals both achieved and asked for.

    Without goals, where rewards are learned from, observations go by their standard deviation: nets
    that read larger numbers learned to walk sooner.
    """
    obs_range, clip = (ranges(obs), None) if achieved.size else (spreads(obs), np.float32(FAR_CLIP))
    columns = (*obs_range, *ranges(np.concatenate([achieved, goals])))
    norm = Norm(*(column.astype(np.float32) for column in columns))
    return norm._replace(achieved_columns=find_achieved(obs, achieved), obs_clip=clip)
