"""USHER's relative densities and weights against a chain whose outcomes are counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, agent_state, compiled, make_ring, shaken, unit_norm
from uvd.agents import Spec, usher
from uvd.agents.actor_critic import ActorCritic, TD3Config
from uvd.agents.usher import Densities, Query, USHERConfig, make_usher, relative_densities, weights
from uvd.core.policy import act

# Roll-outs from 0 to +1 and to -1, where they stay for their second step. All pursue +1.
UP, DOWN = 28, 12
SHARE = UP / (UP + DOWN)
PLUS = 0.5 * SHARE + 0.5  # of all goals: half were pursued, half achieved


@pytest.fixture(scope="module")
def fitted():
    ends = np.repeat([1.0, -1.0], [UP, DOWN])
    obs = np.stack([0 * ends, ends, ends], 1)[..., None]
    ring = make_ring(obs, np.zeros((len(ends), 2, 1)), achieved=obs, goal=np.ones((len(ends), 1)))
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    td3 = TD3Config(hidden=(32, 32), batch=256, critic_lr=2e-3)
    agent = make_usher(USHERConfig(td3=td3, ratio_clip=9.0), spec)
    state = agent_state(agent, spec.norm)

    @jax.jit
    def learn(state):
        def one(state, i):
            return agent.update(state, ring, jax.random.fold_in(KEY, i), i)

        return jax.lax.scan(one, state, jnp.arange(3000))

    state, metrics = learn(state)
    return state, jax.tree.map(np.asarray, metrics)


def densities(state, obs, goal, left):
    """Of all combinations that are asked for, one a row."""
    obs, goal = (jnp.array(x, jnp.float32)[:, None] for x in (obs, goal))
    query = Query(obs, jnp.zeros_like(obs), jnp.array(left, jnp.float32))
    return compiled(relative_densities)(state.density, state.td3.norm, query, goal)


def test_the_relative_densities_are_those_of_the_chain(fitted):
    """Each goal has its share among what follows, over its share among all goals."""
    found = densities(fitted[0], [0, 0, 1, 1, -1], [1, -1, 1, -1, -1], [2, 2, 1, 1, 1])
    plus, minus = SHARE / PLUS, (1 - SHARE) / (1 - PLUS)
    now = [plus, minus, 1 / PLUS, 0, 1 / (1 - PLUS)]
    np.testing.assert_allclose(found.achieved, now, atol=0.15)
    np.testing.assert_allclose(found.achieved_later[:2], [plus, minus], atol=0.15)
    np.testing.assert_allclose(found.pursued, np.array([1, 0, 1, 0, 0]) / PLUS, atol=0.15)


def test_weighted_outcomes_have_their_true_shares(fitted):
    """From 0, given a goal, weighted draws meet +1 and -1 as often as the chain does. Hindsight
    alone meets the outcome that the goal was achieved after; from -1 no goal +1 is drawn but
    those that were pursued."""
    share = 0.8
    outcome, goal = np.array([1, 1, -1, -1]), np.array([1, -1, 1, -1])
    before = densities(fitted[0], 0 * outcome, goal, [2] * 4)
    after = densities(fitted[0], outcome, goal, [1] * 4).outcome
    weight = np.asarray(weights(before, after, jnp.full(4, share), 1e6))
    drawn = np.where(outcome == 1, SHARE, 1 - SHARE)
    drawn = drawn * ((1 - share) * (goal == 1) + share * (goal == outcome))
    weighted = weight * drawn
    assert drawn[0] / (drawn[0] + drawn[2]) > 0.9
    np.testing.assert_allclose(weighted[0] / (weighted[0] + weighted[2]), SHARE, atol=0.05)


def test_a_weight_takes_back_what_the_outcome_adds():
    """A goal as likely after s' as before counts fully, one that s' made twice as likely half."""

    def found(now, after, pursued, share=0.8, clip=9.0):
        before = Densities(
            jnp.full(1, 99.0), jnp.array([now]), jnp.array([pursued]), jnp.full(1, 99.0)
        )
        return weights(before, jnp.array([after]), jnp.array([share]), clip).item()

    assert found(1.0, 1.0, 0.0) == pytest.approx(1)
    assert found(1.0, 2.0, 0.0) == pytest.approx(0.5, rel=0.01)
    assert found(1.0, 0.0, 1.0) == pytest.approx(1 / 0.2, rel=0.02)  # what was pursued bounds it
    assert found(1.0, 0.0, 0.0) == 10
    assert found(0.0, 1.0, 0.0) == pytest.approx(0.1)
    assert found(3.0, 1.0, 0.7, share=0.0) == pytest.approx(1)  # no hindsight, no bias


def test_without_hindsight_goals_all_weights_are_one(fitted):
    assert fitted[1]["critic/weight_spread"][-100:].mean() > 0.1
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    agent = make_usher(USHERConfig(td3=TD3Config(hidden=(4,), batch=8), k=0), spec)
    ring = make_ring(np.zeros((2, 3, 1)), np.zeros((2, 2, 1)), np.zeros((2, 3, 1)), np.ones((2, 1)))
    state = agent_state(agent, spec.norm)
    _, plain = compiled(agent.update)(state, ring, KEY, jnp.asarray(1))
    assert plain["critic/weight"] == pytest.approx(1)
    assert plain["critic/reward"] == -1  # the intended goal, which is never achieved


HORIZON = 4


def usher_on_counting_episodes():
    """Achieved goals are 1 + 10 e + t, intended ones -1."""
    e = 50
    mark = (1 + 10.0 * np.arange(e)[:, None] + np.arange(HORIZON + 1))[..., None]
    ring = make_ring(mark, np.zeros((e, HORIZON, 1)), mark, -np.ones((e, 1)))
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    agent = make_usher(USHERConfig(td3=TD3Config(hidden=(8,), batch=2000)), spec)
    state = agent_state(agent, spec.norm)
    td3 = state.td3._replace(actor_target=shaken(state.td3.actor))
    return agent, state._replace(td3=td3), ring


def test_usher_learns_from_the_goals_and_weights_that_it_draws(monkeypatch):
    """Hindsight goals lie two or more steps ahead; critic and actor have the same goals."""
    agent, state, ring = usher_on_counting_episodes()
    seen = {}

    def learn(self, td3, batch, goals, target_fn, actor_goal, key, step):
        seen.update(own=batch.achieved, goal=goals.goal, weight=goals.weight, actor=actor_goal())
        return td3, {}

    monkeypatch.setattr(ActorCritic, "learn", learn)
    _, metrics = agent.update(state, ring, KEY, jnp.asarray(0))
    own, goal = (np.asarray(seen[x])[:, 0] for x in ("own", "goal"))
    left = HORIZON - (own - 1) % 10
    hindsight = goal > 0
    for n in range(1, HORIZON + 1):
        assert hindsight[left == n].mean() == pytest.approx(0.8 if n > 1 else 0, abs=0.06)
        ahead = (goal - own)[(left == n) & hindsight]
        assert set(ahead) == set(range(2, n + 1))
    np.testing.assert_array_equal(seen["actor"], seen["goal"])
    spread = float(np.std(seen["weight"]))
    assert float(metrics["critic/weight_spread"]) == pytest.approx(spread, rel=1e-4)
    assert spread > 0


def test_the_density_of_what_follows_is_that_of_the_policy(monkeypatch):
    """p' is asked of s', with the slow actor's action for the pursued goal, one step on; the v of a
    weight is asked of s' with the action that led there, which does not tell the goal."""
    agent, state, ring = usher_on_counting_episodes()
    asked, answers, real = [], [], usher.relative_densities

    def densities(net, norm, query, goal):
        asked.append(query)
        answers.append(real(net, norm, query, goal))
        return answers[-1]

    def learn(self, td3, batch, goals, *rest):
        answers.append(goals.weight)
        return td3, {}

    monkeypatch.setattr(ActorCritic, "learn", learn)

    monkeypatch.setattr(usher, "relative_densities", densities)
    agent.update(state, ring, KEY, jnp.asarray(0))
    after, before = asked[:2]
    np.testing.assert_array_equal(after.left, before.left - 1)
    np.testing.assert_array_equal(after.obs, before.obs + 1)
    policy = jax.tree.map(np.asarray, agent.policy(state))
    action = act(policy, np.asarray(after.obs), -np.ones_like(after.obs))
    np.testing.assert_allclose(after.action, action, atol=1e-5)
    outcome, (here, there, weight) = asked[-1], answers[-3:]
    np.testing.assert_array_equal(outcome.obs, before.obs + 1)
    np.testing.assert_array_equal(outcome.left, before.left - 1)
    assert (after.action != 0).any()
    assert (outcome.action == 0).all()  # as in the replay buffer
    share = 0.8 * (before.left > 1)
    np.testing.assert_allclose(weight, weights(here, there.outcome, share, 4.0), rtol=1e-5)


def test_outcomes_have_their_true_shares_where_the_policy_reads_the_goal(monkeypatch):
    """From 0 a step leads to +1 or to -1, half of the time each. From +1 the policy comes to the
    goal that it pursues, 2 or 3, which its action tells; from -1 it always comes to 2."""
    monkeypatch.setattr(
        ActorCritic, "action", lambda self, actor, norm, obs, goal: jnp.where(goal > 2.5, 0.9, -0.9)
    )
    side = np.repeat([1.0, -1.0], 20)
    pursued = np.tile([2.0, 3.0], 20)
    end = np.where(side > 0, pursued, 2.0)
    obs = np.stack([0 * side, side, end], 1)[..., None]
    action = np.stack([0 * side, np.where(pursued > 2.5, 0.9, -0.9)], 1)[..., None]
    achieved = np.stack([2 + 0 * side, 2 + 0 * side, end], 1)[..., None]  # goals, all along
    ring = make_ring(obs, action, achieved=achieved, goal=pursued[:, None])
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    td3 = TD3Config(hidden=(32, 32), batch=256, critic_lr=2e-3)
    agent = make_usher(USHERConfig(td3=td3, ratio_clip=9.0), spec)

    @jax.jit
    def learn(state):
        def one(state, i):
            return agent.update(state, ring, jax.random.fold_in(KEY, i), i)[0], None

        return jax.lax.scan(one, state, jnp.arange(3000))[0]

    state, share = learn(agent_state(agent, spec.norm)), 0.8
    outcome, goal = np.array([1, 1, -1, -1]), np.array([2, 3, 2, 3])
    before = densities(state, 0 * outcome, goal, [2] * 4)
    after = densities(state, outcome, goal, [1] * 4).outcome
    weight = np.asarray(weights(before, after, jnp.full(4, share), 1e6))
    hindsight = np.array([0.5, 0.5, 1.0, 0.0])  # of each goal, after each outcome
    weighted = weight * ((1 - share) * 0.5 + share * hindsight)
    np.testing.assert_allclose(weighted[:2] / (weighted[:2] + weighted[2:]), 0.5, atol=0.06)
