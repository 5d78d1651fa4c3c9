"""GAIL's learner: advantages against a plain loop, PPO's losses in closed form."""

import dataclasses
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm as gaussian

from small_tasks import (
    KEY,
    compiled,
    differs,
    filled,
    insert_episodes,
    make_batch,
    make_ring,
    unit_norm,
    zeros,
)
from uvd.agents import Spec, gail, get_algorithm
from uvd.agents.agent import DemoSteps
from uvd.agents.discriminator import DiscriminatorConfig
from uvd.agents.gail import (
    GAILConfig,
    Rollout,
    advantages,
    cycle_rows,
    init_ppo,
    log_prob,
    make_gail,
    make_rollout,
    ppo_epochs,
    ppo_step,
)
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.policy import MLP, Policy, act
from uvd.core.replay import insert_all

NORM = unit_norm(2, 0)
LONGEST = 3.0  # gradients are shortened to this
DEMOS = DemoSteps(np.zeros((4, 2), np.float32))
SPEC = Spec(2, 1, 0, lambda a, g: False, NORM, (), demos=DEMOS, cycle_steps=5)
CONFIG = GAILConfig(hidden=(8,))


def ppo_state(config, seed=0):
    """A random policy and value, with their optimisers at their start."""
    shapes = jax.eval_shape(lambda key: init_ppo(config, SPEC, key), KEY)
    state = zeros(shapes)
    return state._replace(
        actor=filled(shapes.actor, seed), critic=filled(shapes.critic, seed + 1),
        log_std=jnp.full(1, np.log(config.start_std), jnp.float32),
        norm=jax.tree.map(jnp.asarray, NORM),
    )  # fmt: skip


def test_advantages_against_a_plain_loop():
    rng = np.random.default_rng(0)
    n, gamma, lam = 40, 0.9, 0.8
    reward, value, after = rng.normal(size=(3, n))
    last = rng.random(n) < 0.2
    last[-1] = True
    terminated = last & (rng.random(n) < 0.5)
    found = advantages(*map(jnp.asarray, (reward, value, after, terminated, last)), gamma, lam)
    for i in range(n):
        # The sum of discounted errors to the end of the episode
        total = 0.0
        for k in range(i, n):
            error = reward[k] + gamma * after[k] * (not terminated[k]) - value[k]
            total += (gamma * lam) ** (k - i) * error
            if last[k]:
                break
        assert float(found[i]) == pytest.approx(total, abs=1e-5)
    assert terminated.any()
    assert (last & ~terminated).any()


def test_probabilities_are_those_of_a_gaussian():
    rng = np.random.default_rng(0)
    mean, action, log_std = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), np.array([-0.5, 0.3])
    expected = gaussian.logpdf(action, mean, np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(log_prob(mean, log_std, action), expected, rtol=1e-5)


def test_a_rollout_by_hand():
    """V(s) = s0. Two episodes of two steps: a time limit ends the first, the task the second."""
    config = replace(CONFIG, hidden=(), gamma=0.5, gae=0.5, start_std=0.5)
    state = ppo_state(config)
    state = state._replace(
        actor=jax.tree.map(jnp.zeros_like, state.actor),
        critic=MLP((jnp.array([[1.0], [0.0]]),), (jnp.zeros(1),)),
    )
    batch = make_batch(
        4, SPEC, obs=np.float32([[1, 0], [2, 0], [3, 0], [1, 0]]),
        action=np.zeros((4, 1), np.float32), next_obs=np.float32([[2, 0], [4, 0], [1, 0], [5, 0]]),
        terminated=[False, False, False, True],
    )  # fmt: skip
    reward = jnp.array([2.0, 6, 4, 8])  # counts half, as 1 - gamma
    last = jnp.array([False, True, False, True])
    rows = compiled(lambda s: make_rollout(config, s, batch, reward, last))(state)
    # Errors 1 + 2/2 - 1, 3 + 4/2 - 2, 2 + 1/2 - 3 and 4 - 1; a quarter of each next one is added.
    advantage = [1 + 3 / 4, 3, -0.5 + 3 / 4, 3]
    np.testing.assert_allclose(rows.advantage, advantage, rtol=1e-6)
    np.testing.assert_allclose(rows.ret, np.add(advantage, [1, 2, 3, 1]), rtol=1e-6)
    np.testing.assert_allclose(rows.log_prob, -np.log(0.5 * np.sqrt(2 * np.pi)), rtol=1e-6)


@pytest.fixture(scope="module")
def step():
    """One step of PPO, and the state before it."""
    config = replace(CONFIG, entropy=0.1, actor_lr=0.01, critic_lr=0.02)
    state = ppo_state(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gail, "MAX_GRAD", LONGEST)
        yield state, compiled(lambda state, rows: ppo_step(config, state, rows))


def two_rows(state, ratio, advantage=(1.0, -1.0)):
    """A better action and a worse one, whose probabilities have changed by these factors."""
    obs, none = jnp.array([[0.5, 1.0], [-1.0, 0.3]]), jnp.zeros((2, 0))
    action = jnp.array([[0.4], [0.3]])
    now = log_prob(act(Policy(state.actor, state.norm), obs, none), state.log_std, action)
    old = now - np.log(np.asarray(ratio, np.float32))
    return Rollout(obs, none, action, old, jnp.array(advantage), jnp.array([30.0, -20.0]))


def test_ratios_beyond_the_clip_teach_nothing_more(step):
    """Without a gain there is the entropy's gradient alone."""
    state, one = step
    for ratio, moves in (
        ((1.3, 0.7), False),  # both went far enough the right way
        ((1.1, 0.9), True),
        ((1.3, 0.9), True),
        ((1.1, 0.7), True),
        ((0.7, 1.3), True),  # as far the wrong way: there is no bound to going back
    ):
        after, metrics = one(state, two_rows(state, ratio))
        for old, new in zip(jax.tree.leaves(state.actor), jax.tree.leaves(after.actor)):
            assert (new != old).any() == moves
        clipped = np.mean(abs(np.array(ratio) - 1) > 0.2)
        assert float(metrics["actor/clipped"]) == pytest.approx(clipped)
        kl = np.mean(np.array(ratio) - 1 - np.log(ratio))
        assert float(metrics["actor/kl"]) == pytest.approx(kl, rel=1e-3)


def test_the_gradients_of_ppo(step):
    """Advantages are normalised; the loss of the spread in closed form, and the value's fit."""
    state, one = step
    rows = two_rows(state, (1.1, 0.9), (5.0, 1.0))
    after, metrics = one(state, rows)
    mean = act(Policy(state.actor, state.norm), rows.obs, rows.goal)
    z = np.asarray((rows.action - mean) / np.exp(state.log_std))[:, 0]
    # d log p / d log_std = z² - 1, of the gain's two rows with advantages 1 and -1
    gradient = -np.mean(np.array([1.1, -0.9]) * (z**2 - 1)) - 0.1
    moments = jax.tree.leaves(after.actor_opt[1][0].mu)
    length = np.sqrt(sum((np.asarray(x) ** 2).sum() for x in moments)) / 0.1
    assert length < LONGEST
    np.testing.assert_allclose(moments[-1] / 0.1, [gradient], rtol=1e-3)
    value = [
        (np.asarray(x) @ np.asarray(state.critic.weights[0]) + state.critic.biases[0])
        for x in rows.obs
    ]
    value = [(0.505 * h + 0.495 * abs(h)) @ np.asarray(state.critic.weights[1]) for h in value]
    value = np.array([v[0] for v in value]) + float(state.critic.biases[1][0])
    loss = np.mean((value - [30, -20]) ** 2)
    assert float(metrics["critic/loss"]) == pytest.approx(loss, rel=1e-4)
    # The value's gradient is longer than allowed, and is shortened.
    moments = jax.tree.leaves(after.critic_opt[1][0].mu)
    length = np.sqrt(sum((np.asarray(x) ** 2).sum() for x in moments)) / 0.1
    assert length == pytest.approx(LONGEST, rel=1e-3)
    for rate, name in ((0.01, "log_std"), (0.02, "critic")):  # Adam's first step is its rate
        pairs = zip(*map(jax.tree.leaves, (getattr(after, name), getattr(state, name))))
        assert max(abs(a - b).max() for a, b in pairs) == pytest.approx(rate, rel=1e-3)


def test_entropy_widens_the_policy_where_no_action_is_better(step):
    state, one = step
    after, _ = one(state, two_rows(state, (1.0, 1.0), (1.0, 1.0)))
    np.testing.assert_allclose(after.log_std - state.log_std, 0.01, rtol=1e-4)
    assert not differs(after.actor, state.actor)


def test_every_epoch_reads_all_transitions_in_an_order_of_its_own():
    """The mean return over minibatches that fit is that of all rows, in each epoch."""
    n, config = 12, replace(CONFIG, batch=4, epochs=3)
    state, rng = ppo_state(config), np.random.default_rng(0)
    ret = np.arange(n, dtype=np.float32)
    rows = Rollout(
        rng.normal(size=(n, 2)).astype(np.float32), np.zeros((n, 0), np.float32),
        np.zeros((n, 1), np.float32), np.zeros(n, np.float32), ret, ret,
    )  # fmt: skip
    run = compiled(lambda rows: ppo_epochs(config, state, rows, KEY))
    after, metrics = run(rows)
    assert float(metrics["critic/target"]) == pytest.approx(ret.mean())
    assert int(after.actor_opt[1][0].count) == 3 * 3
    assert run(rows._replace(ret=ret + 1))[1]["critic/target"] == pytest.approx(ret.mean() + 1)


def test_the_policy_starts_as_wide_as_is_set():
    spec = replace(SPEC, action_dim=3)
    judge = DiscriminatorConfig(discriminator_hidden=())
    agent = make_gail(GAILConfig(judge, start_std=0.3, hidden=()), spec)
    policy = agent.policy(agent.init(KEY))
    np.testing.assert_allclose(np.exp(policy.log_std), [0.3, 0.3, 0.3], rtol=1e-6)


def test_the_newest_rows_come_in_the_order_they_were_played():
    def episodes(start, count, length):
        first = np.arange(start, start + count)[:, None] * np.ones(6)
        obs = np.stack([first, np.tile(np.arange(6.0), (count, 1))], -1).astype(np.float32)
        return Episode(
            obs=obs, action=np.zeros((count, 5, 1), np.float32),
            achieved=np.zeros((count, 6, 0), np.float32), goal=np.zeros((count, 0), np.float32),
            length=np.full(count, length, np.int32), terminated=np.zeros(count, bool),
            success=np.zeros((count, 5), bool), reward=np.zeros((count, 5), np.float32),
        )  # fmt: skip

    ring = compiled(insert_all)(insert_episodes(episodes(0, 4, 5), 30), episodes(4, 3, 3))
    row = cycle_rows(ring, 11)  # the last two of episode 3, then three episodes of three
    expected = [(3, 3), (3, 4)] + [(e, t) for e in (4, 5, 6) for t in range(3)]
    np.testing.assert_array_equal(ring.obs[row], expected)
    np.testing.assert_array_equal(
        ring.steps_left[row] == 1, [t == (4 if e == 3 else 2) for e, t in expected]
    )


def test_no_advantage_is_carried_from_one_episode_into_the_one_before():
    """The value is 0 and every reward log 2: a step's worth tells how many steps follow it."""
    linear = DiscriminatorConfig(
        discriminator_hidden=(), discriminator_lr=1e-12, gradient_penalty=0.0
    )
    config = GAILConfig(
        linear, discriminator_steps=1, gamma=0.5, gae=1.0, epochs=1, hidden=(), actor_lr=1e-12
    )
    agent = make_gail(config, SPEC)
    shapes = jax.eval_shape(agent.init, KEY)
    state = zeros(shapes)._replace(ppo=ppo_state(config))
    value = jax.tree.map(jnp.zeros_like, state.ppo.critic)
    state = state._replace(ppo=state.ppo._replace(critic=value))
    ring = make_ring(np.zeros((2, 4, 2)), np.zeros((2, 3, 1)), length=[3, 2], rows=20)
    _, metrics = compiled(agent.update)(state, ring, jax.random.key(1), jnp.asarray(0))
    assert float(metrics["critic/reward"]) == pytest.approx(np.log(2))
    # Steps with 2, 1, 0 and 1, 0 after them; a reward for ever would be worth log 2.
    expected = np.log(2) * np.mean([7 / 8, 3 / 4, 1 / 2, 3 / 4, 1 / 2])
    assert float(metrics["critic/target"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_gail_comes_to_act_as_the_expert():
    """One step an episode, the expert's action half of the first number it observes."""
    judge = DiscriminatorConfig(gradient_penalty=0.1, discriminator_hidden=(32, 32))
    config = GAILConfig(judge, hidden=(32,), batch=64, epochs=8, discriminator_steps=12)
    rng, n = np.random.default_rng(0), 256
    obs = rng.uniform(-1, 1, (200, 2)).astype(np.float32)
    spec = replace(SPEC, demos=DemoSteps(obs, 0.5 * obs[:, :1]), cycle_steps=n)
    agent = make_gail(config, spec)
    empty = make_ring(np.zeros((n, 2, 2)), np.zeros((n, 1, 1)))

    @compiled
    def learn(state):
        def cycle(state, key):
            key_obs, key_act, key_learn = jax.random.split(key, 3)
            start = jax.random.uniform(key_obs, (n, 2), minval=-1.0)
            mean = act(agent.policy(state), start, jnp.zeros((n, 0)))
            action = mean + jnp.exp(state.ppo.log_std) * jax.random.normal(key_act, mean.shape)
            # Every other row is the end of an episode of one step.
            ring = empty._replace(obs=jnp.repeat(start, 2, 0), action=jnp.repeat(action, 2, 0))
            return agent.update(state, ring, key_learn, jnp.asarray(0))[0], None

        return jax.lax.scan(cycle, state, jax.random.split(KEY, 150))[0]

    policy = jax.tree.map(np.asarray, agent.policy(learn(agent.init(KEY))))
    action = act(policy, obs, np.zeros((200, 0), np.float32))
    assert np.mean(abs(action - 0.5 * obs[:, :1])) < 0.12
    assert np.exp(policy.log_std) < 0.4  # from 0.5


def test_gail_collects_with_its_own_noise_alone():
    collect = get_algorithm("gail").collect(CONFIG)
    assert (collect.noise, collect.random, collect.warmup, collect.capacity) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs = 0 must be at least 1"),
        ({"gae": 1.5}, "gae = 1.5 must lie between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **settings)


def test_gails_discriminator_reads_the_whole_cycle_and_no_absorbing_state():
    """One minibatch of 4 of a cycle of 200 steps, half of which lie at 1 and half at 3."""
    spec = Spec(
        1,
        1,
        0,
        lambda a, g: False,
        unit_norm(1, 0),
        (),
        demos=DemoSteps(np.zeros((4, 1), np.float32)),
        cycle_steps=200,
    )
    settings = DiscriminatorConfig(
        discriminator_hidden=(), discriminator_lr=1e-12, gradient_penalty=0.0
    )
    agent = make_gail(
        GAILConfig(settings, discriminator_steps=200, batch=4, epochs=1, hidden=()), spec
    )
    state = zeros(jax.eval_shape(agent.init, KEY))
    net = state.discriminator.net._replace(weights=(np.float32([[1], [50]]),))
    state = state._replace(
        discriminator=state.discriminator._replace(net=net),
        ppo=state.ppo._replace(norm=jax.tree.map(jnp.asarray, spec.norm)),
    )
    obs = np.repeat([1.0, 3.0], 100)[:, None, None] * np.ones((1, 2, 1))
    ring = make_ring(obs, np.zeros((200, 1, 1)), terminated=True)
    _, metrics = compiled(lambda s: agent.update(s, ring, KEY, jnp.asarray(0)))(state)
    assert float(metrics["discriminator/logit_agent"]) == pytest.approx(2, abs=0.15)
    expected = np.log(2) + np.log1p(np.exp([1, 3])).mean()
    assert float(metrics["discriminator/loss"]) == pytest.approx(expected, abs=0.15)
