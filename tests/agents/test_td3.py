"""TD3's target by hand, and its critic on chains whose values are known in closed form."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import (
    KEY,
    agent_state,
    compiled,
    constant,
    goal_spec,
    insert_episodes,
    make_batch,
    make_ring,
    near,
    plain_twins,
    unit_norm,
)
from uvd.agents import Spec
from uvd.agents.actor_critic import ActorCritic, TD3Config
from uvd.agents.heads import make_head
from uvd.agents.td3 import TD3Settings, make_td3, sparse_target
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.policy import act

OBS, GAMMA = 6, 0.8
SPEC = goal_spec(obs=OBS, action=1, goal_scale=(1.0,), varying=(0,))
CONFIG = TD3Config(
    gamma=GAMMA, hidden=(32, 32), batch=64, critic_lr=3e-3, tau=0.1, action_penalty=0.0,
    critic_head="linear",
)  # fmt: skip


def targets(spec, q, batch):
    """Targets for goals at 0 where the slow critics have the outputs `q`."""
    ac = ActorCritic(CONFIG, make_head("linear", 1.0, 0.0), spec)
    state = agent_state(ac, spec.norm)
    state = state._replace(critic_target=constant(state.critic, *q))
    goal = np.zeros((len(batch.row), spec.goal_dim), np.float32)
    after = compiled(ac.next_value)(state, batch, goal, KEY)
    return compiled(sparse_target(ac, spec))(state, batch, goal, *after)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ((-2.0, -1.0), [-1.6, -2.6, -1.0, 0.0, -2.6]),
        # What is possible: no less than -1 for ever, no more than 0.
        ((-90.0, -80.0), [-5, -5, -1, 0, -5]),
        ((80.0, 90.0), [0, 0, -1, 0, 0]),
    ],
)
def test_the_target_by_hand(q, expected):
    """The smaller of the twins, nothing after an end, the reward of the transition's own s'."""
    batch = make_batch(
        5, SPEC, next_achieved=[[0.0], [1.0], [1.0], [0.05], [1.0]],
        terminated=[False, False, True, True, False],
    )  # fmt: skip
    target, metrics = targets(SPEC, q, batch)
    np.testing.assert_allclose(target, expected, rtol=1e-6)
    assert metrics["critic/reward"] == pytest.approx(-0.6)


@pytest.mark.parametrize(
    ("q", "expected"), [(1.0, [2.8, -0.2, 2.0]), (90.0, [10, 10, 2]), (-90.0, [-5, -5, 2])]
)
def test_rewards_of_an_environment_bound_the_target(q, expected):
    spec = replace(SPEC, reward=lambda a, g: 3.0 * near(a, g) - 1.0, reward_range=(-1.0, 2.0))
    batch = make_batch(
        3, spec, next_achieved=[[0.0], [1.0], [0.0]], terminated=[False, False, True]
    )
    target, metrics = targets(spec, (q, q), batch)
    np.testing.assert_allclose(target, expected, rtol=1e-6)
    assert metrics["critic/reward"] == pytest.approx(1.0)


def test_a_tasks_own_rewards_are_neither_recomputed_nor_clipped():
    spec = replace(SPEC, has_rewards=True)
    assert spec.value_range(GAMMA) == (-np.inf, np.inf)
    reward = np.array([2.0, -70.0, 5.0], np.float32)
    batch = make_batch(3, spec, reward=reward, terminated=[False, False, True])
    target, metrics = targets(spec, (100.0, 110.0), batch)
    np.testing.assert_allclose(target, [82.0, 10.0, 5.0], rtol=1e-6)
    assert metrics["critic/reward"] == pytest.approx(-21.0)


def test_a_critic_without_bound_is_needed_where_rewards_have_none():
    """The head's start value is a share of the bound of values: 1 where it is not known."""
    settings = TD3Settings(td3=replace(CONFIG, critic_head="tanh", critic_start=-0.5, hidden=()))
    for spec, output in ((SPEC, np.arctanh(-0.5)), (replace(SPEC, has_rewards=True), -0.5)):
        state = make_td3(settings, spec).init(KEY)
        np.testing.assert_allclose(state.critic.biases[-1], output, rtol=1e-5)


def test_a_critic_of_positive_values_alone_is_refused():
    with pytest.raises(UserError, match="critic_head = sigmoid is for values above 0"):
        TD3Settings(td3=replace(CONFIG, critic_head="sigmoid", critic_start=0.5))


def trained(agent, ring, updates):
    """The state after some updates."""

    @compiled
    def train(state):
        keys, steps = jax.random.split(KEY, updates), jnp.arange(updates)
        body = lambda s, xs: (agent.update(s, ring, *xs)[0], None)  # noqa: E731
        return jax.lax.scan(body, state, (keys, steps))[0]

    return train(jax.jit(agent.init)(KEY))


def test_td3_learns_the_value_of_rewards_without_goals():
    """One step to the end: the value is the reward that the action brings."""
    spec = Spec(1, 1, 0, near, unit_norm(1, 0), (), has_rewards=True)
    n = 256
    action = np.random.default_rng(0).uniform(-1, 1, (n, 1, 1)).astype(np.float32)
    episodes = Episode(
        obs=np.zeros((n, 2, 1), np.float32), action=action,
        achieved=np.zeros((n, 2, 0), np.float32), goal=np.zeros((n, 0), np.float32),
        length=np.ones(n, np.int32), terminated=np.ones(n, bool),
        success=np.zeros((n, 1), bool), reward=20 - 8 * (action[..., 0] - 0.5) ** 2,
    )  # fmt: skip
    agent = make_td3(TD3Settings(td3=replace(CONFIG, actor_start=500)), spec)
    state = trained(agent, insert_episodes(episodes), 2000)
    at = np.array([[-0.5], [0.0], [0.5], [1.0]], np.float32)
    q = plain_twins(state.critic, state.norm, np.zeros((4, 1)), np.zeros((4, 0)), at)
    np.testing.assert_allclose(q, [[12, 18, 20, 18]] * 2, atol=1.0)
    policy = jax.tree.map(np.asarray, agent.policy(state))
    best = act(policy, np.zeros((1, 1), np.float32), np.zeros((1, 0), np.float32))
    assert best[0, 0] == pytest.approx(0.5, abs=0.15)


FAR = 5.0  # a goal that nothing achieves


def chains():
    """Chains, told apart by a one-hot observation, with random actions that change nothing.

    0 -> 1 -> end, the goal achieved at the end or never; 3 -> 3 for ever, at its goal or never.
    """
    hot = np.eye(OBS, dtype=np.float32)
    chain, loop = hot[[0, 1, 2]], hot[[3, 3, 3]]
    obs = np.stack([chain, chain, loop, loop] * 8)
    achieved = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 2], [2, 2, 2]] * 8)[..., None]
    goal = np.array([[1.0], [FAR], [2.0], [FAR]] * 8)
    action = np.random.default_rng(0).uniform(-1, 1, (32, 2, 1))
    return make_ring(obs, action, achieved, goal, np.array([True, True, False, False] * 8))


def test_values_of_known_chains():
    config = replace(CONFIG, critic_head="tanh", actor_start=10_000)
    state = trained(make_td3(TD3Settings(td3=config), SPEC), chains(), 800)
    cases = {  # (state, goal): value
        (0, 1.0): -1.0,
        (1, 1.0): 0.0,
        (0, FAR): -1.0 - GAMMA,
        (1, FAR): -1.0,
        (3, 2.0): 0.0,
        (3, FAR): -1 / (1 - GAMMA),
    }
    obs = np.eye(OBS, dtype=np.float32)[[s for s, _ in cases]]
    goal = np.array([[g] for _, g in cases], np.float32)
    for action in (-0.5, 0.0, 0.5):
        q = plain_twins(state.critic, state.norm, obs, goal, np.full((6, 1), action, np.float32))
        value = np.tanh(q) / (1 - GAMMA)
        np.testing.assert_allclose(value, [list(cases.values())] * 2, atol=0.1)
