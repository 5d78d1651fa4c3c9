import itertools

import numpy as np
import pytest

from uvd.core.errors import UserError
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import ACTIONS, DOWN, LEFT, RIGHT, STAY, UP, Grid


def noisy_greedy(grid, epsilon=0.2):
    policy = cliffwalk.greedy(cliffwalk.optimal_values(grid))
    return (1 - epsilon) * policy + epsilon / len(ACTIONS)


@pytest.mark.parametrize("slip", [0.0, 0.2, 1.0])
def test_transitions_are_probabilities(slip):
    P = cliffwalk.transitions(Grid(slip=slip))
    assert (P >= 0).all()
    np.testing.assert_allclose(P.sum(-1), 1)


def test_moves_slip_sideways_walls_block_and_the_cliff_keeps():
    grid = Grid(rows=3, cols=4, slip=0.2)
    # Cells: 0 1 2 3 / 4 5 6 7 / S 9 10 G.
    P = cliffwalk.transitions(grid)
    assert (grid.start, grid.goal, list(grid.cliff), list(grid.edge)) == (8, 11, [9, 10], [5, 6])
    assert dict(zip(*_outcomes(P[5, RIGHT]))) == pytest.approx({6: 0.8, 1: 0.1, 9: 0.1})
    assert dict(zip(*_outcomes(P[5, UP]))) == pytest.approx({1: 0.8, 4: 0.1, 6: 0.1})
    assert dict(zip(*_outcomes(P[8, LEFT]))) == pytest.approx({8: 0.9, 4: 0.1})
    assert dict(zip(*_outcomes(P[11, DOWN]))) == pytest.approx({11: 0.9, 10: 0.1})
    assert (P[range(12), STAY, range(12)] == 1).all()
    assert (P[grid.cliff, :, grid.cliff] == 1).all()


def _outcomes(row):
    (cells,) = np.nonzero(row)
    return cells, row[cells]


def test_optimal_values_satisfy_bellman():
    grid = Grid(slip=0.3)
    P, q = cliffwalk.transitions(grid), cliffwalk.optimal_values(grid)
    backup = (1 - grid.gamma) * P + grid.gamma * np.einsum("sap,pg->sag", P, q.max(1))
    np.testing.assert_allclose(q, backup, atol=1e-10)
    assert q.max() == pytest.approx(1)  # stay where you want to be


def test_optimal_values_are_the_best_of_all_policies():
    grid = Grid(rows=2, cols=3, slip=0.3)
    choices = np.array(list(itertools.product(range(len(ACTIONS)), repeat=grid.cells)))
    choices = choices[(choices[:, grid.cliff] == 0).all(1)]  # nothing to choose in the cliff
    policies = np.eye(len(ACTIONS))[choices].transpose(1, 2, 0)  # a policy in place of each goal
    P = cliffwalk.transitions(grid)
    model = np.broadcast_to(P[..., None], (*P.shape, len(choices)))
    reward = (1 - grid.gamma) * np.broadcast_to(P[..., [grid.goal]], policies.shape)
    best = cliffwalk.evaluate(model, reward, policies, grid.gamma).max(1)
    np.testing.assert_allclose(
        cliffwalk.optimal_values(grid).max(1)[:, grid.goal], best, atol=1e-12
    )


def test_optimal_values_equal_monte_carlo():
    grid = Grid(slip=0.3, horizon=300)
    q = cliffwalk.optimal_values(grid)
    rng = np.random.default_rng(0)
    weights = (1 - grid.gamma) * grid.gamma ** np.arange(grid.horizon)
    for goal in (grid.goal, 0, int(grid.edge[1]), int(grid.cliff[2])):
        played = cliffwalk.simulate(grid, cliffwalk.greedy(q), np.full(3000, goal), 0.0, rng)
        returns = (played.states[:, 1:] == goal) @ weights
        error = 4 * returns.std() / np.sqrt(len(returns)) + grid.gamma**grid.horizon
        assert q[grid.start, :, goal].max() == pytest.approx(returns.mean(), abs=error)


def test_success_and_flow_equal_simulation():
    grid = Grid(slip=0.2)
    policy = noisy_greedy(grid)
    n = 40_000
    goals = np.full(n, grid.goal)
    played = cliffwalk.simulate(grid, policy, goals, 0.0, np.random.default_rng(1))
    at_goal = played.states == grid.goal
    exact = cliffwalk.success(grid, policy)
    assert exact.ever - exact.final > 0.02  # the two measures differ
    assert exact.final == pytest.approx(at_goal[:, -1].mean(), abs=4 * 0.5 / np.sqrt(n))
    assert exact.ever == pytest.approx(at_goal.any(1).mean(), abs=4 * 0.5 / np.sqrt(n))

    flow = cliffwalk.flow(grid, policy)
    assert flow.sum() == pytest.approx(grid.horizon)
    falls = flow[grid.safe][:, grid.cliff].sum(0)
    fell = (played.states[:, -1, None] == grid.cliff).mean(0)
    np.testing.assert_allclose(falls, fell, atol=4 * 0.5 / np.sqrt(n))


def test_simulation_follows_dynamics_and_exploration():
    grid = Grid(slip=0.3)
    policy = cliffwalk.greedy(cliffwalk.optimal_values(grid))
    goals = np.random.default_rng(2).choice(grid.safe, 20_000)
    played = cliffwalk.simulate(grid, policy, goals, 0.5, np.random.default_rng(3))
    again = cliffwalk.simulate(grid, policy, goals, 0.5, np.random.default_rng(3))
    assert all((a == b).all() for a, b in zip(played, again))
    s, p = played.states[:, :-1], played.states[:, 1:]
    P = cliffwalk.transitions(grid)
    assert (P[s, played.actions, p] > 0).all()
    edge_right = (s == grid.edge[0]) & (played.actions == RIGHT)
    fell = (p[edge_right] == grid.cliff[0]).mean()
    assert fell == pytest.approx(0.15, abs=4 * np.sqrt(0.15 * 0.85 / edge_right.sum()))
    # Greedy half of the time, and a fifth of the other half by chance, where one action is best.
    sole = policy[grid.start, :, goals].max(1) == 1
    best = policy[grid.start, :, goals].argmax(1)
    share = (played.actions[sole, 0] == best[sole]).mean()
    assert share == pytest.approx(0.6, abs=4 * 0.5 / np.sqrt(sole.sum()))


def test_greedy_shares_ties():
    q = np.zeros((1, 5, 2))
    q[0, [1, 3], 1] = 1
    np.testing.assert_allclose(cliffwalk.greedy(q)[0].T, [[0.2] * 5, [0, 0.5, 0, 0.5, 0]])


@pytest.mark.parametrize(
    "nonsense", [{"cols": 2}, {"rows": 1}, {"slip": 1.5}, {"gamma": 1.0}, {"horizon": 0}]
)
def test_nonsense_is_refused(nonsense):
    with pytest.raises(UserError, match=next(iter(nonsense))):
        Grid(**nonsense)
