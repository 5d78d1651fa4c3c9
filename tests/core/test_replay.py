"""The ring against a plain list of episodes, and the offsets against their distributions."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from uvd.core import replay
from uvd.core.episode import Episode

HORIZON = 7
CAPACITIES = (8, 11, 40)  # barely one episode; a few cut ones; many
DRAWS = 512
NEWEST = (1, 3, 9, 50)  # each is compiled


class Model(NamedTuple):
    """An episode of the plain model: its number, and what may differ between episodes."""

    number: int
    length: int
    terminated: bool
    reached: bool


class Row(NamedTuple):
    """A row of the plain model: the episode, and the step in it."""

    episode: Model
    t: int


def tag(episode: int, t: int) -> float:
    """A number by which any stored value tells where it came from; padding gets none of them."""
    return 100.0 * (episode + 1) + t


def as_episode(model: Model) -> Episode:
    """Obs, achieved goals and actions say (episode, t) in their own ranges; padding is NaN."""
    t = np.arange(HORIZON + 1)
    mark = np.where(t <= model.length, tag(model.number, t), np.nan)
    act = np.where(t[:-1] < model.length, 0.5 + tag(model.number, t[:-1]), np.nan)
    return Episode(
        jnp.asarray(np.stack([mark, mark], -1), jnp.float32),
        jnp.asarray(act[:, None], jnp.float32),
        jnp.asarray(-mark[:, None], jnp.float32),
        jnp.asarray([-0.5 - tag(model.number, 0)], jnp.float32),
        jnp.asarray(model.length, jnp.int32),
        jnp.asarray(model.terminated),
        jnp.asarray((t[:-1] == model.length // 2) & model.reached),
        jnp.asarray(act + 0.25, jnp.float32),
    )


def live_rows(episodes: list[Model], capacity: int) -> list[Row]:
    """The newest `capacity` rows of all that were ever written."""
    return [Row(e, t) for e in episodes for t in range(e.length + 1)][-capacity:]


def transitions(rows: list[Row]) -> list[Row]:
    return [r for r in rows if r.t < r.episode.length]


insert = jax.jit(replay.insert)
fetch = jax.jit(replay.fetch)
draw = jax.jit(lambda ring, key: replay.sample(ring, key, DRAWS))
find_newest = jax.jit(replay.newest, static_argnums=1)
draw_newest = jax.jit(lambda ring, key, newest: replay.sample(ring, key, DRAWS, newest))


@jax.jit
def look(ring):
    """Everything the ring says of the rows that it lists, in the order of their arrival."""
    row = ring.order[(ring.first + jnp.arange(len(ring.order))) % len(ring.order)]
    ahead = jnp.arange(1, HORIZON + 1)
    back = -jnp.arange(1, HORIZON + 1)
    spread = lambda offset: jax.vmap(replay.future, (None, None, 0), 1)(ring, row, offset)  # noqa: E731
    return (
        replay.fetch(ring, row), ring.steps_left[row], ring.steps_done[row], ring.reached[row],
        replay.past_kept(ring, row), spread(ahead), spread(back),
    )  # fmt: skip


def check(ring, episodes: list[Model], capacity: int) -> None:
    rows = live_rows(episodes, capacity)
    live = transitions(rows)
    assert int(ring.last - ring.first) == len(live)
    assert int(ring.last) == sum(e.length for e in episodes)
    batch, left, done, reached, kept, ahead, back = jax.tree.map(np.asarray, look(ring))
    for i, (e, t) in enumerate(live):
        assert batch.obs[i].tolist() == [tag(e.number, t)] * 2
        assert batch.next_obs[i].tolist() == [tag(e.number, t + 1)] * 2
        assert batch.action[i] == tag(e.number, t) + 0.5
        assert batch.reward[i] == tag(e.number, t) + 0.75
        assert batch.achieved[i] == -tag(e.number, t)
        assert batch.next_achieved[i] == -tag(e.number, t + 1)
        assert batch.goal[i] == -0.5 - tag(e.number, 0)
        assert batch.terminated[i] == (e.terminated and t == e.length - 1)
        assert reached[i] == e.reached
        assert (left[i], done[i]) == (e.length - t, t)
        for j in range(1, left[i] + 1):
            assert ahead[i, j - 1] == -tag(e.number, t + j)
        oldest = min(r.t for r in rows if r.episode == e)
        assert kept[i] == t - oldest
        for j in range(1, kept[i] + 1):
            assert back[i, j - 1] == -tag(e.number, t - j)


def drawn(ring, rows) -> set[float]:
    return set(np.asarray(fetch(ring, rows).obs[:, 0]).tolist())


plays = st.lists(
    st.tuples(st.integers(1, HORIZON), st.booleans(), st.booleans()), min_size=1, max_size=10
)


@settings(max_examples=25)
@given(plays=plays, capacity=st.sampled_from(CAPACITIES), newest=st.sampled_from(NEWEST))
def test_ring_is_a_list_of_episodes(plays, capacity, newest):
    ring = replay.init_ring(capacity, 2, 1, 1)
    episodes: list[Model] = []
    for number, (length, terminated, reached) in enumerate(plays):
        episodes.append(Model(number, length, terminated, reached))
        ring = insert(ring, as_episode(episodes[-1]))
        check(ring, episodes, capacity)
    # 512 draws miss one of at most 40 with a chance of 1e-4; the examples are fixed.
    live = [tag(e.number, t) for e, t in transitions(live_rows(episodes, capacity))]
    key = jax.random.key(len(plays))
    assert drawn(ring, draw(ring, key)) == set(live)
    assert drawn(ring, draw_newest(ring, key, newest)) == set(live[-newest:])
    rows, exist = map(np.asarray, find_newest(ring, newest))
    assert np.asarray(ring.obs)[rows[exist], 0].tolist() == live[: -newest - 1 : -1]


def test_episode_may_fill_the_ring():
    episodes = [Model(0, HORIZON, True, False), Model(1, HORIZON, False, True)]
    ring = replay.init_ring(HORIZON + 1, 2, 1, 1)
    for e in episodes:
        ring = insert(ring, as_episode(e))
    check(ring, episodes, HORIZON + 1)


def ring_of(lengths, capacity):
    episodes = [Model(i, n, i % 2 == 0, i % 3 == 0) for i, n in enumerate(lengths)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *map(as_episode, episodes))
    return jax.jit(replay.insert_all)(replay.init_ring(capacity, 2, 1, 1), stacked), episodes


def test_insert_all_is_insert_in_turn():
    ring, episodes = ring_of([3, 7, 1, 5, 7, 2], 11)
    check(ring, episodes, 11)


def chi_square(observed, expected) -> float:
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("newest", [None, 1, 9, 1000])
def test_sampling_is_uniform(newest):
    ring, episodes = ring_of([3, 7, 1, 5, 7, 2, 6, 4], 30)
    live = [tag(e.number, t) for e, t in transitions(live_rows(episodes, 30))][-(newest or 1000) :]
    rows = jax.jit(partial(replay.sample, n=20_000, newest=newest))(ring, jax.random.key(0))
    seen, counts = np.unique(np.asarray(ring.obs[rows, 0]), return_counts=True)
    assert seen.tolist() == live
    assert len(live) == 1 or chi_square(counts, np.ones(len(live))) > 1e-3


@pytest.mark.parametrize("limit", [1, 2, 5, 50])
def test_uniform_offset(limit):
    offset = np.asarray(replay.uniform_offset(jax.random.key(limit), jnp.full(20_000, limit)))
    assert offset.min() == 1
    assert offset.max() == limit
    counts = np.bincount(offset, minlength=limit + 1)[1:]
    assert limit == 1 or chi_square(counts, np.ones(limit)) > 1e-3


@pytest.mark.parametrize("gamma", [0.3, 0.9, 0.98, 0.9999, 1 - 1e-6])
@pytest.mark.parametrize("limit", [1, 2, 4, 50])
def test_geometric_offset(limit, gamma):
    n = 20_000
    offset = replay.geometric_offset(jax.random.key(limit), jnp.full(n, limit), gamma)
    counts = np.bincount(np.asarray(offset), minlength=limit + 1)
    assert counts[0] == 0
    assert len(counts) == limit + 1
    expected = gamma ** np.arange(limit)
    often = expected / expected.sum() * n >= 5
    assert counts[1:][~often].sum() <= 20
    assert limit == 1 or chi_square(counts[1:][often], expected[often]) > 1e-3


def test_offsets_obey_each_row_its_own_limit():
    limit = jnp.tile(jnp.arange(1, 9), 2000)
    for offset in (
        replay.uniform_offset(jax.random.key(0), limit),
        replay.geometric_offset(jax.random.key(1), limit, 0.95),
    ):
        offset = np.asarray(offset).reshape(2000, 8)
        assert (offset.min(0) == 1).all()
        assert offset.max(0).tolist() == list(range(1, 9))


def test_one_trace_for_all_calls_of_a_shape():
    traces = 0

    @jax.jit
    def cycle(ring, episode, key):
        nonlocal traces
        traces += 1
        ring = replay.insert(ring, episode)
        rows = replay.sample(ring, key, 4, 5)
        batch = replay.fetch(ring, rows)
        offset = replay.geometric_offset(key, ring.steps_left[rows], 0.9)
        return ring, batch, replay.future(ring, rows, offset)

    ring = replay.init_ring(20, 2, 1, 1)
    for i in range(6):
        ring, _, _ = cycle(ring, as_episode(Model(i, 1 + i, i % 2 == 0, False)), jax.random.key(i))
    assert traces == 1


def stack(seeds: list[list[Model]]) -> Episode:
    """Episodes `[seed, episode, ...]`, the shorter lists padded with episodes of length 0."""
    most = max(map(len, seeds))
    full = [[*s, *[Model(0, 0, False, False)] * (most - len(s))] for s in seeds]
    rows = [jax.tree.map(lambda *x: jnp.stack(x), *map(as_episode, s)) for s in full]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


SEEDS = [
    [Model(0, 3, True, False), Model(1, 5, False, True)],
    [Model(2, 1, False, False), Model(3, 4, True, True), Model(4, 2, False, False)],
]


def test_an_episode_of_length_0_is_none():
    padded = jax.jit(jax.vmap(replay.insert_all, (None, 0)))(
        replay.init_ring(11, 2, 1, 1), stack(SEEDS)
    )
    for seed, episodes in enumerate(SEEDS):
        ring = replay.init_ring(11, 2, 1, 1)
        for episode in episodes:
            ring = insert(ring, as_episode(episode))
        mine = jax.tree.map(lambda x, seed=seed: x[seed], padded)
        jax.tree.map(np.testing.assert_array_equal, mine, ring)
