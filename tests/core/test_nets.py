"""Networks start where they should, twins are two nets, slow copies follow at their rate."""

import jax
import jax.numpy as jnp
import numpy as np

from uvd.core.nets import init_mlp, init_twin, polyak, twin
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


def test_twin_is_two_nets():
    both = init_twin(jax.random.key(1), (4, 16, 1), 1.0, 0.5)
    x = jax.random.normal(jax.random.key(2), (10, 4))
    got = twin(both, x)
    assert got.shape == (2, 10)
    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], both)
        np.testing.assert_allclose(got[i], mlp(one, x)[:, 0], rtol=1e-5, atol=1e-6)
    assert abs(got[0] - got[1]).max() > 0.01


def test_polyak():
    old = init_mlp(jax.random.key(3), (2, 3))
    new = init_mlp(jax.random.key(4), (2, 3))
    moved = polyak(old, new, 0.1)
    for o, n, m in zip(*map(jax.tree.leaves, (old, new, moved)), strict=True):
        np.testing.assert_allclose(m, 0.9 * o + 0.1 * n, rtol=1e-5, atol=1e-7)


def test_layers_that_are_normalised():
    """By hand: mean 0 and deviation 1 before the bend, so the size of the input does not matter."""
    net = init_twin(jax.random.key(5), (4, 16, 16, 1), 1.0, 0.5)
    net = net._replace(biases=(jnp.zeros((2, 16)), *net.biases[1:]))
    x = np.asarray(jax.random.normal(jax.random.key(6), (10, 4)), np.float64)
    got = twin(net, jnp.asarray(x, jnp.float32), normed=True)
    for i in range(2):
        y = x
        for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
            y = y @ np.asarray(w[i], np.float64) + b[i]
            y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
            y = np.where(y > 0, y, 0.01 * y)
        expected = y @ np.asarray(net.weights[-1][i], np.float64) + net.biases[-1][i]
        np.testing.assert_allclose(got[i], expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(twin(net, 50 * x, normed=True), got, atol=2e-3)
    assert abs(twin(net, 50 * x) - twin(net, x)).max() > 1
