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
    advantages,
    init_ppo,
    log_prob,
    make_gail,
    make_rollout,
    newest,
    ppo_epochs,
)
from uvd.core.policy import Norm, Policy, act
from uvd.core.replay import Batch, Episode, init_ring, insert_all
from uvd.errors import UserError
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
    row = newest(ring, 11)  # the last two of episode 3, then three episodes of three
    want = [(3, 3), (3, 4)] + [(e, t) for e in (4, 5, 6) for t in range(3)]
    np.testing.assert_array_equal(ring.obs[row], want)
    np.testing.assert_array_equal(
        ring.steps_left[row] == 1, [t == (4 if e == 3 else 2) for e, t in want]
    )


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
