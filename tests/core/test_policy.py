"""One policy, two array libraries; and a process that only acts never loads JAX."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.core.policy import MLP, Norm, Policy, act, features, greedy, leaky_relu, mlp

OBS, GOAL, ACTION = 5, 2, 3


@pytest.fixture(scope="module")
def policy():
    rng = np.random.default_rng(0)
    sizes = (OBS + GOAL, 32, 32, ACTION)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    net = MLP(
        tuple(draw(n, m) / np.float32(n**0.5) for n, m in itertools.pairwise(sizes)),
        tuple(draw(m) for m in sizes[1:]),
    )
    return Policy(net, Norm(draw(OBS), abs(draw(OBS)) + 1, draw(GOAL), abs(draw(GOAL)) + 1))


@pytest.mark.parametrize("columns", [None, np.array([3, 1], np.int32)])
@pytest.mark.parametrize("batch", [(), (1,), (64,)])
def test_numpy_and_jax_act_alike(policy, batch, columns):
    policy = policy._replace(norm=policy.norm._replace(achieved_columns=columns))
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(*batch, OBS)).astype(np.float32)
    goal = rng.normal(size=(*batch, GOAL)).astype(np.float32)
    on_device = jax.tree.map(jnp.asarray, policy)
    here, there = act(policy, obs, goal), act(on_device, jnp.asarray(obs), jnp.asarray(goal))
    assert isinstance(here, np.ndarray)
    assert isinstance(there, jax.Array)
    assert here.shape == there.shape == (*batch, ACTION)
    assert here.dtype == there.dtype == np.float32
    assert abs(here).max() < 1
    np.testing.assert_allclose(here, there, atol=1e-6, rtol=0)

    x = features(policy.norm, obs, goal)
    np.testing.assert_allclose(
        mlp(policy.net, x), mlp(on_device.net, jnp.asarray(x)), rtol=1e-6, atol=1e-6
    )


def test_act_by_hand():
    net = MLP(
        (np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]]), np.array([[1.0], [0.1]])),
        (np.array([0.0, 1.0]), np.array([-2.0])),
    )
    norm = Norm(np.array([1.0, 0.0]), np.array([2.0, 1.0]), np.array([-1.0]), np.array([4.0]))
    # Features (3-1)/2 = 1, 4/1 = 4, (1+1)/4 = 0.5; hidden 4 and -1 -> -0.01; out 1.999.
    action = act(Policy(net, norm), np.array([3.0, 4.0]), np.array([1.0]))
    np.testing.assert_allclose(action, np.tanh([1.999]), rtol=1e-12)


def test_a_goal_is_read_relative_to_the_achieved_one():
    norm = Norm(np.zeros(3), np.ones(3), np.array([7.0]), np.array([4.0]), np.array([2]))
    obs, goal = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 2.0]]), np.array([[5.0], [2.0]])
    np.testing.assert_array_equal(features(norm, obs, goal)[:, :3], obs)
    np.testing.assert_array_equal(features(norm, obs, goal)[:, 3], [0.5, 0.0])  # (goal - obs) / 4
    absolute = features(norm._replace(achieved_columns=None), obs, goal)[:, 3]
    np.testing.assert_array_equal(absolute, [-0.5, -1.25])  # from the middle of the goals' range


def test_features_are_clipped():
    norm = Norm(np.zeros(2), np.ones(2), np.array([0.0]), np.array([0.5]), np.array([1]))
    obs, goal = np.array([70.0, -3.0]), np.array([0.0])
    np.testing.assert_array_equal(features(norm, obs, goal), [5.0, -3.0, 5.0])
    wide = norm._replace(obs_clip=np.float64(20.0))
    np.testing.assert_array_equal(features(wide, obs, goal), [20.0, -3.0, 5.0])


def test_the_greedy_policy_has_no_noise(policy):
    noisy = policy._replace(log_std=np.zeros(ACTION))
    assert greedy(noisy).log_std is None
    assert greedy(noisy)[:2] == policy[:2]


def test_leaky_relu():
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    np.testing.assert_allclose(leaky_relu(x), jax.nn.leaky_relu(x, 0.01), rtol=1e-5, atol=1e-7)


def test_acting_does_not_import_jax():
    code = "import sys, uvd.core.policy; print(*(m for m in ('jax', 'optax') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
