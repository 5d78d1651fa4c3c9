"""Exploration keeps its promises, and a roll-out's rows are what the task really did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.collect.device import Exploration, explore, rollout, rollouts
from uvd.core.nets import init_mlp
from uvd.core.policy import Norm, Policy, act
from uvd.training.evaluate import evaluate_policy, successes
from uvd.tasks import make_task, pointloop

STEPS = 30_000


@jax.jit
def chain(noise, share, hold, action):
    """One long walk of `explore` around a constant action."""

    def body(carry, key):
        taken, wild = explore(Exploration(noise, share, hold), key, action, *carry)
        return (taken, wild), (taken, wild)

    first = (jnp.zeros_like(action), jnp.zeros((), bool))
    keys = jax.random.split(jax.random.key(0), STEPS)
    return jax.lax.scan(body, first, keys)[1]


def walk(noise=0.0, share=0.0, hold=1, action=(0.0, 0.0)):
    taken, wild = chain(noise, share, float(hold), jnp.asarray(action))
    return np.asarray(taken), np.asarray(wild)


@pytest.mark.parametrize(("share", "hold"), [(0.3, 1), (0.3, 3), (0.1, 10), (0.8, 4), (1.0, 5)])
def test_share_and_length_of_random_stretches(share, hold):
    taken, wild = walk(share=share, hold=hold)
    # A stretch is one held action: the next may follow at once.
    fresh = wild & np.r_[True, (taken[1:] != taken[:-1]).any(-1)]
    stretches = fresh.sum()
    tolerance = 5 * (hold / STEPS) ** 0.5
    assert wild.mean() == pytest.approx(share, abs=tolerance)
    assert wild.sum() / stretches == pytest.approx(hold, rel=5 / stretches**0.5)
    assert (taken[~wild] == 0).all()
    drawn = taken[fresh]
    assert abs(drawn).max() <= 1
    assert abs(drawn.mean(0)).max() < 5 / (3 * stretches) ** 0.5
    assert drawn.std(0) == pytest.approx(1 / 3**0.5, rel=5 / stretches**0.5)


def test_without_exploration_the_policy_acts():
    taken, wild = walk(action=(0.3, -0.9))
    assert not wild.any()
    np.testing.assert_array_equal(taken, np.tile(np.float32([0.3, -0.9]), (STEPS, 1)))


def test_noise_has_its_width_and_is_clipped():
    taken, wild = walk(noise=0.2, share=0.3, hold=3)
    calm = taken[~wild]
    assert calm.std(0) == pytest.approx(0.2, rel=0.02)
    assert abs(calm.mean(0)).max() < 0.005
    assert abs(np.corrcoef(calm.T)[0, 1]) < 0.03
    held = wild[1:] & wild[:-1] & (taken[1:] == taken[:-1]).all(-1)
    assert held.mean() == pytest.approx(0.3 * 2 / 3, abs=0.03)  # no noise on a held action

    taken, _ = walk(noise=0.5, action=(0.9, -1.0))
    assert taken.max() == 1
    assert taken.min() == -1
    assert (taken[:, 0] == 1).mean() == pytest.approx(0.4207, abs=0.02)  # P(0.5 z > 0.1)
    assert (taken[:, 1] == -1).mean() == pytest.approx(0.5, abs=0.02)


TASK = make_task("PointReach-v0")._replace(horizon=20)


@pytest.fixture(scope="module")
def policy():
    size = TASK.obs_dim, TASK.goal_dim
    norm = Norm(jnp.zeros(size[0]), jnp.ones(size[0]), jnp.zeros(size[1]), jnp.ones(size[1]))
    return Policy(init_mlp(jax.random.key(3), (sum(size), 16, TASK.action_dim)), norm)


@pytest.fixture(scope="module")
def replayed(policy):
    """Episodes, and what stepping the task again with their actions gives."""
    keys = jax.random.split(jax.random.key(1), 8)

    @jax.jit
    def play(how):
        episodes = jax.vmap(lambda k: rollout(TASK, how, policy, k))(keys)
        # A noise-free task: any key steps it alike.
        step = lambda s, a: (TASK.step(s, a, jax.random.key(0)),) * 2  # noqa: E731

        def again(key, actions):
            start = TASK.reset(jax.random.split(key)[0])
            states = jax.lax.scan(step, start, actions)[1]
            states = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), start, states)
            return jax.vmap(TASK.observe)(states), jax.vmap(TASK.achieved)(states), start.goal

        return episodes, jax.vmap(again)(keys, episodes.action)

    return lambda *how: jax.tree.map(np.asarray, play(Exploration(*how)))


def test_rows_are_what_the_task_did(replayed):
    episodes, (obs, achieved, goal) = replayed(0.2, 0.5, 3.0)
    np.testing.assert_allclose(episodes.obs, obs, atol=1e-5)
    np.testing.assert_allclose(episodes.achieved, achieved, atol=1e-5)
    np.testing.assert_array_equal(episodes.goal, goal)
    assert (abs(np.diff(achieved, axis=1)).max(-1) > 0).mean() > 0.9  # so no row fits its neighbour
    assert episodes.obs.shape[1] == episodes.achieved.shape[1] == TASK.horizon + 1
    assert episodes.action.shape[1] == TASK.horizon
    assert (episodes.length == TASK.horizon).all()
    assert not episodes.terminated.any()  # time ran out: no end


def test_actions_are_the_policys_at_the_rows_own_observation(replayed, policy):
    episodes, _ = replayed(0.0, 0.0, 1.0)
    goal = np.repeat(episodes.goal[:, None], TASK.horizon, 1)
    expected = act(jax.tree.map(np.asarray, policy), episodes.obs[:, :-1], goal)
    np.testing.assert_allclose(episodes.action, expected, atol=1e-5)


def test_reached_and_successes_count_every_step_but_the_start(policy):
    wide = TASK._replace(radius=0.4)
    episodes = jax.jit(
        lambda: rollouts(wide, Exploration(0.2, 1.0, 5), policy, jax.random.key(2), 64)
    )()
    episodes = jax.tree.map(np.asarray, episodes)
    gap = np.linalg.norm(episodes.achieved - episodes.goal[:, None], axis=-1)
    at_goal = gap <= 0.4
    np.testing.assert_array_equal(episodes.reached, at_goal[:, 1:].any(1))
    final, ever = successes(wide, episodes)
    np.testing.assert_array_equal(final, at_goal[:, -1])
    np.testing.assert_array_equal(ever, at_goal[:, 1:].any(1))
    assert 0 < final.sum() < ever.sum() < 64
    start = episodes._replace(
        achieved=np.where(np.arange(21)[:, None] == 0, episodes.goal[:, None], 9)
    )
    assert not successes(wide, start)[1].any()


def test_evaluation_is_fixed_and_without_exploration(policy):
    wide = TASK._replace(radius=0.4)
    key = jax.random.key(4)

    @jax.jit
    def both():
        calm = rollouts(wide, Exploration(), policy, key, 32)
        return evaluate_policy(wide, policy, key, 32), successes(wide, calm)

    result, (final, ever) = both()
    assert result["eval/success_final"] == pytest.approx(float(final.mean()))
    assert result["eval/success_ever"] == pytest.approx(float(ever.mean()))
    assert 0 < final.mean() < 1


LOOP = make_task("PointLoop-v0")._replace(horizon=20)
WIDE = (0.7, 0.2)  # standard deviations of the two actions


@pytest.fixture(scope="module")
def drawn():
    """Episodes of a policy that draws its actions, on a task without goals; and that policy."""
    norm = Norm(jnp.zeros(4), jnp.ones(4), jnp.zeros(0), jnp.ones(0))
    policy = Policy(init_mlp(jax.random.key(3), (4, 16, 2)), norm, jnp.log(jnp.array(WIDE)))
    how = Exploration(0.9, 1.0, 5)  # of no effect
    play = jax.jit(lambda: rollouts(LOOP, how, policy, jax.random.key(0), 200))
    return jax.tree.map(np.asarray, (play(), policy))


def test_a_policy_with_a_spread_draws_its_actions(drawn):
    episodes, policy = drawn
    mean = act(policy, episodes.obs[:, :-1], np.zeros((200, 20, 0), np.float32))
    noise = episodes.action - mean
    np.testing.assert_allclose(noise.std((0, 1)), WIDE, rtol=0.05)
    assert abs(noise.mean((0, 1))).max() < 0.05
    assert abs(episodes.action).max() > 1  # kept as drawn ...
    step = jax.jit(jax.vmap(jax.vmap(lambda o, a: LOOP.step(runner(o), a, jax.random.key(0)))))
    felt = step(episodes.obs[:, :-1], episodes.action.clip(-1, 1))  # ... and felt within bounds
    np.testing.assert_allclose(felt.point, episodes.obs[:, 1:, :2], atol=1e-5)


def runner(obs):
    return pointloop.Runner(obs[:2], obs[2:] * pointloop.SPEED)


def test_rewards_are_those_of_the_rows_own_step(drawn):
    episodes, _ = drawn
    reward = jax.jit(
        jax.vmap(jax.vmap(lambda o, a, p: LOOP.reward(runner(o), a, runner(p))))
    )(episodes.obs[:, :-1], episodes.action, episodes.obs[:, 1:])  # fmt: skip
    np.testing.assert_allclose(episodes.reward, reward, atol=1e-4)
    assert abs(episodes.reward).max() > 0.1
    assert episodes.achieved.shape == (200, 21, 0)
    assert not episodes.reached.any()


def test_return_is_evaluated_without_exploration(drawn):
    _, policy = drawn
    result = jax.jit(lambda: evaluate_policy(LOOP, policy, jax.random.key(4), 8))()
    calm = rollouts(LOOP, Exploration(), Policy(*policy[:2]), jax.random.key(4), 8)
    assert set(result) == {"eval/return"}
    assert result["eval/return"] == pytest.approx(float(calm.reward.sum(1).mean()), abs=1e-4)


def test_a_policys_own_noise_takes_the_place_of_explorations(policy):
    @jax.jit
    def play(how, noise):
        return rollouts(TASK, how, policy._replace(noise=noise), jax.random.key(5), 4).action

    told = play(Exploration(0.0, 0.3, 3), jnp.asarray(0.2))
    np.testing.assert_array_equal(told, play(Exploration(0.2, 0.3, 3), None))


def test_what_was_drawn_beyond_the_bounds_is_kept_and_played_within(policy):
    """The same noise: the same play, whether its actions are remembered cut or not."""

    @jax.jit
    def play(beyond):
        return rollouts(TASK, Exploration(2.0, beyond=beyond), policy, jax.random.key(5), 4)

    within, drawn = play(False), play(True)
    assert (abs(drawn.action) > 1).mean() > 0.3
    np.testing.assert_array_equal(within.action, jnp.clip(drawn.action, -1, 1))
    np.testing.assert_array_equal(within.obs, drawn.obs)
