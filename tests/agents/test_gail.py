"""GAIL's learner: advantages against a plain loop, PPO where the best action is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm as gaussian

from uvd.agents import Spec
from uvd.agents.agent import Demos
from uvd.agents.gail import (
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
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.core.replay import Batch, Episode, init_ring, insert_all
from uvd.core.errors import UserError
from uvd.settings import build

ONE = np.ones(2, np.float32)
NORM = Norm(0 * ONE, ONE, ONE[:0], ONE[:0])
SPEC = Spec(2, 1, 0, lambda a, g: False, NORM, (), demos=Demos(np.zeros((4, 2), np.float32)))


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
    want = gaussian.logpdf(action, mean, np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(log_prob(mean, log_std, action), want, rtol=1e-5)


def test_a_rollout_by_hand():
    """V(s) = s0. Two episodes of two steps: a time limit ends the first, the task the second."""
    config = build("gail", "default", {"hidden": (), "gamma": 0.5, "gae": 0.5, "start_std": 0.5})
    state = init_ppo(config, SPEC, jax.random.key(0))
    state = state._replace(
        actor=jax.tree.map(jnp.zeros_like, state.actor),
        critic=MLP((jnp.array([[1.0], [0.0]]),), (jnp.zeros(1),)),
    )
    obs = jnp.array([[1.0, 0], [2, 0], [3, 0], [1, 0]])
    after = jnp.array([[2.0, 0], [4, 0], [1, 0], [5, 0]])
    reward = jnp.array([2.0, 6, 4, 8])  # counts half, as 1 - gamma
    last = jnp.array([False, True, False, True])
    ends = jnp.array([False, False, False, True])
    none = jnp.zeros((4, 0))
    batch = Batch(jnp.arange(4), obs, jnp.zeros((4, 1)), after, none, none, none, ends)
    rows = make_rollout(config, state, batch, reward, last)
    # Errors 1 + 2/2 - 1, 3 + 4/2 - 2, 2 + 1/2 - 3 and 4 - 1; a quarter of each next one is added.
    advantage = [1 + 3 / 4, 3, -0.5 + 3 / 4, 3]
    np.testing.assert_allclose(rows.advantage, advantage, rtol=1e-6)
    np.testing.assert_allclose(rows.ret, np.add(advantage, [1, 2, 3, 1]), rtol=1e-6)
    np.testing.assert_allclose(rows.log_prob, -np.log(0.5 * np.sqrt(2 * np.pi)), rtol=1e-6)


def two_rows(state, ratio):
    """A better action and a worse one, whose probabilities have changed by these factors."""
    obs, none = jnp.array([[0.5, 1.0], [-1.0, 0.3]]), jnp.zeros((2, 0))
    action = jnp.array([[0.4], [0.3]])
    now = log_prob(act(Policy(state.actor, state.norm), obs, none), state.log_std, action)
    old = now - jnp.log(jnp.asarray(ratio))
    return Rollout(obs, none, action, old, jnp.array([1.0, -1.0]), jnp.zeros(2))


def test_ratios_beyond_the_clip_teach_nothing_more():
    config = build("gail", "default", {"hidden": (8,), "ratio_clip": 0.2})
    state = init_ppo(config, SPEC, jax.random.key(0))
    step = jax.jit(lambda rows: ppo_step(config, state, rows)[0])
    for ratio, moves in (
        ((1.3, 0.7), False),  # both went far enough the right way
        ((1.1, 0.9), True),
        ((1.3, 0.9), True),
        ((1.1, 0.7), True),
        ((0.7, 1.3), True),  # as far the wrong way: there is no bound to going back
    ):
        after = step(two_rows(state, ratio))
        assert (after.log_std != state.log_std).all() == moves
        for old, new in zip(jax.tree.leaves(state.actor), jax.tree.leaves(after.actor)):
            assert (new != old).any() == moves


def test_entropy_widens_the_policy_where_no_action_is_better():
    config = build("gail", "default", {"hidden": (8,), "entropy": 0.1, "actor_lr": 0.01})
    state = init_ppo(config, SPEC, jax.random.key(0))
    rows = two_rows(state, (1.0, 1.0))._replace(advantage=jnp.ones(2))
    after = jax.jit(lambda rows: ppo_step(config, state, rows)[0])(rows)
    # Adam's first step is as long as its learning rate.
    np.testing.assert_allclose(after.log_std - state.log_std, 0.01, rtol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, after.actor, state.actor)


def test_the_policy_starts_as_wide_as_is_set():
    config = build("gail", "default", {"start_std": 0.3})
    spec = dataclasses.replace(SPEC, action_dim=3, cycle=4)
    agent = make_gail(config, spec)
    start = jax.jit(lambda key: agent.policy(agent.init(key, spec)).log_std)
    log_std = start(jax.random.key(0))
    np.testing.assert_allclose(np.exp(log_std), [0.3, 0.3, 0.3], rtol=1e-6)


def test_ppo_finds_the_best_action_of_a_task_of_one_step():
    """Reward -(a - 0.5 s0)²: the best action is known, and the value is minus its spread."""
    config = build("gail", "default", {"hidden": (32,), "batch": 128, "epochs": 4})
    n = 256

    @jax.jit
    def learn(state):
        def cycle(state, key):
            key_obs, key_act, key_ppo = jax.random.split(key, 3)
            obs = jax.random.uniform(key_obs, (n, 2), minval=-1.0)
            none, ends = jnp.zeros((n, 0)), jnp.ones(n, bool)
            mean = act(Policy(state.actor, state.norm), obs, none)
            action = mean + jnp.exp(state.log_std) * jax.random.normal(key_act, mean.shape)
            reward = -((action[:, 0] - 0.5 * obs[:, 0]) ** 2)
            batch = Batch(jnp.arange(n), obs, action, obs, none, none, none, ends)
            rows = make_rollout(config, state, batch, reward, ends)
            return ppo_epochs(config, state, rows, key_ppo)

        return jax.lax.scan(cycle, state, jax.random.split(jax.random.key(1), 150))

    state, metrics = learn(init_ppo(config, SPEC, jax.random.key(0)))
    obs = jax.random.uniform(jax.random.key(2), (200, 2), minval=-1.0)
    action = act(Policy(state.actor, state.norm), obs, jnp.zeros((200, 0)))[:, 0]
    assert np.mean(abs(action - 0.5 * obs[:, 0])) < 0.05
    assert float(metrics["actor/std"][-1]) < 0.2 < float(metrics["actor/std"][0])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))


def test_the_newest_rows_come_in_the_order_they_were_played():
    ring = init_ring(30, 2, 1, 0)

    def episodes(start, count, length):
        first = jnp.arange(start, start + count, dtype=jnp.float32)
        obs = jnp.stack([jnp.stack([first] * 6, 1), jnp.tile(jnp.arange(6.0), (count, 1))], -1)
        none = jnp.zeros((count, 6, 0))
        return Episode(
            obs, jnp.zeros((count, 5, 1)), none, none[:, 0], jnp.full(count, length),
            jnp.zeros(count, bool), jnp.zeros(count, bool), jnp.zeros((count, 5)),
        )  # fmt: skip

    ring = insert_all(insert_all(ring, episodes(0, 4, 5)), episodes(4, 3, 3))
    row = cycle_rows(ring, 11)  # the last two of episode 3, then three episodes of three
    want = [(3, 3), (3, 4)] + [(e, t) for e in (4, 5, 6) for t in range(3)]
    np.testing.assert_array_equal(ring.obs[row], want)
    np.testing.assert_array_equal(
        ring.steps_left[row] == 1, [t == (4 if e == 3 else 2) for e, t in want]
    )


def test_no_advantage_is_carried_from_one_episode_into_the_one_before():
    """The value is 0 and every reward log 2: what a step is worth tells how many follow it."""
    settings = {"gamma": 0.5, "gae": 1.0, "epochs": 1, "discriminator_steps": 1}
    settings |= {"hidden": (), "discriminator_hidden": (), "discriminator_lr": 0.0}
    spec = dataclasses.replace(SPEC, cycle=5)
    agent = make_gail(build("gail", "default", settings), spec)
    state = jax.jit(lambda key: agent.init(key, spec))(jax.random.key(0))
    nothing = jax.tree.map(jnp.zeros_like, (state.ppo.critic, state.discriminator.net))
    state = state._replace(
        ppo=state.ppo._replace(critic=nothing[0]),
        discriminator=state.discriminator._replace(net=nothing[1]),
    )
    none, no = jnp.zeros((2, 4, 0)), jnp.zeros(2, bool)
    played = Episode(
        jnp.zeros((2, 4, 2)), jnp.zeros((2, 3, 1)), none, none[:, 0], jnp.array([3, 2]), no, no,
        jnp.zeros((2, 3)),
    )  # fmt: skip
    ring = insert_all(init_ring(20, 2, 1, 0), played)
    _, metrics = jax.jit(agent.update)(state, ring, jax.random.key(1), jnp.asarray(0))
    assert float(metrics["critic/reward"]) == pytest.approx(np.log(2))
    # Steps with 2, 1, 0 and 1, 0 after them; a reward for ever would be worth log 2.
    want = np.log(2) * np.mean([7 / 8, 3 / 4, 1 / 2, 3 / 4, 1 / 2])
    assert float(metrics["critic/target"]) == pytest.approx(want, rel=1e-5)


def test_gail_comes_to_act_as_it_was_shown():
    """One step an episode, the expert's action half of the first number it sees."""
    config = build("gail", "default", {"hidden": (32,), "batch": 64, "gradient_penalty": 0.1})
    rng, n = np.random.default_rng(0), 256
    shown = rng.uniform(-1, 1, (200, 2)).astype(np.float32)
    spec = dataclasses.replace(SPEC, demos=Demos(shown, 0.5 * shown[:, :1]), cycle=n)
    agent = make_gail(config, spec)

    @jax.jit
    def learn(state):
        def cycle(state, key):
            key_obs, key_act, key_learn = jax.random.split(key, 3)
            obs = jax.random.uniform(key_obs, (n, 2), minval=-1.0)
            none, no = jnp.zeros((n, 2, 0)), jnp.zeros(n, bool)
            mean = act(agent.policy(state), obs, none[:, 0])
            action = mean + jnp.exp(state.ppo.log_std) * jax.random.normal(key_act, mean.shape)
            played = Episode(
                jnp.stack([obs, obs], 1), action[:, None], none, none[:, 0], jnp.ones(n, int), no,
                no, jnp.zeros((n, 1)),
            )  # fmt: skip
            ring = insert_all(init_ring(2 * n, 2, 1, 0), played)
            return agent.update(state, ring, key_learn, jnp.asarray(0))[0], None

        return jax.lax.scan(cycle, state, jax.random.split(jax.random.key(1), 200))[0]

    state = learn(agent.init(jax.random.key(0), spec))
    action = act(agent.policy(state), jnp.asarray(shown), jnp.zeros((200, 0)))
    assert np.mean(abs(action - 0.5 * shown[:, :1])) < 0.12


def test_without_the_length_of_a_cycle_it_is_refused():
    with pytest.raises(UserError, match="cycles"):
        make_gail(build("gail", "default", {}), SPEC)
