"""A ring of episodes in device memory.

An episode of L transitions is L + 1 contiguous rows: row t holds the observation, the goal achieved
*at* that observation, and the action taken there; the last row holds no action. The next
observation is therefore the next row, a goal achieved j steps later is j rows on, and neither is
stored twice. Rows are overwritten oldest first, so a surviving row always keeps its future.

Row numbers count every row ever written; a row's place is its number modulo the capacity.
`order` lists the places of the transitions in the order of their arrival, so that the newest n of
them (the paper's short replay memory) are a slice of the same ring.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from uvd.core.episode import Episode


class Ring(NamedTuple):
    """The rows of all live episodes, and the order of their transitions."""

    obs: jax.Array  # [rows, obs]
    action: jax.Array  # [rows, action]
    achieved: jax.Array  # [rows, goal]
    goal: jax.Array  # [rows, goal], the intended one
    terminated: jax.Array  # [rows], whether this transition ended the task
    reached: jax.Array  # [rows], whether the roll-out achieved its intended goal
    steps_left: jax.Array  # [rows], transitions from here to the episode's end; 0 in its last row
    steps_done: jax.Array  # [rows], transitions from the episode's start to here
    order: jax.Array  # [rows], places of the transitions
    rows_written: jax.Array  # rows ever written
    first: jax.Array  # number of the oldest live transition
    last: jax.Array  # transitions ever written
    reward: jax.Array  # [rows], of the transition that starts here


class Batch(NamedTuple):
    """Transitions, and where they lie."""

    row: jax.Array  # [batch]
    obs: jax.Array  # [batch, obs]
    action: jax.Array  # [batch, action]
    next_obs: jax.Array  # [batch, obs]
    achieved: jax.Array  # [batch, goal]
    next_achieved: jax.Array  # [batch, goal]
    goal: jax.Array  # [batch, goal], the intended one
    terminated: jax.Array  # [batch]
    reward: jax.Array  # [batch], the task's own; zero where it follows from the goal


def init_ring(capacity: int, obs_dim: int, action_dim: int, goal_dim: int) -> Ring:
    """An empty ring of `capacity` rows."""

    def column(kind: type, *shape: int) -> jax.Array:
        return jnp.zeros((capacity, *shape), kind)

    zero = jnp.zeros((), jnp.int32)
    return Ring(
        obs=column(float, obs_dim),
        action=column(float, action_dim),
        achieved=column(float, goal_dim),
        goal=column(float, goal_dim),
        terminated=column(bool),
        reached=column(bool),
        steps_left=column(int),
        steps_done=column(int),
        order=column(int),
        rows_written=zero,
        first=zero,
        last=zero,
        reward=column(float),
    )


def insert(ring: Ring, episode: Episode) -> Ring:
    """Writes one episode over the oldest rows. It must be shorter than the ring.

    An episode of length 0 is none: it pads a stack of them to a fixed number.
    """
    capacity = len(ring.order)
    t = jnp.arange(len(episode.obs), dtype=jnp.int32)
    length = episode.length.astype(jnp.int32)
    rows = jnp.where(length > 0, length + 1, 0)
    row = (ring.rows_written + t) % capacity
    # Padding goes to a place past the end, which a scatter in drop mode ignores.
    place = jnp.where(t < rows, row, capacity)
    overwritten = jnp.sum((t < rows) & (ring.steps_left[row] > 0), dtype=jnp.int32)

    def put(column: jax.Array, values: jax.Array, at: jax.Array = place) -> jax.Array:
        return column.at[at].set(values.astype(column.dtype), mode="drop")

    action = jnp.concatenate([episode.action, jnp.zeros_like(episode.action[:1])])
    order_at = jnp.where(t < length, (ring.last + t) % capacity, capacity)
    return Ring(
        put(ring.obs, episode.obs),
        put(ring.action, action),
        put(ring.achieved, episode.achieved),
        put(ring.goal, jnp.broadcast_to(episode.goal, episode.achieved.shape)),
        put(ring.terminated, episode.terminated & (t == length - 1)),
        put(ring.reached, jnp.broadcast_to(episode.success.any(), t.shape)),
        put(ring.steps_left, length - t),
        put(ring.steps_done, t),
        put(ring.order, row, order_at),
        ring.rows_written + rows,
        ring.first + overwritten,
        ring.last + length,
        put(ring.reward, jnp.append(episode.reward, 0.0)),
    )


def insert_all(ring: Ring, episodes: Episode) -> Ring:
    """Writes a stack of episodes, one after the other."""
    return jax.lax.scan(lambda r, e: (insert(r, e), None), ring, episodes)[0]


def sample(ring: Ring, key: jax.Array, n: int, newest: int | None = None) -> jax.Array:
    """Rows of n transitions, uniform over the live ones or over the `newest` of them."""
    first = ring.first if newest is None else jnp.maximum(ring.first, ring.last - newest)
    number = jax.random.randint(key, (n,), first, jnp.maximum(ring.last, first + 1))
    return ring.order[number % len(ring.order)]


def newest(ring: Ring, n: int) -> tuple[jax.Array, jax.Array]:
    """Rows of the n newest transitions, and which of them there are."""
    number = ring.last - 1 - jnp.arange(min(n, len(ring.order)))
    return ring.order[number % len(ring.order)], number >= ring.first


def later(ring: Ring, row: jax.Array, steps: jax.Array | int) -> jax.Array:
    """The rows so many steps after these (no more than steps_left: the same episode)."""
    return (row + steps) % len(ring.order)


def fetch(ring: Ring, row: jax.Array) -> Batch:
    """The transitions that start in these rows."""
    after = later(ring, row, 1)
    return Batch(
        row,
        ring.obs[row],
        ring.action[row],
        ring.obs[after],
        ring.achieved[row],
        ring.achieved[after],
        ring.goal[row],
        ring.terminated[row],
        ring.reward[row],
    )


def uniform_offset(key: jax.Array, limit: jax.Array) -> jax.Array:
    """Offsets uniform over 1..limit."""
    return 1 + jnp.floor(jax.random.uniform(key, limit.shape) * limit).astype(jnp.int32)


def geometric_offset(key: jax.Array, limit: jax.Array, gamma: float) -> jax.Array:
    """Offsets j in 1..limit with probability proportional to gamma^(j-1), by inversion."""
    u = jax.random.uniform(key, limit.shape)
    j = 1 + jnp.floor(jnp.log1p(-u * (1 - gamma**limit)) / jnp.log(gamma)).astype(jnp.int32)
    return jnp.clip(j, 1, limit)


def future(ring: Ring, row: jax.Array, offset: jax.Array) -> jax.Array:
    """The goal achieved `offset` steps after each row."""
    return ring.achieved[later(ring, row, offset)]


def future_uniform(ring: Ring, row: jax.Array, key: jax.Array) -> jax.Array:
    """A goal achieved later in the same episode, each later step as likely as another."""
    return future(ring, row, uniform_offset(key, ring.steps_left[row]))


def past_kept(ring: Ring, row: jax.Array) -> jax.Array:
    """How many earlier rows of the same episode are still there."""
    capacity = len(ring.order)
    age = (ring.rows_written - 1 - row) % capacity  # 0: the newest row
    return jnp.minimum(ring.steps_done[row], capacity - 1 - age)
