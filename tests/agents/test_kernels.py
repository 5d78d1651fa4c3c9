"""Kernel densities against SciPy's Gaussians: what is compared, and over which steps."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from small_tasks import compiled, demo_spec, draw, make_batch, make_ring
from uvd.agents.kernels import Kernels, resolve_match, squared_distances
from uvd.core.errors import UserError

VARYING, WIDTH, N = [0, 2], 0.9, 40
SPEC = demo_spec()
MATCHES = pytest.mark.parametrize("match", ["pairs", "changes", "states"])


def points(spec, match, obs, action, after):
    """What kernels compare, in the plain."""
    x = np.asarray(obs)[..., VARYING] / spec.norm.obs_scale[VARYING]
    if match == "states":
        return x
    varies = (spec.demos.next_obs - spec.demos.obs)[:, VARYING].std(0)
    change = np.asarray(after - obs)[..., VARYING] / (2 * varies)
    return np.concatenate([x, np.asarray(action) if match == "pairs" else change], -1)


def gaussian(x, y, width):
    """The density of y under a Gaussian around x, over its peak."""
    pdf = stats.norm.pdf(x - y, scale=width) / stats.norm.pdf(0, scale=width)
    return pdf.prod(-1)


def test_distances_are_those_of_the_points_and_precise_where_they_are_near():
    rng = np.random.default_rng(0)
    x = 3 * rng.normal(size=(5, 22))
    y = np.concatenate([x[:2] + 1e-2 * rng.normal(size=(2, 22)), 3 * rng.normal(size=(4, 22))])
    expected = ((x[:, None] - y) ** 2).sum(-1)
    found = squared_distances(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@MATCHES
def test_d_is_the_mean_of_gaussians_around_the_newest_steps(match):
    """The same Gaussians as F: around the states that steps lead to, where states are compared."""
    rng, kernels = np.random.default_rng(0), Kernels(match, SPEC)
    demo = points(SPEC, match, *SPEC.demos)
    obs, action = draw(rng, 3, 5, 3), draw(rng, 3, 4, 2)
    log_d = compiled(lambda ring: kernels.log_d(WIDTH, SPEC.norm, ring, 9))
    for episodes in (3, 1):  # more than the short replay buffer holds, and fewer
        ring = make_ring(obs[:episodes], action[:episodes], rows=15)
        at = obs[:episodes, 1:] if match == "states" else obs[:episodes, :-1]
        steps = at, action[:episodes], obs[:episodes, 1:]
        newest = np.concatenate(points(SPEC, match, *steps))[-9:]
        expected = gaussian(demo[:, None], newest, WIDTH).mean(1)
        np.testing.assert_allclose(np.exp(log_d(ring)), expected, rtol=1e-3)


def test_d_of_an_empty_replay_buffer_is_0():
    ring = make_ring(np.zeros((1, 2, 3)), np.zeros((1, 1, 2)), length=[0])
    assert (Kernels("pairs", SPEC).log_d(WIDTH, SPEC.norm, ring, 9) == -np.inf).all()


@MATCHES
def test_f_is_a_gaussian_around_the_pair_the_change_or_the_state_that_follows(match):
    batch, kernels = make_batch(N, SPEC), Kernels(match, SPEC)
    demo = points(SPEC, match, *SPEC.demos)
    at = batch.next_obs if match == "states" else batch.obs
    centre = points(SPEC, match, at, batch.action, batch.next_obs)
    expected = gaussian(demo[:, None], centre, WIDTH)
    log_f = compiled(lambda batch: kernels.log_f(WIDTH, SPEC.norm, batch, kernels.demo_points))
    np.testing.assert_allclose(np.exp(log_f(batch)), expected, rtol=1e-3, atol=1e-6)
    assert expected.shape == (12, N)


def test_a_change_that_does_not_vary_counts_as_if_it_did():
    """By a hundredth of the state's unit."""
    spec = replace(SPEC, demos=SPEC.demos._replace(next_obs=SPEC.demos.obs))
    obs = np.tile(SPEC.demos.obs[:1], (N, 1))
    batch = make_batch(N, SPEC, obs=obs, next_obs=obs + 0.02 * SPEC.norm.obs_scale)
    kernels = Kernels("changes", spec)
    log_f = kernels.log_f(jnp.float32(1.0), spec.norm, batch, kernels.demo_points)
    np.testing.assert_allclose(log_f[0], -(2.0**2 + 2.0**2) / 2, rtol=1e-3)


@pytest.mark.parametrize(
    ("missing", "match"),
    [((), "pairs"), (("action",), "changes"), (("action", "next_obs"), "states")],
)
def test_auto_is_the_richest_that_the_demonstrations_offer(missing, match):
    demos = SPEC.demos._replace(**dict.fromkeys(missing))
    assert resolve_match("auto", demos) == match
    assert Kernels("auto", replace(SPEC, demos=demos)).match == match
    assert resolve_match("states", demos) == "states"


def test_what_is_compared_has_to_be_there():
    bare = SPEC.demos._replace(action=None, next_obs=None)
    with pytest.raises(UserError, match="no actions, which match = pairs needs"):
        resolve_match("pairs", bare)
    with pytest.raises(UserError, match="needs the state after each chosen step"):
        resolve_match("changes", bare)


@MATCHES
def test_the_width_for_a_mean_log_density(match):
    """The same density, read the other way round; kernels are wider where the agent is far."""
    rng, kernels = np.random.default_rng(0), Kernels(match, SPEC)
    obs, action = draw(rng, 3, 5, 3), draw(rng, 3, 4, 2)
    ring = make_ring(obs, action, rows=15)
    width = compiled(lambda: kernels.width_for(-2.0, SPEC.norm, ring, 9))()
    log_d = compiled(lambda: kernels.log_d(width, SPEC.norm, ring, 9))()
    assert log_d.mean() == pytest.approx(-2, abs=1e-2)
    far = make_ring(obs + 5 * SPEC.norm.obs_scale, action, rows=15)
    assert width < compiled(lambda: kernels.width_for(-2.0, SPEC.norm, far, 9))()


def test_closeness_is_that_of_the_twentieth_of_the_steps_that_is_nearest(monkeypatch):
    rng, kernels = np.random.default_rng(0), Kernels("pairs", SPEC)
    obs, action = draw(rng, 10, 5, 3), draw(rng, 10, 4, 2)
    ring = make_ring(obs, action)
    demo = points(SPEC, "pairs", *SPEC.demos)
    visited = np.concatenate(points(SPEC, "pairs", obs[:, :-1], action, obs[:, 1:]))
    distance = np.sort(np.sqrt(((demo[:, None] - visited) ** 2).sum(-1)), 1)
    found = compiled(lambda: kernels.closeness(SPEC.norm, ring, 40))()
    np.testing.assert_allclose(found, -np.log(distance[:, 1]).mean(), rtol=1e-4)  # 2 of 40
    # Of very many demonstrated points, some at equal distances.
    monkeypatch.setattr("uvd.agents.kernels.MAX_POINTS", 5)
    some = compiled(lambda: kernels.closeness(SPEC.norm, ring, 40))()
    np.testing.assert_allclose(some, -np.log(distance[::3, 1]).mean(), rtol=1e-4)
