"""USHER's relative density and weights against a chain whose outcomes are counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, agent_state, compiled, make_ring, unit_norm
from uvd.agents import Spec
from uvd.agents.actor_critic import TD3Config
from uvd.agents.usher import Query, USHERConfig, make_usher, relative_density, weights

UP, DOWN = 28, 12  # roll-outs from 0 to +1 and to -1, where they stay for their second step
SHARE = UP / (UP + DOWN)


@pytest.fixture(scope="module")
def fitted():
    ends = np.repeat([1.0, -1.0], [UP, DOWN])
    obs = np.stack([0 * ends, ends, ends], 1)[..., None]
    ring = make_ring(obs, np.zeros((len(ends), 2, 1)), achieved=obs, goal=np.zeros((len(ends), 1)))
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    td3 = TD3Config(hidden=(32, 32), batch=256, critic_lr=2e-3)
    agent = make_usher(USHERConfig(td3=td3, ratio_clip=9.0), spec)
    state = agent_state(agent, spec.norm)

    @jax.jit
    def learn(state):
        def one(state, i):
            return agent.update(state, ring, jax.random.fold_in(KEY, i), i)

        return jax.lax.scan(one, state, jnp.arange(2000))

    state, metrics = learn(state)
    return state, jax.tree.map(np.asarray, metrics)


def test_the_relative_density_is_that_of_the_chain(fitted):
    """Of all goals 70 % are +1. Before the outcome either goal is as likely as at large; after it
    the goal that is there is the only one."""
    state, _ = fitted
    obs = jnp.array([[0.0], [0.0], [1.0], [1.0], [-1.0]])
    goal = jnp.array([[1.0], [-1.0], [1.0], [-1.0], [-1.0]])
    left = jnp.array([2.0, 2.0, 1.0, 1.0, 1.0])
    query = Query(obs, jnp.zeros((5, 1)), left, jnp.zeros((5, 1)))
    found = compiled(relative_density)(state.density, state.td3, query, goal)
    expected = [1, 1, 1 / SHARE, 0, 1 / (1 - SHARE)]
    np.testing.assert_allclose(found, expected, atol=0.12)


def test_a_weight_takes_back_what_the_outcome_adds():
    """A goal as likely after s' as before counts fully, one that s' made twice as likely half."""
    found = weights(jnp.array([1.0, 1.0, 1.0, 0.5]), jnp.array([1.0, 2.0, 0.0, 0.5]), 0.0, 9.0)
    np.testing.assert_allclose(found, [1, 0.5, 10, 1], rtol=0.01)
    clipped = weights(jnp.array([1.0, 1.0]), jnp.array([2.0, 0.0]), 0.0, 0.3)
    np.testing.assert_allclose(clipped, [1 / 1.3, 1.3], rtol=1e-5)
    even = weights(jnp.array([1.0]), jnp.array([3.0]), 0.5, 9.0)  # 1 / (0.5 + 1.5)
    np.testing.assert_allclose(even, [0.5], rtol=0.01)


def test_only_hindsight_goals_are_weighted(fitted):
    _, metrics = fitted
    assert metrics["critic/weight_spread"][-100:].mean() > 0.1
    spec = Spec(1, 1, 1, lambda a, g: abs(a - g).sum(-1) < 0.5, unit_norm(1, 1), (0,))
    agent = make_usher(USHERConfig(td3=TD3Config(hidden=(4,), batch=8), k=0), spec)
    ring = make_ring(np.zeros((2, 3, 1)), np.zeros((2, 2, 1)), np.zeros((2, 3, 1)), np.ones((2, 1)))
    state = agent_state(agent, spec.norm)
    _, plain = compiled(agent.update)(state, ring, KEY, jnp.asarray(1))
    assert plain["critic/weight"] == 1
    assert plain["critic/reward"] == -1  # the intended goal, which is never achieved
