import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.core.errors import UserError
from uvd.tasks import cliffwalk, make_task
from uvd.tasks.cliffwalk import ACTIONS, DOWN, LEFT, RIGHT, STAY, UP, Grid
from uvd.tasks.cliffwalk_task import move, places

# A continuous action for each of the grid's, in their order.
MOVES = jnp.array([(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 0.0)])


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ((0.3, -0.33), STAY),
        ((0.34, 0.0), RIGHT),
        ((-0.5, 0.4), LEFT),
        ((0.4, 0.5), UP),
        ((0.4, -0.5), DOWN),
        ((1.0, -1.0), RIGHT),
    ],
)
def test_the_larger_component_decides(action, expected):
    assert int(move(jnp.array(action))) == expected


def test_every_action_of_the_grid_can_be_taken():
    assert [int(move(a)) for a in MOVES] == list(range(len(ACTIONS)))


@pytest.mark.parametrize(("rows", "cols"), [(4, 6), (2, 3), (3, 12), (9, 4)])
def test_a_goal_is_one_cell(rows, cols):
    grid = Grid(rows=rows, cols=cols)
    task = make_task("CliffWalk-v0", rows=rows, cols=cols)
    place = places(grid)
    assert (task.success(place[:, None], place[None]) == np.eye(grid.cells, dtype=bool)).all()
    start = task.reset(jax.random.key(0))
    assert int(start) == grid.start
    np.testing.assert_array_equal(task.achieved(start), [-1, -1])
    np.testing.assert_array_equal(task.goal(start), [1, -1])
    np.testing.assert_array_equal(task.goal(start), place[grid.goal])


def test_up_is_up_and_a_fall_is_observed():
    task, grid = make_task("CliffWalk-v0", slip=0.0), Grid()
    key = jax.random.key(0)
    start = task.reset(key)
    above = task.step(start, MOVES[UP], key)
    np.testing.assert_allclose(task.observe(above), [-1, -1 + 2 / 3, 0], atol=1e-6)
    fallen = task.step(start, MOVES[RIGHT], key)
    np.testing.assert_allclose(task.observe(fallen), [-1 + 2 / 5, -1, 1], atol=1e-6)
    flags = jax.vmap(task.observe)(jnp.arange(grid.cells))[:, 2]
    assert list(np.flatnonzero(flags)) == list(grid.cliff)


@pytest.mark.parametrize("slip", [0.2, 1.0])
def test_transition_frequencies_are_the_tables(slip):
    task, draws = make_task("CliffWalk-v0", slip=slip), 4000
    P = cliffwalk.transitions(Grid(slip=slip))
    cells = len(P)

    def landings(cell, action, key):
        return jax.vmap(lambda k: task.step(cell, action, k))(jax.random.split(key, draws))

    s, a = (x.ravel() for x in np.indices((cells, len(ACTIONS))))
    keys = jax.random.split(jax.random.key(0), len(s))
    landed = np.asarray(jax.jit(jax.vmap(landings))(s, MOVES[a], keys))
    frequency = (landed[..., None] == np.arange(cells)).mean(1).reshape(P.shape)
    # Five standard errors, which is zero for what cannot happen and for what must.
    assert (np.abs(frequency - P) <= 5 * np.sqrt(P * (1 - P) / draws) + 1e-12).all()


def test_a_fall_is_for_ever():
    task, grid = make_task("CliffWalk-v0"), Grid()
    keys = jax.random.split(jax.random.key(0), 500)
    actions = jax.random.uniform(jax.random.key(1), (500, 2), minval=-1, maxval=1)
    moves = jax.vmap(jax.vmap(task.step, (None, 0, 0)), (0, None, None))
    moved = jax.jit(moves)(jnp.asarray(grid.cliff), actions, keys)
    assert (moved == grid.cliff[:, None]).all()


@pytest.mark.parametrize("slip", [0.1, 0.3])
def test_a_tabular_policy_succeeds_as_often_as_it_must(slip):
    task, grid, episodes = make_task("CliffWalk-v0", slip=slip), Grid(slip=slip), 4000
    best = cliffwalk.optimal_values(grid)[..., grid.goal].argmax(1)
    policy = np.eye(len(ACTIONS))[best]
    exact = cliffwalk.success(grid, np.repeat(policy[..., None], grid.cells, -1))

    def episode(key):
        def step(cell, key):
            cell = task.step(cell, MOVES[jnp.asarray(best)[cell]], key)
            return cell, task.success(task.achieved(cell), task.goal(cell))

        return jax.lax.scan(step, task.reset(key), jax.random.split(key, task.horizon))[1]

    reached = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes))
    error = 4 * np.sqrt(0.25 / episodes)
    assert float(reached[:, -1].mean()) == pytest.approx(exact.final, abs=error)
    assert float(reached.any(1).mean()) == pytest.approx(exact.ever, abs=error)


def test_nonsense_settings_are_named():
    with pytest.raises(UserError, match="slip"):
        make_task("CliffWalk-v0", slip=2.0)
