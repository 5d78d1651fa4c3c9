"""The cliff walk of `uvd.tasks.cliffwalk` as a task in JAX, for agents with networks.

The grid and the dynamics ``P`` are the same, so what an agent learns can be compared with exact
values. Coordinates run over [-1, 1] with y upwards, as in the point tasks: the start is (-1, -1),
the goal (1, -1).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from uvd.tasks.cliffwalk import DOWN, LEFT, RIGHT, STAY, UP, Grid, cumulative, transitions
from uvd.tasks.task import Task, register


def move(action: jax.Array) -> jax.Array:
    """The grid's action for a continuous one.

    The larger component decides, x in a tie; below a third in both the walker stays.
    """
    x, y = action
    horizontal = jnp.where(x > 0, RIGHT, LEFT)
    vertical = jnp.where(y > 0, UP, DOWN)
    larger = jnp.where(jnp.abs(x) >= jnp.abs(y), horizontal, vertical)
    return jnp.where(jnp.max(jnp.abs(action)) < 1 / 3, STAY, larger)


def places(grid: Grid) -> np.ndarray:
    """Coordinates ``[s, 2]`` of the cells' centres."""
    row, col = np.divmod(np.arange(grid.cells), grid.cols)
    x, y = 2 * col / (grid.cols - 1) - 1, 1 - 2 * row / (grid.rows - 1)
    return np.stack([x, y], -1).astype(np.float32)


@register("CliffWalk-v0")
def cliff_walk(rows: int = Grid.rows, cols: int = Grid.cols, slip: float = Grid.slip) -> Task:
    """Walk past a cliff on a grid; moves slip sideways, and a fall is for ever (Figure 1)."""
    grid = Grid(rows=rows, cols=cols, slip=slip)
    place = places(grid)
    fallen = np.isin(np.arange(grid.cells), grid.cliff).astype(np.float32)
    observations = np.column_stack([place, fallen])
    cdf = cumulative(transitions(grid)).astype(np.float32)  # of the next cell

    def reset(key: jax.Array) -> jax.Array:
        return jnp.asarray(grid.start, jnp.int32)

    def step(cell: jax.Array, action: jax.Array, key: jax.Array) -> jax.Array:
        row = jnp.asarray(cdf)[cell, move(action)]
        return jnp.sum(jax.random.uniform(key) >= row, dtype=jnp.int32)

    def row_of(table: np.ndarray) -> Callable[[jax.Array], jax.Array]:
        return lambda cell: jnp.asarray(table)[cell]

    def goal(cell: jax.Array) -> jax.Array:
        return jnp.asarray(place[grid.goal])

    about = "walk past a cliff on a grid that slips (Figure 1)"
    radius = 0.5 / (max(rows, cols) - 1)  # a quarter of a cell: goals are single cells
    head = ("CliffWalk-v0", about, 3, 2, 2, grid.horizon, radius)
    return Task(*head, reset, step, row_of(observations), row_of(place), goal)
