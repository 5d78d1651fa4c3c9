"""VDI's densities: roots and bounds by hand, each sample of their fit, a linear system."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from small_tasks import KEY, compiled, demo_spec, filled, make_batch, make_ring, unit_norm
from uvd.agents import Spec
from uvd.agents.state_flows import FlowParams, StateFlowConfig, StateFlows
from uvd.core.errors import UserError
from uvd.core.flows import coupling_masks
from uvd.core.policy import mlp

SPEC, N = demo_spec(), 40
CONFIG = StateFlowConfig(flow_hidden=(8, 8), bijectors=4, short=1000)
BATCH = make_batch(N, SPEC)
VARYING = np.array([0, 2])


def make(spec=SPEC, **settings):
    return StateFlows(replace(CONFIG, **settings), spec, "adam", 0)


def random_params(flows, seed=0):
    return filled(jax.eval_shape(flows.init, KEY), seed)


def plain_log_prob(params, x, context, bijectors):
    """The couplings undone one by one."""
    log_f = -0.5 * x.shape[-1] * np.log(2 * np.pi)
    for net, moved in zip(params, coupling_masks(x.shape[-1], bijectors, 0), strict=True):
        out = mlp(net, np.concatenate([x * (1 - moved), context]))
        log_scale, shift = np.tanh(out[: len(x)]) * moved, out[len(x) :] * moved
        x = (x - shift) * np.exp(-log_scale)
        log_f -= log_scale.sum()
    return log_f - 0.5 * (x**2).sum()


def test_both_densities_by_numpy():
    """Over the two varying columns: the square roots of F of the change that follows (s, a) and of
    d of the place."""
    flows = make(smoothing=0.5)
    params = random_params(flows)
    norm = SPEC.norm
    log_f = compiled(flows.log_f)(params.future, norm, BATCH.obs, BATCH.action, BATCH.next_obs)
    log_d = compiled(flows.log_d)(params.state, norm, BATCH.obs)
    future, state, batch = jax.tree.map(np.asarray, (params.future, params.state, BATCH))
    bound = -math.log(0.5 * math.sqrt(2 * math.pi))
    cut = 0
    for i in range(N):
        seen = (batch.obs[i] - norm.obs_shift) / norm.obs_scale
        context = np.concatenate([np.clip(seen, -5, 5), batch.action[i]])
        change = ((batch.next_obs[i] - batch.obs[i]) / norm.obs_scale)[VARYING]
        expected = plain_log_prob(future, change, context, 4) / 2
        cut += expected > bound
        assert float(log_f[i]) == pytest.approx(min(expected, bound), rel=1e-3, abs=1e-4)
        expected = plain_log_prob(state, seen[VARYING], 0 * context, 4) / 2
        assert float(log_d[i]) == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert cut < N / 2


def test_f_counts_as_no_more_than_its_bound():
    flows = make(smoothing=3.0)
    log_f = compiled(flows.log_f)
    params = jax.tree.map(jnp.zeros_like, random_params(flows)).future
    found = log_f(params, SPEC.norm, BATCH.obs, BATCH.action, BATCH.obs)  # at its peak
    np.testing.assert_allclose(found, -math.log(3.0 * math.sqrt(2 * math.pi)), rtol=1e-5)


def test_the_bound_is_that_of_smoothing_or_flow():
    wide, narrow, none = (make(smoothing=x).log_bound for x in (0.5, 1e-3, 0.0))
    assert wide == pytest.approx(-math.log(0.5 * math.sqrt(2 * math.pi)))
    assert narrow == none == pytest.approx(2 - math.log(2 * math.pi) / 2)  # 4 couplings, 2 each


STEPS = 5


def counting_ring():
    """Twelve episodes; every number tells its episode and step: 1000 e + 10 t."""
    number = 1000.0 * np.arange(12)[:, None] + 10 * np.arange(STEPS + 1)
    obs, action = np.repeat(number[..., None], 3, -1), np.repeat(number[:, :-1, None], 2, -1)
    return make_ring(obs, action, rows=63)  # the last but one goes on at the ring's beginning


class LinearFlows(StateFlows):
    """Densities that are linear in their parameters: plain gradient ascent gives back samples."""

    def _log_prob(self, params, x, context):
        return (params * jnp.concatenate([x, context], -1)).sum(-1) / self.dim


def test_densities_learn_from_the_newest_and_from_their_own_episodes():
    """Targets are 1..T steps ahead, discounted as the root is; both samples are smoothed."""
    n = 8000
    norm = unit_norm(3, 0)._replace(obs_clip=np.float32(1e9))
    spec = replace(SPEC, norm=norm)
    config = replace(CONFIG, lookahead=3, short=20, smoothing=0.2)
    flows = LinearFlows(config, spec, "adam", 0)
    flows.optimiser = optax.sgd(n)  # the loss is the sum of two means
    params, ring = FlowParams(jnp.zeros((2, n, 2 + 3 + 2))), counting_ring()
    fit = compiled(
        lambda key: flows.fit(params, flows.optimiser.init(params), norm, ring, key, n, 0.8)
    )
    (nets,), _, _ = fit(jax.random.key(1))
    future, state = np.asarray(nets, np.float64)
    change, obs, action = future[:, :2], future[:, 2:5], future[:, 5:]
    place, nothing = state[:, :2], state[:, 2:]
    start = obs[:, 0].round()
    np.testing.assert_allclose(obs, start[:, None].repeat(3, 1), atol=0.01)
    np.testing.assert_allclose(action, start[:, None].repeat(2, 1), atol=0.01)
    assert (nothing == 0).all()
    newest = {1000.0 * e + 10 * t for e in range(8, 12) for t in range(STEPS)}
    assert set(start) == newest
    offset = (change[:, 0] / 10).round()
    noise = np.stack([change - 10 * offset[:, None], place - start[:, None]])
    np.testing.assert_allclose(noise.std((1, 2)), 0.2, rtol=0.05)
    assert abs(np.corrcoef(noise[0, :, 0], noise[1, :, 0])[0, 1]) < 0.05
    left = STEPS - start % 1000 / 10
    for steps in range(1, STEPS + 1):
        last = min(3, steps)
        counts = np.bincount(offset[left == steps].astype(int), minlength=last + 1)
        assert counts[0] == 0
        assert len(counts) == last + 1
        share = 0.8 ** (2 * np.arange(last))  # gamma to the number of varying columns
        expected = counts.sum() * share / share.sum()
        assert last == 1 or stats.chisquare(counts[1:], expected).pvalue > 1e-4


def test_the_loss_of_the_fit_and_its_l2():
    """Fresh flows are standard normal densities: minus the sum of both log likelihoods, whole ones
    also where roots are taken. L2 alone moves a number without a gradient."""
    one = np.ones(3, np.float32)
    norm = unit_norm(3, 0)._replace(obs_shift=one, obs_scale=2 * one)
    spec = replace(SPEC, norm=norm, varying_obs=(0, 1, 2))
    start, end = np.array([0.4, 1.0, 3.0]), np.array([1.0, 0.0, 2.0])
    ring = make_ring([[start, end]], np.zeros((1, 1, 2)))
    flows = make(spec, smoothing=0.0, flow_lr=0.01, l2=0.5)
    params = jax.tree.map(jnp.zeros_like, random_params(flows))
    first = params.nets[0]
    first = first._replace(weights=(first.weights[0] + 1, *first.weights[1:]))
    params = FlowParams((first, *params.nets[1:]))
    fit = compiled(lambda params, opt: flows.fit(params, opt, norm, ring, KEY, 4, 0.9))
    after, _, metrics = fit(params, flows.optimiser.init(params))
    change, place = (end - start) / 2, (start - 1) / 2
    likelihoods = [-0.5 * (x**2).sum() - 1.5 * np.log(2 * np.pi) for x in (change, place)]
    assert float(metrics["density/loss"]) == pytest.approx(-sum(likelihoods), rel=1e-5)
    assert float(metrics["density/log_f"]) == pytest.approx(likelihoods[0] / 3, rel=1e-5)
    assert float(metrics["density/log_d"]) == pytest.approx(likelihoods[1] / 3, rel=1e-5)
    np.testing.assert_allclose(after.nets[0].weights[0], 0.99, rtol=1e-5)
    moved = coupling_masks(3, 4, 0)[0].astype(bool)
    for which, x in ((0, change), (1, place)):  # the first shift goes towards the sample
        shift = after.nets[0].biases[-1][which, 3:]
        np.testing.assert_allclose(shift, np.where(moved, 0.01 * np.sign(x), 0), atol=1e-5)


def test_flows_of_a_linear_system():
    """s' = A s + B a + noise has F = N(A s + B a, noise² + smoothing²), and d = N(0, 1)."""
    rng = np.random.default_rng(0)
    a_matrix, b_matrix = np.array([[0.9, 0.2], [-0.1, 0.8]]), np.array([[0.3], [0.5]])
    n, noise = 8000, 0.2
    s, action = rng.normal(size=(n, 2)), rng.uniform(-1, 1, (n, 1))
    after = s @ a_matrix.T + action @ b_matrix.T + noise * rng.normal(size=(n, 2))
    ring = make_ring(np.stack([s, after], 1), action[:, None])
    spec = Spec(2, 1, 0, lambda a, g: False, unit_norm(2, 0), (), varying_obs=(0, 1))
    flows = make(spec, flow_hidden=(32,), flow_lr=5e-3, smoothing=0.8, lookahead=1, short=n)

    @compiled
    def fit(params):
        def body(carry, key):
            return flows.fit(*carry, spec.norm, ring, key, 256, 0.98)[:2], None

        carry = params, flows.optimiser.init(params)
        return jax.lax.scan(body, carry, jax.random.split(jax.random.key(1), 800))[0][0]

    params = fit(jax.tree.map(lambda x: 0.3 * x, random_params(flows)))
    test = rng.choice(n, 400, replace=False)
    x = [jnp.asarray(v[test], jnp.float32) for v in (s, action, after)]
    log_f = 2 * compiled(flows.log_f)(params.future, spec.norm, *x)
    log_d = 2 * compiled(flows.log_d)(params.state, spec.norm, x[0])

    def gaussian(gap, variance):
        return -0.5 * (gap**2).sum(-1) / variance - np.log(2 * np.pi * variance)

    mean = s[test] @ a_matrix.T + action[test] @ b_matrix.T
    true_f = gaussian(after[test] - mean, noise**2 + 0.8**2)
    true_d = gaussian(s[test], 1 + 0.8**2)
    assert abs(np.mean(log_f - true_f)) < 0.06
    assert np.mean(abs(log_f - true_f)) < 0.25
    assert np.mean(abs(log_d - true_d)) < 0.15


def test_impossible_settings_are_refused():
    with pytest.raises(UserError, match="bijectors = 0 must lie between 1 and 40"):
        replace(CONFIG, bijectors=0)
