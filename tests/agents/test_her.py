"""Hindsight goals against a plain recomputation: right set, right share, right reward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from small_tasks import KEY, agent_state, compiled, insert_episodes, unit_norm
from uvd.agents import Spec
from uvd.agents.actor_critic import TD3Config
from uvd.agents.her import STRATEGIES, HERConfig, hindsight_goals, make_her
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.replay import fetch

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
    n, t = len(LENGTHS), np.arange(HORIZON + 1)
    mark = np.stack([np.where(t <= n, tag(e, t), np.nan) for e, n in enumerate(LENGTHS)])
    mark = mark[..., None].astype(np.float32)
    reached_at = np.random.default_rng(0).integers(0, LENGTHS)
    episodes = Episode(
        obs=mark,
        action=np.zeros((n, HORIZON, 1), np.float32),
        achieved=mark,
        goal=np.array([[intended(e)] for e in range(n)], np.float32),
        length=np.array(LENGTHS, np.int32),
        terminated=np.zeros(n, bool),
        success=(np.arange(HORIZON) == reached_at[:, None]) & np.array(REACHED)[:, None],
        reward=np.zeros((n, HORIZON), np.float32),
    )
    return insert_episodes(episodes, CAPACITY)


def transitions():
    """(episode, t) of the transitions in the ring, oldest first."""
    return [(e, t) for e, n in enumerate(LENGTHS) if e for t in range(CUT.get(e, 0), n)]


@pytest.fixture(scope="module")
def batch(ring):
    """Every transition of the ring, many times."""
    number = np.repeat(int(ring.first) + np.arange(len(transitions())), TIMES)
    return compiled(fetch)(ring, np.asarray(ring.order)[number % CAPACITY])


def test_the_ring_is_as_described(batch):
    assert batch.achieved[::TIMES, 0].tolist() == [tag(e, t) for e, t in transitions()]


def goals_of(ring, batch, **settings):
    """Altered goals of each transition, `[transition, time]`, and whether they are altered."""
    draw = compiled(lambda key: hindsight_goals(HERConfig(**settings), ring, batch, key))
    goals = np.asarray(draw(jax.random.key(1)))[:, 0].reshape(-1, TIMES)
    return goals, goals >= 0


def candidates(strategy, e, t):
    first, last = CUT.get(e, 0), LENGTHS[e]
    return {
        "future": range(t + 1, last + 1),
        "final": range(last, last + 1),
        "episode": range(first, last + 1),
    }[strategy]


@pytest.mark.parametrize(("strategy", "k"), [("future", 4), ("final", 1), ("episode", 9)])
def test_goals_are_uniform_over_the_right_set(ring, batch, strategy, k):
    """k goals are altered for each one that is not."""
    goals, altered = goals_of(ring, batch, strategy=strategy, k=k)
    statistic = freedom = 0.0
    for (e, t), row, chosen in zip(transitions(), goals, altered, strict=True):
        assert (row[~chosen] == intended(e)).all()
        expected = [tag(e, j) for j in candidates(strategy, e, t)]
        found, counts = np.unique(row[chosen], return_counts=True)
        assert found.tolist() == expected
        statistic += stats.chisquare(counts).statistic
        freedom += len(expected) - 1
    assert freedom == 0 or stats.chi2.sf(statistic, freedom) > 1e-3
    share = k / (1 + k)
    error = (share * (1 - share) / altered.size) ** 0.5
    assert altered.mean() == pytest.approx(share, abs=4 * error)


def test_no_goal_is_altered_for_k_of_0(ring, batch):
    assert not goals_of(ring, batch, k=0)[1].any()


def test_paper_alters_all_of_the_unsuccessful_episodes_and_nothing_else(ring, batch):
    goals, altered = goals_of(ring, batch, strategy="paper")
    for (e, t), row, chosen in zip(transitions(), goals, altered, strict=True):
        assert chosen.all() == chosen.any() == (not REACHED[e])
        future = [tag(e, j) for j in candidates("future", e, t)]
        assert np.unique(row).tolist() == ([intended(e)] if REACHED[e] else future)


def test_the_reward_is_the_transitions_own(ring):
    """A goal achieved one step ahead is a success here, one achieved later is not.

    The mean reward of an update is the share of transitions whose altered goal is the next one.
    """
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    config = HERConfig(td3=TD3Config(hidden=(4,), batch=4000), strategy="future", k=4)
    agent = make_her(config, spec)
    state = agent_state(agent, spec.norm)
    _, metrics = compiled(agent.update)(state, ring, KEY, jnp.asarray(1))
    successes = [0.8 / (LENGTHS[e] - t) for e, t in transitions()]
    assert float(metrics["critic/reward"]) == pytest.approx(np.mean(successes) - 1, abs=0.03)


def test_unknown_strategies_and_bounded_heads_are_refused():
    assert {*STRATEGIES, "paper"} == {"future", "final", "episode", "paper"}
    with pytest.raises(UserError, match="unknown strategy 'futur'; nearest: future"):
        HERConfig(strategy="futur")
    with pytest.raises(UserError, match="critic_head = sigmoid is for values above 0"):
        HERConfig(td3=TD3Config(critic_head="sigmoid", critic_start=0.5))
