"""What is measured of a task, its rewards inside compiled code, and the range of values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import goal_pairs
from uvd.agents.agent import DemoSteps, Spec
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.policy import Norm
from uvd.tasks import make_task
from uvd.tasks.env import batch_reward, make_env
from uvd.tasks.find import find_task
from uvd.training.spec import make_rewards, make_spec


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("envs:Line-v0", "sparse"),
        ("envs:Line-v0", "square"),
        ("envs:Line-v0", "distance"),
        ("envs:Line-v0", "dense"),
        ("FetchReachDense-v4", ""),
        ("PointMaze_UMaze-v3", ""),
    ],
)
def test_compiled_rewards_are_the_environments_own(name, kind):
    task = find_task(name, {"kind": kind} if kind else {})
    rule, (achieved, goal) = task.reward, goal_pairs(task.goal_dim)
    expected = batch_reward(make_env(task), achieved, goal)
    success, reward = make_rewards(task)
    several = jax.jit(jax.vmap(reward))(achieved, goal)
    np.testing.assert_allclose(several, expected, atol=1e-5)
    np.testing.assert_allclose(jax.jit(reward)(achieved[0], goal[0]), expected[0], atol=1e-5)
    if rule.sparse:
        reached = jax.jit(jax.vmap(success))(achieved, goal)
        np.testing.assert_array_equal(reached, expected == rule.high)
    elif rule.radius is None:
        with pytest.raises(UserError, match="success is unknown"):
            success(jnp.asarray(achieved[0]), jnp.asarray(goal[0]))


def test_an_accelerated_callback_survives_large_batches():
    """A callback that waits for the thread it runs on would never return."""
    _, reward = make_rewards(find_task("envs:Line-v0", {"kind": "dense"}))

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


def probe_of(task, lengths=(3, 5), seed=0):
    """Roll-outs of random numbers; what did not happen is far outside their range."""
    rng, n, t = np.random.default_rng(seed), len(lengths), max(lengths)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)  # noqa: E731
    length = np.array(lengths, np.int32)
    padding = (np.arange(t + 1) > length[:, None])[..., None]
    return Episode(
        obs=np.where(padding, 99, draw(n, t + 1, task.obs_dim)),
        action=draw(n, t, task.action_dim),
        achieved=np.where(padding, 99, draw(n, t + 1, task.goal_dim)),
        goal=draw(n, task.goal_dim),
        length=length,
        terminated=np.zeros(n, bool),
        success=np.zeros((n, t), bool),
        reward=draw(n, t),
    )


def rows_of(probe):
    """All observations and achieved goals that happened."""
    pairs = [
        (probe.obs[i, : n + 1], probe.achieved[i, : n + 1]) for i, n in enumerate(probe.length)
    ]
    return [np.concatenate(x) for x in zip(*pairs)]


def test_feature_ranges_are_those_of_what_happened():
    task = make_task("PointPush-v0")
    probe = probe_of(task)
    spec = make_spec(task, probe, None, 123)
    obs, achieved = rows_of(probe)
    np.testing.assert_allclose(spec.norm.obs_scale, np.ptp(obs, 0) / 2, rtol=1e-5)
    np.testing.assert_allclose(spec.norm.obs_shift, (obs.max(0) + obs.min(0)) / 2, atol=1e-6)
    goals = np.concatenate([achieved, probe.goal])
    np.testing.assert_allclose(spec.norm.goal_scale, np.ptp(goals, 0) / 2, rtol=1e-5)
    assert (spec.obs_dim, spec.action_dim, spec.goal_dim) == (6, 2, 2)
    assert (spec.radius, spec.cycle_steps, spec.has_rewards) == (task.radius, 123, False)
    assert spec.varying_goal == (0, 1)
    near = np.array([[0.05, 0.0], [0.2, 0.0]])
    assert spec.success(near, np.zeros(2)).tolist() == [True, False]


def test_a_goal_dimension_that_is_never_asked_for_is_left_out():
    task = make_task("PointPush-v0")
    probe = probe_of(task)
    probe.goal[:, 0] = 0.3
    assert make_spec(task, probe, None, 1).varying_goal == (1,)
    probe.goal[:, 1] = 0.4  # always the same goal: then by what is achieved
    assert make_spec(task, probe, None, 1).varying_goal == (0, 1)


def test_without_goals_rewards_count_and_demonstrations_widen_the_ranges():
    task = make_task("PointLoop-v0")
    probe = probe_of(task)
    probe.obs[..., 3] = 0.5
    obs, _ = rows_of(probe)
    spec = make_spec(task, probe, None, 1)
    assert spec.has_rewards
    assert spec.radius is None
    assert spec.varying_obs == (0, 1, 2)
    np.testing.assert_allclose(spec.norm.obs_scale[:3], obs.std(0)[:3], rtol=1e-4)
    assert not spec.success(np.zeros((4, 0)), np.zeros((4, 0))).any()

    demos = DemoSteps(np.float32([[4, 0, 0, 0.5], [0, 0, -7, 2.5]]))
    wide = make_spec(task, probe, demos, 1)
    both = np.concatenate([obs, demos.obs])
    np.testing.assert_allclose(wide.norm.obs_scale, np.ptp(both, 0) / 2, rtol=1e-5)
    assert wide.norm.obs_clip is None
    assert wide.varying_obs == (0, 1, 2, 3)
    assert wide.demos is demos


def test_an_environments_spec_has_its_rewards_and_privileged_numbers():
    line = find_task("envs:Line-v0")
    spec = make_spec(line, probe_of(line), None, 1)
    assert (spec.radius, spec.reward_range) == (0.25, (-1.0, 0.0))
    assert not spec.has_rewards
    goal = np.zeros((2, 2), np.float32)
    achieved = np.float32([[0.2, 0.1], [0.2, 0.2]])
    assert spec.success(achieved, goal).tolist() == [True, False]
    np.testing.assert_array_equal(spec.reward(achieved, goal), [0, -1])
    walk = find_task("envs:PrivilegedWalk-v0")
    spec = make_spec(walk, probe_of(walk), None, 1)
    assert (spec.obs_dim, spec.policy_obs_dim, spec.has_rewards) == (3, 2, True)
