"""How demonstrated steps are weighed and drawn."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, compiled
from uvd.agents.demo_weights import demo_metrics, draw, log_mean, log_weights

D = np.array([0.5, 1.0, 1.5, 0.01, 5.0])


def test_weights_are_bounded_inverse_densities():
    weight = np.exp(log_weights(jnp.log(D), 4.0))
    np.testing.assert_allclose(weight, np.minimum(D.mean() / D, 4.0), rtol=1e-5)
    far = log_weights(jnp.array([-1e5, -2e5, -3e5]), 4.0)  # all of these underflow
    assert np.isfinite(far).all()
    np.testing.assert_allclose(far[1:], math.log(4.0))


def test_the_mean_of_what_underflows():
    assert float(log_mean(jnp.log(D))) == pytest.approx(math.log(D.mean()))
    far = log_mean(jnp.array([-1000.0, -1000.0 + math.log(3)]))
    assert float(far) == pytest.approx(-1000 + math.log(2))


def test_steps_are_drawn_by_weight():
    weight = jnp.array([1.0, 0.0, 3.0, 4.0])
    index = compiled(lambda key: draw(key, weight, 40_000))(KEY)
    np.testing.assert_allclose(np.bincount(index, minlength=4) / 40_000, weight / 8, atol=0.01)


def test_metrics_by_hand():
    log_d, weight = jnp.array([-3.0, -1.0, -2.0]), jnp.array([2.0, 1.0, 1.0])
    expected = {
        "log_d_min": -3.0, "log_d_mean": -2.0, "log_d_max": -1.0, "weight_max": 2.0,
        "spread": 4**2 / 6 / 3,
    }  # fmt: skip
    found = {
        name.removeprefix("demos/"): float(x) for name, x in demo_metrics(log_d, weight).items()
    }
    assert found == pytest.approx(expected)
    assert float(demo_metrics(log_d, jnp.ones(3))["demos/spread"]) == pytest.approx(1)
    alone = demo_metrics(log_d, jnp.array([1.0, 0.0, 0.0]))["demos/spread"]
    assert float(alone) == pytest.approx(1 / 3)
