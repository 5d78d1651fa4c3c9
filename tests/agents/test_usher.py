"""USHER's relative densities and weights against a chain whose outcomes are counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, agent_state, compiled, make_ring, unit_norm
from uvd.agents import Spec
from uvd.agents.actor_critic import TD3Config
from uvd.agents.usher import Densities, Query, USHERConfig, make_usher, relative_densities, weights

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
    after = densities(fitted[0], outcome, goal, [1] * 4).achieved
    weight = np.asarray(weights(before, after, jnp.full(4, share), 1e6))
    drawn = np.where(outcome == 1, SHARE, 1 - SHARE)
    drawn = drawn * ((1 - share) * (goal == 1) + share * (goal == outcome))
    weighted = weight * drawn
    assert drawn[0] / (drawn[0] + drawn[2]) > 0.9
    np.testing.assert_allclose(weighted[0] / (weighted[0] + weighted[2]), SHARE, atol=0.05)


def test_a_weight_takes_back_what_the_outcome_adds():
    """A goal as likely after s' as before counts fully, one that s' made twice as likely half."""

    def found(now, after, pursued, share=0.8, clip=9.0):
        before = Densities(jnp.full(1, 99.0), jnp.array([now]), jnp.array([pursued]))
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
