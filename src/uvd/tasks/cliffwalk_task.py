"""The cliff walk of `uvd.tasks.cliffwalk` as a task on the device, for agents with networks.

The same grid and the same dynamics ``P``, so what an agent learns here can be held against exact
values. Coordinates run over [-1, 1] with y upwards, as in the point tasks: the start is (-1, -1),
the goal (1, -1).
"""

import jax
import jax.numpy as jnp
import numpy as np

from uvd.tasks.cliffwalk import DOWN, LEFT, RIGHT, STAY, UP, Grid, transitions
from uvd.tasks.task import Task, register


def move(action: jax.Array) -> jax.Array:
    """The grid's action that a continuous one means.

    The larger component decides, x in a tie; below a third in both the walker stays.
    """
    x, y = action
    sideways = jnp.where(x > 0, RIGHT, LEFT)
    upright = jnp.where(y > 0, UP, DOWN)
    way = jnp.where(jnp.abs(x) >= jnp.abs(y), sideways, upright)
    return jnp.where(jnp.max(jnp.abs(action)) < 1 / 3, STAY, way)


def places(grid: Grid) -> np.ndarray:
    """Coordinates ``[s, 2]`` of the cells' centres."""
    row, col = np.divmod(np.arange(grid.cells), grid.cols)
    x, y = 2 * col / (grid.cols - 1) - 1, 1 - 2 * row / (grid.rows - 1)
    return np.stack([x, y], -1).astype(np.float32)


@register("CliffWalk-v0")
def cliff_walk(rows: int = Grid.rows, cols: int = Grid.cols, slip: float = Grid.slip) -> Task:
    """Walk past a cliff on a grid; moves slip sideways, and who falls stays there (Figure 1)."""
    grid = Grid(rows=rows, cols=cols, slip=slip)
    place = places(grid)
    fallen = np.isin(np.arange(grid.cells), grid.cliff).astype(np.float32)
    look = np.column_stack([place, fallen])
    cdf = transitions(grid).cumsum(-1)
    # Divided by the total, so that rounding never lets a move end where it cannot.
    cdf = (cdf / cdf[..., -1:]).astype(np.float32)

    def reset(key: jax.Array) -> jax.Array:
        return jnp.asarray(grid.start, jnp.int32)

    def step(cell: jax.Array, action: jax.Array, key: jax.Array) -> jax.Array:
        reached = jnp.asarray(cdf)[cell, move(action)]
        return jnp.sum(jax.random.uniform(key) >= reached, dtype=jnp.int32)

    return Task(
        "CliffWalk-v0", "walk past a cliff on a grid that slips (Figure 1)", 3, 2, 2, grid.horizon,
        0.5 / (max(rows, cols) - 1),  # a quarter of a cell: goals are single cells
        reset, step, lambda cell: jnp.asarray(look)[cell], lambda cell: jnp.asarray(place)[cell],
        lambda cell: jnp.asarray(place[grid.goal]),
    )  # fmt: skip
