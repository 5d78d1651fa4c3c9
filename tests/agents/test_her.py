"""Hindsight goals against a plain recomputation: right set, right share, right reward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from uvd.agents import Spec
from uvd.agents.her import STRATEGIES, HERConfig, hindsight_goals
from uvd.agents.td3 import HEADS, TD3Config, init_td3, sparse_target
from uvd.core.policy import Norm
from uvd.core.replay import Episode, fetch, init_ring, insert_all

HORIZON, CAPACITY, TIMES = 6, 24, 500
LENGTHS = [4, 6, 2, 6, 3, 5]  # 32 rows: the first episode is gone, the second is cut
REACHED = [True, False, True, False, False, True]
CUT = {1: 3}  # steps of an episode that the ring no longer holds


def tag(episode, t):
    """The achieved goal, which tells where it was achieved."""
    return 100.0 * episode + t


def intended(episode):
    return -1.0 - episode


@pytest.fixture(scope="module")
def ring():
    t = np.arange(HORIZON + 1)
    mark = np.stack([np.where(t <= n, tag(e, t), np.nan) for e, n in enumerate(LENGTHS)])
    n = len(LENGTHS)
    episodes = Episode(
        jnp.asarray(mark[..., None], jnp.float32),
        jnp.zeros((n, HORIZON, 1)),
        jnp.asarray(mark[..., None], jnp.float32),
        jnp.asarray([[intended(e)] for e in range(n)]),
        jnp.asarray(LENGTHS),
        jnp.zeros(n, bool),
        jnp.asarray(REACHED),
    )
    return jax.jit(insert_all)(init_ring(CAPACITY, 1, 1, 1), episodes)


def kept():
    """(episode, t) of the transitions in the ring, oldest first."""
    return [(e, t) for e, n in enumerate(LENGTHS) if e for t in range(CUT.get(e, 0), n)]


@pytest.fixture(scope="module")
def batch(ring):
    """Every transition of the ring, many times."""
    rows = ring.order[(ring.first + jnp.arange(len(kept()))) % CAPACITY]
    return fetch(ring, jnp.repeat(rows, TIMES))


def test_the_ring_is_as_described(batch):
    assert batch.achieved[::TIMES, 0].tolist() == [tag(e, t) for e, t in kept()]


def goals_of(ring, batch, **settings):
    """Altered goals per transition, `[transition, time]`, and whether they are altered."""
    draw = jax.jit(lambda key: hindsight_goals(HERConfig(**settings), ring, batch, key))
    goals = np.asarray(draw(jax.random.key(1)))[:, 0].reshape(-1, TIMES)
    return goals, goals >= 0


def candidates(strategy, e, t):
    first, last = CUT.get(e, 0), LENGTHS[e]
    return {
        "future": range(t + 1, last + 1),
        "final": range(last, last + 1),
        "episode": range(first, last + 1),
    }[strategy]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_the_right_set(ring, batch, strategy):
    goals, altered = goals_of(ring, batch, strategy=strategy, k=4)
    statistic = freedom = 0.0
    for (e, t), row, who in zip(kept(), goals, altered, strict=True):
        assert (row[~who] == intended(e)).all()
        expected = [tag(e, j) for j in candidates(strategy, e, t)]
        seen, counts = np.unique(row[who], return_counts=True)
        assert seen.tolist() == expected
        statistic += stats.chisquare(counts).statistic
        freedom += len(expected) - 1
    assert freedom == 0 or stats.chi2.sf(statistic, freedom) > 1e-3


@pytest.mark.parametrize("k", [0, 1, 4])
def test_share_of_altered_goals(ring, batch, k):
    _, altered = goals_of(ring, batch, strategy="future", k=k)
    share = k / (1 + k)
    assert altered.mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 9500) ** 0.5)


def test_paper_alters_all_of_the_unsuccessful_roll_outs_and_nothing_else(ring, batch):
    goals, altered = goals_of(ring, batch, strategy="paper")
    for (e, t), row, who in zip(kept(), goals, altered, strict=True):
        assert who.all() == who.any() == (not REACHED[e])
        expected = (
            [intended(e)] if REACHED[e] else [tag(e, j) for j in range(t + 1, LENGTHS[e] + 1)]
        )
        assert np.unique(row).tolist() == expected


def test_reward_is_the_transitions_own(ring, batch):
    """A goal achieved one step ahead is a success here, one achieved later is not."""
    norm = jax.tree.map(jnp.asarray, Norm(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1)))
    success = lambda achieved, goal: abs(achieved - goal).sum(-1) < 0.5  # noqa: E731
    spec = Spec(1, 1, 1, success, norm, (0,))
    config = TD3Config(hidden=(4,))
    head = HEADS["tanh"](50.0, 0.0)
    state = init_td3(config, head, spec, jax.random.key(0))
    for strategy in STRATEGIES:
        goals = hindsight_goals(HERConfig(strategy=strategy), ring, batch, jax.random.key(2))
        ended = batch._replace(terminated=jnp.ones_like(batch.terminated))  # the reward alone
        target, _ = sparse_target(config, head, spec)(state, ended, goals, jax.random.key(0))
        expected = np.where(np.asarray(goals) == np.asarray(batch.achieved) + 1, 0.0, -1.0)
        np.testing.assert_array_equal(target, expected[:, 0])
        assert -1 < target.mean() < 0
