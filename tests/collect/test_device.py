"""Exploration keeps its promises, and a roll-out's rows are what the task really did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.collect.device import explore, random_rollouts, rollout, rollouts
from uvd.collect.exploration import RANDOM_ACTIONS, Exploration
from uvd.core.nets import init_mlp
from uvd.core.policy import Norm, Policy, act
from uvd.tasks import make_task, pointloop

STEPS = 30_000


@jax.jit
def chain(noise, share, hold, unclipped, action):
    """One long walk of `explore` around a constant action."""
    how = Exploration(noise, share, hold, unclipped)

    def body(carry, key):
        taken, random = explore(how, key, action, *carry)
        return (taken, random), (taken, random)

    first = (jnp.zeros_like(action), jnp.zeros((), bool))
    keys = jax.random.split(jax.random.key(0), STEPS)
    return jax.lax.scan(body, first, keys)[1]


def walk(noise=0.0, share=0.0, hold=1, unclipped=False, action=(0.0, 0.0)):
    taken, random = chain(noise, share, float(hold), unclipped, jnp.asarray(action))
    return np.asarray(taken), np.asarray(random)


@pytest.mark.parametrize(("share", "hold"), [(0.3, 1), (0.3, 3), (0.1, 10), (0.8, 4), (1.0, 5)])
def test_random_stretches_have_their_share_and_length(share, hold):
    taken, random = walk(share=share, hold=hold)
    # A stretch is one held action: the next may follow at once.
    fresh = random & np.r_[True, (taken[1:] != taken[:-1]).any(-1)]
    stretches = fresh.sum()
    tolerance = 5 * (hold / STEPS) ** 0.5
    assert random.mean() == pytest.approx(share, abs=tolerance)
    assert random.sum() / stretches == pytest.approx(hold, rel=5 / stretches**0.5)
    assert (taken[~random] == 0).all()
    drawn = taken[fresh]
    assert abs(drawn).max() <= 1
    assert abs(drawn.mean(0)).max() < 5 / (3 * stretches) ** 0.5
    assert drawn.std(0) == pytest.approx(1 / 3**0.5, rel=5 / stretches**0.5)


def test_without_exploration_the_policy_acts():
    taken, random = walk(action=(0.3, -0.9))
    assert not random.any()
    np.testing.assert_array_equal(taken, np.tile(np.float32([0.3, -0.9]), (STEPS, 1)))


def test_noise_has_its_width_and_is_clipped():
    taken, random = walk(noise=0.2, share=0.3, hold=3)
    noisy = taken[~random]
    assert noisy.std(0) == pytest.approx(0.2, rel=0.02)
    assert abs(noisy.mean(0)).max() < 0.005
    assert abs(np.corrcoef(noisy.T)[0, 1]) < 0.03
    held = random[1:] & random[:-1] & (taken[1:] == taken[:-1]).all(-1)
    assert held.mean() == pytest.approx(0.3 * 2 / 3, abs=0.03)  # no noise on a held action

    taken, _ = walk(noise=0.5, action=(0.9, -1.0))
    assert taken.max() == 1
    assert taken.min() == -1
    assert (taken[:, 0] == 1).mean() == pytest.approx(0.4207, abs=0.02)  # P(0.5 z > 0.1)
    assert (taken[:, 1] == -1).mean() == pytest.approx(0.5, abs=0.02)

    unclipped, _ = walk(noise=0.5, unclipped=True, action=(0.9, -1.0))
    np.testing.assert_array_equal(unclipped.clip(-1, 1), taken)
    assert unclipped.std(0) == pytest.approx(0.5, rel=0.02)


TASK = make_task("PointReach-v0")._replace(horizon=20)
EPISODES = 8


@pytest.fixture(scope="module")
def policy():
    size = TASK.obs_dim, TASK.goal_dim
    norm = Norm(jnp.zeros(size[0]), jnp.ones(size[0]), jnp.zeros(size[1]), jnp.ones(size[1]))
    return Policy(init_mlp(jax.random.key(3), (sum(size), 16, TASK.action_dim)), norm)


@pytest.fixture(scope="module")
def collected(policy):
    """A function that gives episodes, and the result of stepping the task with their actions."""
    keys = jax.random.split(jax.random.key(1), EPISODES)

    @jax.jit
    def play(how):
        episodes = jax.vmap(lambda k: rollout(TASK, how, policy, k))(keys)
        # A noise-free task: any key steps it alike.
        step = lambda s, a: (TASK.step(s, a, jax.random.key(0)),) * 2  # noqa: E731

        def again(key, actions):
            start = TASK.reset(jax.random.split(key)[0])
            states = jax.lax.scan(step, start, actions.clip(-1, 1))[1]
            states = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), start, states)
            return jax.vmap(TASK.observe)(states), jax.vmap(TASK.achieved)(states), start.goal

        return episodes, jax.vmap(again)(keys, episodes.action)

    return lambda *how: jax.tree.map(np.asarray, play(Exploration(*how)))


def test_rows_are_what_the_task_did(collected):
    episodes, (obs, achieved, goal) = collected(0.2, 0.5, 3.0, False)
    np.testing.assert_allclose(episodes.obs, obs, atol=1e-5)
    np.testing.assert_allclose(episodes.achieved, achieved, atol=1e-5)
    np.testing.assert_array_equal(episodes.goal, goal)
    assert (abs(np.diff(achieved, axis=1)).max(-1) > 0).mean() > 0.9  # so no row fits its neighbour
    assert episodes.obs.shape[1] == episodes.achieved.shape[1] == TASK.horizon + 1
    assert episodes.action.shape[1] == TASK.horizon
    assert (episodes.length == TASK.horizon).all()
    assert not episodes.terminated.any()  # a time limit is no end
    assert not episodes.reward.any()  # goals decide


def test_actions_are_the_policys_at_the_rows_own_observation(collected, policy):
    episodes, _ = collected(0.0, 0.0, 1.0, False)
    goal = np.repeat(episodes.goal[:, None], TASK.horizon, 1)
    expected = act(jax.tree.map(np.asarray, policy), episodes.obs[:, :-1], goal)
    np.testing.assert_allclose(episodes.action, expected, atol=1e-5)


def test_noisy_actions_are_stored_unclipped_and_played_clipped(collected):
    clipped, unclipped = (collected(2.0, 0.0, 1.0, x)[0] for x in (False, True))
    assert (abs(unclipped.action) > 1).mean() > 0.3
    np.testing.assert_array_equal(clipped.action, unclipped.action.clip(-1, 1))
    np.testing.assert_array_equal(clipped.obs, unclipped.obs)


def test_success_is_that_of_every_step_but_the_start(policy):
    wide = TASK._replace(radius=0.4)
    episodes = jax.jit(
        lambda: rollouts(wide, Exploration(0.2, 1.0, 5), policy, jax.random.key(2), 64)
    )()
    episodes = jax.tree.map(np.asarray, episodes)
    distance = np.linalg.norm(episodes.achieved - episodes.goal[:, None], axis=-1)
    np.testing.assert_array_equal(episodes.success, (distance <= 0.4)[:, 1:])
    final, ever = episodes.success[:, -1], episodes.success.any(1)
    assert 0 < final.sum() < ever.sum() < 64


LOOP = make_task("PointLoop-v0")._replace(horizon=20)
SPREAD = (0.7, 0.2)  # standard deviations of the two actions


@pytest.fixture(scope="module")
def drawn():
    """Episodes of a policy that draws its actions, on a task without goals; and that policy."""
    norm = Norm(jnp.zeros(4), jnp.ones(4), jnp.zeros(0), jnp.ones(0))
    policy = Policy(init_mlp(jax.random.key(3), (4, 16, 2)), norm, jnp.log(jnp.array(SPREAD)))
    how = Exploration(0.9, 1.0, 5)  # of no effect
    play = jax.jit(lambda: rollouts(LOOP, how, policy, jax.random.key(0), 200))
    return jax.tree.map(np.asarray, (play(), policy))


def test_a_gaussian_policy_draws_its_actions(drawn):
    episodes, policy = drawn
    mean = act(policy, episodes.obs[:, :-1], np.zeros((200, 20, 0), np.float32))
    noise = episodes.action - mean
    np.testing.assert_allclose(noise.std((0, 1)), SPREAD, rtol=0.05)
    assert abs(noise.mean((0, 1))).max() < 0.05
    assert abs(episodes.action).max() > 1  # stored as drawn


def runner(obs):
    return pointloop.Runner(obs[:2], obs[2:] * pointloop.SPEED)


def test_steps_and_rewards_are_those_of_the_clipped_actions(drawn):
    episodes, _ = drawn

    @jax.jit
    @jax.vmap
    @jax.vmap
    def step(obs, action, next_obs):
        after = LOOP.step(runner(obs), action, jax.random.key(0))
        return after.point, LOOP.reward(runner(obs), action, runner(next_obs))

    obs, clipped = episodes.obs, episodes.action.clip(-1, 1)
    point, reward = step(obs[:, :-1], clipped, obs[:, 1:])
    np.testing.assert_allclose(point, obs[:, 1:, :2], atol=1e-5)
    np.testing.assert_allclose(episodes.reward, reward, atol=1e-4)
    assert abs(episodes.reward).max() > 0.1
    assert episodes.achieved.shape == (200, 21, 0)
    assert not episodes.success.any()


def test_random_rollouts_need_no_policy():
    @jax.jit
    def actions(noise, random):
        return random_rollouts(TASK, jax.random.key(0), 20, Exploration(noise, random)).action

    np.testing.assert_array_equal(actions(0.0, 0.0), np.zeros((20, 20, 2)))
    assert actions(0.3, 0.0).std() == pytest.approx(0.3, rel=0.1)
    assert actions(*RANDOM_ACTIONS[:2]).std() == pytest.approx(3**-0.5, rel=0.1)
