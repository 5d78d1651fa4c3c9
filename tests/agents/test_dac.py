"""DAC's target by hand, its absorbing state, and an expert whose action is known."""

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
    filled,
    make_batch,
    make_ring,
    plain_twins,
    unit_norm,
)
from uvd.agents import Spec
from uvd.agents.actor_critic import ActorCritic, TD3Config
from uvd.agents.agent import DemoSteps
from uvd.agents.dac import DACConfig, make_dac, make_target
from uvd.agents.discriminator import (
    REWARD_BOUND,
    Discriminator,
    DiscriminatorConfig,
    logits,
)
from uvd.agents.heads import make_head
from uvd.core.errors import UserError
from uvd.core.policy import act, mlp

NORM = unit_norm(2, 0)
TD3 = TD3Config(gamma=0.9, hidden=(8,), critic_head="linear", action_penalty=0.0)
JUDGE = DiscriminatorConfig(discriminator_hidden=(8,))


def spec_of(obs, action=None):
    return Spec(2, 1, 0, lambda a, g: False, NORM, (), demos=DemoSteps(obs, action))


def target_of(discriminator, net, state, batch):
    spec = spec_of(np.zeros((4, 2), np.float32))
    ac = ActorCritic(TD3, make_head("linear", 1.0, 0.0), spec)
    state, bound = agent_state(ac, NORM)._replace(**state), REWARD_BOUND / (1 - TD3.gamma)

    @compiled
    def target(state, batch):
        after = ac.next_value(state, batch, batch.goal, KEY)
        return make_target(TD3.gamma, bound, discriminator, net)(state, batch, batch.goal, *after)

    return state, *target(state, batch)


def test_an_episode_goes_on_in_the_absorbing_state():
    """r + gamma Q' with the smaller twin, or the absorbing state's reward for ever."""
    spec = spec_of(np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32))
    discriminator = Discriminator(JUDGE, spec)
    net = filled(jax.eval_shape(discriminator.init, KEY).net)
    net = net._replace(biases=(*net.biases[:-1], jnp.array([0.7])))
    batch = make_batch(6, spec, terminated=np.arange(6) % 2 == 0)
    state, target, metrics = target_of(discriminator, net, {}, batch)

    def reward_of(x):
        return np.clip(mlp(jax.tree.map(np.asarray, net), x)[..., 0], -REWARD_BOUND, REWARD_BOUND)

    x = np.concatenate([batch.obs, batch.action, np.zeros((6, 1), np.float32)], -1)
    reward, r_abs = reward_of(x), reward_of(np.array([0, 0, 0, 1.0]))
    for_ever = sum(TD3.gamma**t * r_abs for t in range(2000))
    next_obs, none = np.asarray(batch.next_obs), np.zeros((6, 0), np.float32)
    policy = jax.tree.map(np.asarray, state.actor_target)
    action = np.tanh(mlp(policy, next_obs))
    q = plain_twins(state.critic, NORM, next_obs, none, action).min(0)
    expected = reward + TD3.gamma * np.where(batch.terminated, for_ever, q)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    assert float(metrics["critic/reward"]) == pytest.approx(reward.mean(), rel=1e-4)


def test_no_target_exceeds_that_of_the_largest_reward_for_ever():
    spec = spec_of(np.zeros((4, 2), np.float32))
    discriminator = Discriminator(replace(JUDGE, discriminator_hidden=()), spec)
    shapes = jax.eval_shape(discriminator.init, KEY).net
    net = constant(filled(shapes), 1.0)  # every reward is 1
    batch = make_batch(2, spec, terminated=[False, True])
    # A reward of 1 and 0.9 Q', cut at ±10 for ever; after the end, 1 for ever
    for q, expected in ((-900.0, -100.0), (4.0, 4.6), (900.0, 100.0)):
        critic = agent_state(ActorCritic(TD3, make_head("linear", 1.0, 0.0), spec), NORM).critic
        slow = {"critic_target": constant(critic, q, q)}
        _, target, _ = target_of(discriminator, net, slow, batch)
        np.testing.assert_allclose(target, [expected, 10.0], rtol=1e-6)


@pytest.fixture(scope="module")
def one_step():
    """Episodes of one step at the expert's only state, and an update of the agent."""
    config = DACConfig(
        td3=replace(TD3, hidden=(), actor_hidden=(3,), batch=16),
        discriminator=replace(JUDGE, discriminator_hidden=()),
    )
    agent = make_dac(config, spec_of(np.zeros((4, 2), np.float32)))
    update = compiled(lambda *args: agent.update(*args, KEY, jnp.asarray(0)))
    return update, agent_state(agent, NORM)


@pytest.mark.parametrize("terminated", [False, True])
def test_the_absorbing_state_is_learned_where_the_task_ends_episodes(one_step, terminated):
    """It counts as often as all other states of the agent, or never after a time limit."""
    update, state = one_step
    ring = make_ring(np.zeros((5, 2, 2)), np.zeros((5, 1, 1)), terminated=terminated)
    after, metrics = update(state, ring)
    net = state.discriminator.net
    here, there = (float(logits(net, jnp.array([0.0, 0.0, x]))) for x in (0, 1))
    soft = lambda x: np.log1p(np.exp(x))  # noqa: E731
    agents = (soft(here) + soft(there)) / 2 if terminated else soft(here)
    assert abs(here - there) > 0.01
    loss = soft(-here) + agents
    assert float(metrics["discriminator/loss"]) == pytest.approx(loss, abs=1e-5)
    # Rewards are those of the discriminator after its step.
    reward = float(logits(after.discriminator.net, jnp.zeros(3)))
    assert float(metrics["critic/reward"]) == pytest.approx(reward, abs=1e-5)


def test_the_agents_targets_are_bounded_by_the_largest_reward_for_ever(one_step):
    update, state = one_step
    far = constant(state.td3.critic, 900.0, 900.0)
    state = state._replace(td3=state.td3._replace(critic_target=far))
    _, metrics = update(state, make_ring(np.zeros((5, 2, 2)), np.zeros((5, 1, 1))))
    assert float(metrics["critic/target"]) == pytest.approx(REWARD_BOUND / (1 - TD3.gamma))


@pytest.mark.slow
def test_dac_comes_to_act_as_the_expert():
    """Random actions are in the buffer; the expert's is half of the first number it observes."""
    rng, n = np.random.default_rng(0), 2000
    obs = rng.uniform(-1, 1, (200, 2)).astype(np.float32)
    spec = spec_of(obs, 0.5 * obs[:, :1])
    config = DACConfig(
        td3=replace(TD3, hidden=(32,), batch=128, gamma=0.5),
        discriminator=DiscriminatorConfig(gradient_penalty=0.1, discriminator_hidden=(32, 32)),
    )
    ring = make_ring(rng.uniform(-1, 1, (n, 2, 2)), rng.uniform(-1, 1, (n, 1, 1)))
    agent = make_dac(config, spec)

    @compiled
    def learn(state):
        keys = jax.random.split(jax.random.key(1), 1000)
        steps = jnp.arange(len(keys))
        body = lambda s, x: (agent.update(s, ring, *x)[0], None)  # noqa: E731
        return jax.lax.scan(body, state, (keys, steps))[0]

    policy = jax.tree.map(np.asarray, agent.policy(learn(agent.init(KEY))))
    action = act(policy, obs, np.zeros((200, 0), np.float32))
    assert np.mean(abs(action - 0.5 * obs[:, :1])) < 0.12


def test_a_critic_of_positive_values_alone_is_refused():
    with pytest.raises(UserError, match="critic_head = sigmoid is for values above 0"):
        DACConfig(td3=replace(TD3, critic_head="sigmoid", critic_start=0.5))
