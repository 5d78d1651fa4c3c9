"""Which environments are accepted, which are refused and why, and what their rewards are."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents.agent import Spec
from uvd.core.policy import Norm
from uvd.errors import UserError
from uvd.host import make_rewards
from uvd.loop import find_task
from uvd.tasks import Task
from uvd.tasks.goalenv import batch_reward, goal_task, make_env


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("FetchPsh-v4", "unknown task 'FetchPsh-v4'; nearest: FetchPush-v4"),
        ("PointPsh-v0", "nearest: PointPush-v0"),
        ("CartPole-v1", r"CartPole-v1 cannot be trained on: its actions are Discrete\(2\)"),
        ("no_such_module:Line-v0", "cannot import 'no_such_module'"),
        ("envs:NoGoal-v0", "NoGoal-v0 does not play: TypeError"),
        ("envs:Wall-v0", r"its observation is a box of shape \(2, 2\), not a box of one dim"),
        ("envs:Torn-v0", "gives observations of other shapes than its observation_space says"),
        ("envs:Priceless-v0", "gives rewards that are not finite"),
        ("envs:Keyless-v0", "no 'desired_goal'"),
        ("envs:Picture-v0", r"its observation is a box of shape \(8, 8, 3\)"),
        ("envs:Buttons-v0", r"its actions are Discrete\(4\), not a box"),
        ("envs:Unbounded-v0", "its actions are unbounded"),
        ("envs:Whole-v0", "its actions are of int64, not real numbers"),
        ("envs:Foggy-v0", "Foggy-v0: its observation is not finite"),
        ("envs:Fickle-v0", "changes the desired goal within an episode"),
        ("envs:Rewardless-v0", "it has no compute_reward"),
        ("envs:Single-v0", "compute_reward fails on batches"),
        ("envs:Silent-v0", "does not say what success is"),
        ("envs:Endless-v0", "no time limit: register it with max_episode_steps"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(name, says):
    with pytest.raises(UserError, match=says) as caught:
        find_task(name, {})
    assert "\n" not in str(caught.value)


def test_settings_are_the_environments_own():
    assert goal_task("envs:Endless-v0", {"max_episode_steps": "7"}).horizon == 7
    with pytest.raises(UserError, match="unexpected keyword argument 'colour'"):
        goal_task("envs:Line-v0", {"colour": "red"})
    task = goal_task("envs:Line-v0", {"kind": "one", "low": "-3"})
    env = make_env(task)
    assert env.unwrapped.kind == "one"
    assert task.low.tolist() == [-3, -3]


def test_ids_are_found_in_order():
    assert isinstance(find_task("PointPush-v0", {}), Task)
    gym.register("uvd/Twice-v0", "envs:Line", max_episode_steps=5)
    gym.register("Twice-v0", "envs:Line", max_episode_steps=9)
    try:
        assert find_task("Twice-v0", {}).horizon == 5
    finally:
        del gym.registry["uvd/Twice-v0"], gym.registry["Twice-v0"]


@pytest.mark.parametrize(
    ("name", "kind", "sparse", "radius", "distance"),
    [
        ("envs:Line-v0", "sparse", True, 0.25, False),
        ("envs:Line-v0", "one", True, 0.25, False),
        ("envs:Line-v0", "square", True, None, False),
        ("envs:Line-v0", "distance", False, None, True),
        ("envs:Line-v0", "dense", False, None, False),
        ("FetchReach-v4", "", True, 0.05, False),
        ("FetchReachDense-v4", "", False, 0.05, True),
        ("PointMaze_UMaze-v3", "", True, 0.45, False),
    ],
)
def test_compiled_rewards_are_the_environments_own(name, kind, sparse, radius, distance):
    task = goal_task(name, {"kind": kind} if kind else {})
    rule = task.reward
    assert (rule.sparse, rule.radius, rule.distance) == (sparse, radius, distance)
    rng = np.random.default_rng(0)
    goal = rng.uniform(-1, 1, (3, 500, task.goal_dim)).astype(np.float32)
    way = rng.standard_normal(goal.shape)
    way *= rng.uniform(0, 1, (3, 500, 1)) / np.linalg.norm(way, axis=-1, keepdims=True)
    achieved = (goal + way).astype(np.float32)
    achieved[:, 0] = goal[:, 0]
    expected = batch_reward(make_env(task), achieved, goal)
    assert rule.low <= expected.min()
    assert expected.max() <= rule.high
    success, reward = make_rewards(task)
    several = jax.jit(jax.vmap(reward))(achieved, goal)
    np.testing.assert_allclose(several, expected, atol=1e-5)
    np.testing.assert_allclose(jax.jit(reward)(achieved[0], goal[0]), expected[0], atol=1e-5)
    if sparse:
        assert (rule.low, rule.high) == (expected.min(), expected.max())
        assert 0 < (expected == rule.high).mean() < 1
        np.testing.assert_array_equal(
            jax.jit(jax.vmap(success))(achieved, goal), expected == rule.high
        )
        np.testing.assert_array_equal(task.success(achieved, goal), expected == rule.high)
    elif radius is None:
        with pytest.raises(UserError, match="success is unknown"):
            success(jnp.asarray(achieved[0]), jnp.asarray(goal[0]))


def test_an_accelerated_callback_survives_large_batches():
    """A callback that waits for the thread it runs on would never return."""
    _, reward = make_rewards(goal_task("envs:Line-v0", {"kind": "dense"}))

    @jax.jit
    def many(x):
        body = lambda c, _: (c + jax.vmap(reward)(x + c, x).mean(), None)  # noqa: E731
        return jax.lax.scan(body, 0.0, None, 20)[0]

    assert np.isfinite(many(jnp.ones((4, 20_000, 2))))


def test_values_lie_in_the_range_of_the_rewards():
    norm = Norm(*[np.zeros(1)] * 4)

    def spec(low, high):
        return Spec(1, 1, 1, lambda a, g: a, norm, (0,), reward_range=(low, high))

    assert spec(-1.0, 0.0).value_range(0.98) == (-1 / (1 - 0.98), 0.0)
    assert spec(0.0, 1.0).value_range(0.5) == (0.0, 2.0)
    assert spec(-3.0, -1.0).value_range(0.5) == (-6.0, 0.0)  # an end is worth nothing, so 0


def test_own_actions_span_the_environments_bounds():
    task = goal_task("envs:Line-v0", {"low": -3.0, "high": 0.5})
    actions = np.float32([[-1, -1], [0, 0], [1, 1]])
    np.testing.assert_allclose(task.own_action(actions)[:, 0], [-3, -1.25, 0.5])
    plain = goal_task("envs:Line-v0")
    assert plain.own_action(actions) is actions
