"""Networks start where they should, twins are two nets, slow copies and optimisers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.core.nets import init_mlp, init_twin, make_optimiser, polyak, twin
from uvd.core.policy import mlp


def test_init_scales_and_last_layer():
    net = init_mlp(jax.random.key(0), (100, 400, 3), 0.1, 2.5)
    assert [w.shape for w in net.weights] == [(100, 400), (400, 3)]
    # Uniform in ±1/sqrt(fan-in): the largest of many is close to the bound, the spread a third.
    first = np.asarray(net.weights[0])
    assert 0.099 < abs(first).max() <= 0.1
    np.testing.assert_allclose(first.std(), 0.1 / 3**0.5, rtol=0.02)
    assert 0.004 < abs(net.weights[1]).max() <= 0.1 / 400**0.5
    np.testing.assert_array_equal(net.biases[1], 2.5)

    constant = init_mlp(jax.random.key(0), (3, 8, 2), 0.0)
    np.testing.assert_array_equal(mlp(constant, jnp.arange(3.0)), 0.0)


@pytest.fixture(scope="module")
def twins():
    return jax.jit(lambda key: init_twin(key, (4, 16, 16, 1), 1.0, 0.5))(jax.random.key(1))


def test_twin_is_two_nets(twins):
    x = jax.random.normal(jax.random.key(2), (10, 4))
    got = twin(twins, x)
    assert got.shape == (2, 10)
    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], twins)
        np.testing.assert_allclose(got[i], mlp(one, x)[:, 0], rtol=1e-5, atol=1e-6)
    assert abs(got[0] - got[1]).max() > 0.01


def test_polyak():
    old = init_mlp(jax.random.key(3), (2, 3))
    new = init_mlp(jax.random.key(4), (2, 3))
    moved = polyak(old, new, 0.1)
    for o, n, m in zip(*map(jax.tree.leaves, (old, new, moved)), strict=True):
        np.testing.assert_allclose(m, 0.9 * o + 0.1 * n, rtol=1e-5, atol=1e-7)


def test_layer_normalisation_by_hand(twins):
    """Mean 0 and deviation 1 before the leaky ReLU: the scale of the input has no effect."""
    net = twins._replace(biases=(jnp.zeros((2, 16)), *twins.biases[1:]))
    x = np.asarray(jax.random.normal(jax.random.key(6), (10, 4)), np.float64)
    got = twin(net, jnp.asarray(x, jnp.float32), layer_norm=True)
    for i in range(2):
        y = x
        for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
            y = y @ np.asarray(w[i], np.float64) + b[i]
            y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
            y = np.where(y > 0, y, 0.01 * y)
        expected = y @ np.asarray(net.weights[-1][i], np.float64) + net.biases[-1][i]
        np.testing.assert_allclose(got[i], expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(twin(net, 50 * x, layer_norm=True), got, atol=2e-3)
    assert abs(twin(net, 50 * x) - twin(net, x)).max() > 1


def updates_of(optimiser, gradients, start):
    """The parameters after each gradient."""
    x, states = start, []
    opt = optimiser.init(x)
    for g in gradients:
        updates, opt = optimiser.update(jnp.asarray(g, jnp.float32), opt, x)
        x = x + updates
        states.append(np.asarray(x))
    return states


def test_rmsprop_is_pytorchs():
    """v <- 0.99 v + 0.01 g²; x <- x - rate g / (sqrt(v) + 1e-8), by hand over three steps."""
    gradients = np.random.default_rng(0).normal(size=(3, 3)) * [1.0, 1e-3, 1e-7]
    start = jnp.array([1.0, -2.0, 0.5])
    expected, v = np.asarray(start, np.float64), np.zeros(3)
    for g, x in zip(gradients, updates_of(make_optimiser("rmsprop", 0.1), gradients, start)):
        v = 0.99 * v + 0.01 * g**2
        expected = expected - 0.1 * g / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-6)


def test_a_learning_rate_falls_as_one_over_one_plus_n():
    """A constant gradient makes each of Adam's steps as long as the rate."""
    gradients = [[1.0, -4.0]] * 7
    states = updates_of(make_optimiser("adam", 0.1, half=3), gradients, jnp.zeros(2))
    rates = np.diff(states, axis=0, prepend=np.zeros((1, 2))) * [-1, 1]
    expected = 0.1 / (1 + np.arange(7) / 3)
    np.testing.assert_allclose(rates, expected[:, None].repeat(2, 1), rtol=1e-4)


def test_l2_is_the_gradient_of_half_the_squared_parameters():
    start, gradients = jnp.array([1.0, -2.0]), [[0.3, 0.1], [0.2, -0.5]]
    penalised = updates_of(make_optimiser("rmsprop", 0.01, l2=0.7), gradients, start)
    expected, v = np.asarray(start, np.float64), np.zeros(2)
    for g, x in zip(np.array(gradients), penalised):
        g = g + 0.7 * expected
        v = 0.99 * v + 0.01 * g**2
        expected = expected - 0.01 * g / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(x, expected, rtol=1e-4)
