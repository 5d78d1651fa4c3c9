"""The goals of TD updates: the bias of every choice on the cliff walk, by exact densities.

Arrays are indexed as in `cliffwalk`: s, a, p (the next cell), g. A walker pursues the true goal and
explores. The goals that it achieves 1 to AHEAD steps after (s, a) have the density p(g | s, a),
those 0 to AHEAD - 1 steps after s' have q(g | s'): both are sums of powers of one matrix. So the
effect of TD with the goals of a choice is computed in expectation; only the last test samples.
"""

from typing import get_args

import numpy as np
import pytest

from uvd.agents.goals import Choice
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import ACTIONS, Grid

GRID = Grid(slip=0.3)
EPSILON, AHEAD, SHARE = 0.5, 12, 0.8
P = cliffwalk.transitions(GRID)
EXACT = cliffwalk.optimal_values(GRID)
GREEDY = cliffwalk.greedy(EXACT)
BEHAVIOUR = (1 - EPSILON) * GREEDY + EPSILON / len(ACTIONS)  # [s, a, pursued goal]


def futures():
    """p(g | s, a) and q(g | s') of the walker, all offsets alike."""
    step = np.einsum("sap,sa->sp", P, BEHAVIOUR[..., GRID.goal])
    q = sum(np.linalg.matrix_power(step, j) for j in range(AHEAD)) / AHEAD
    return P @ q, q


def choices():
    """For each choice of goals its probabilities and its weights, `[s, a, p, g]`."""
    p, q = futures()
    p, q = p[:, :, None], q[None, None]
    pursued = np.isin(np.arange(GRID.cells), GRID.safe) / len(GRID.safe)
    mixture = (1 - SHARE) * p + SHARE * q
    return {
        "intended": ((BEHAVIOUR * pursued)[:, :, None], 1.0),
        "shuffled": (pursued, 1.0),
        "density": (p, 1.0),
        "balanced": (mixture, np.divide(p, mixture, out=np.zeros_like(mixture), where=mixture > 0)),
        "future": (q, 1.0),
        "balanced, unweighted": (mixture, 1.0),
    }


def learned(goals, weight):
    """The limit of TD by its expected steps, and the entries that have any data.

    A step at (s, a) with goal g moves Q(s, a; g) towards (1 - gamma) F(g | s, a) + gamma Q', in
    proportion to the goal's probability and its weight; every entry has the largest stable rate.
    """
    mass = P[..., None] * goals * weight
    total = mass.sum(2)
    rate = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
    values = np.zeros_like(EXACT)
    for _ in range(1000):
        target = (1 - GRID.gamma) * P[:, :, None] + GRID.gamma * values.max(1)
        values = values + rate * (mass * (target - values[:, :, None])).sum(2)
    return values, total > 0


UNBIASED = {choice: True for choice in ("intended", "shuffled", "density", "balanced")}
UNBIASED |= {"future": False, "balanced, unweighted": False}


@pytest.mark.parametrize("choice", UNBIASED)
def test_which_goals_converge_to_the_exact_values(choice):
    assert {*get_args(Choice)} <= UNBIASED.keys() == choices().keys()
    values, has_data = learned(*choices()[choice])
    goals = has_data[GRID.safe].all((0, 1))  # with data everywhere: no policy pursues the cliff
    assert goals[GRID.safe].all()
    error = (values - EXACT)[..., goals]
    if UNBIASED[choice]:
        assert abs(error).max() < 1e-9
    else:  # as HER: it overestimates, for the true goal too
        start = (GRID.start, slice(None), GRID.goal)
        assert values[start].max() > 1.1 * EXACT[start].max()
        assert error.max() > 0.1


def test_balanced_weights_are_bounded_and_one_on_average():
    """For every s' the goals of its updates have the same total weight."""
    goals, weight = choices()["balanced"]
    assert weight.max() <= 1 / (1 - SHARE) + 1e-12
    possible = P > 0
    np.testing.assert_allclose((goals * weight).sum(-1)[possible], 1, atol=1e-12)
    assert abs((goals - futures()[0][:, :, None])[possible]).max() > 0.1  # weights had work to do


def test_density_of_s_is_the_mean_of_those_of_its_outcomes():
    p, q = futures()
    np.testing.assert_allclose(p.sum(-1), 1)
    np.testing.assert_allclose(p, np.einsum("sap,pg->sag", P, q))


def misfit(s, a, after, goal, weight):
    """Weighted counts of the likeliest outcome of (s, a, g) against P, in standard deviations."""
    likely = P.argmax(-1)
    off = weight * ((after == likely[s, a]) - P.max(-1)[s, a])
    key = (s * len(ACTIONS) + a) * GRID.cells + goal
    total, square, many = (np.bincount(key, x) for x in (off, off**2, P.max(-1)[s, a] < 1))
    often = many >= 200
    assert often.sum() > 300
    z = total[often] / np.sqrt(square[often])
    return ((z**2).sum() - len(z)) / np.sqrt(2 * len(z))


def test_goals_of_roll_outs_are_as_computed():
    """The same with the goals that a simulated walker really achieved."""
    rng = np.random.default_rng(0)
    n, last = 30_000, GRID.horizon - AHEAD + 1
    played = cliffwalk.simulate(GRID, GREEDY, np.full(n, GRID.goal), EPSILON, rng)
    s, a, after = (
        x[:, :last].ravel() for x in (played.states, played.actions, played.states[:, 1:])
    )
    offset = rng.integers(1, AHEAD + 1, (n, last))
    future = np.take_along_axis(played.states, np.arange(last) + offset, 1).ravel()
    p, q = futures()
    u = rng.random(len(s))[:, None]
    proposed = (u > (p.cumsum(-1) / p.sum(-1, keepdims=True))[s, a]).sum(-1)
    goal = np.where(rng.random(len(s)) < SHARE, future, proposed)
    weight = p[s, a, goal] / ((1 - SHARE) * p[s, a, goal] + SHARE * q[after, goal])
    assert abs(misfit(s, a, after, goal, weight)) < 4
    assert abs(misfit(s, a, after, proposed, np.ones(len(s)))) < 4
    assert misfit(s, a, after, goal, np.ones(len(s))) > 40
    assert misfit(s, a, after, future, np.ones(len(s))) > 40
