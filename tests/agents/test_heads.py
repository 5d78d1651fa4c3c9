"""Heads of critics: where each loss is least, ranges, starting values and utilities."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents.heads import HeadName, make_head

BOUND, START = 5.0, 0.3


def test_every_head_is_tested_here():
    assert set(get_args(HeadName)) == {"linear", "huber", "tanh", "sigmoid"}


@pytest.mark.parametrize("name", ["linear", "tanh", "sigmoid"])
def test_the_loss_is_least_at_the_mean_of_the_targets(name):
    head = make_head(name, BOUND, START)
    targets = np.array([0.5, 1.0, 1.5, 4.0])
    output = jnp.linspace(-6, 6, 4801)
    loss = head.loss(output[:, None], targets).mean(1)
    assert head.value(output[loss.argmin()]) == pytest.approx(targets.mean(), abs=0.01)


def test_hubers_loss_is_squared_near_the_target_and_linear_far_off():
    """So it is least at the mean of targets less than 1 off, and bears outliers."""
    head = make_head("huber", BOUND, 0.0)
    off = np.array([0.0, 0.5, 1.0, 3.0, -3.0])
    loss = head.loss(np.full(5, 20.0), 2.0 + off)
    np.testing.assert_allclose(loss, [0.0, 0.125, 0.5, 2.5, 2.5], rtol=1e-5)


def test_losses_by_hand():
    """The output 0.4 against the target 2, bound 5."""
    p = 1 / (1 + np.exp(-0.4))
    wanted = {
        "linear": (0.4 - 2) ** 2,
        "tanh": (5 * np.tanh(0.4) - 2) ** 2,
        "sigmoid": -(2 / 5 * np.log(p) + 3 / 5 * np.log(1 - p)),
    }
    for name, loss in wanted.items():
        found = make_head(name, BOUND, START).loss(jnp.float32(0.4), 2.0)
        assert float(found) == pytest.approx(loss, rel=1e-5), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linear", lambda x: x),
        ("huber", lambda x: x / 10),
        ("tanh", lambda x: BOUND * np.tanh(x)),
        ("sigmoid", lambda x: BOUND / (1 + np.exp(-x))),
    ],
)
def test_values_starts_and_utilities(name, value):
    head = make_head(name, BOUND, START)
    output = np.array([-50.0, -1.0, 0.0, 1.0, 50.0])
    np.testing.assert_allclose(head.value(output), value(output), rtol=1e-5, atol=1e-20)
    assert float(head.value(jnp.asarray(head.start))) == pytest.approx(START * BOUND, rel=1e-5)
    # The actor ascends the value itself, or the logarithm of its share of the bound.
    utility = np.log(value(output) / BOUND) if name == "sigmoid" else value(output)
    np.testing.assert_allclose(head.utility(jnp.asarray(output)), utility, rtol=1e-5, atol=1e-20)
    slope = jax.vmap(jax.grad(head.utility))(jnp.asarray(output[1:4]))
    assert (slope > 0).all()
