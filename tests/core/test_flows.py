"""The flow is a density: exact Jacobian, exact inverse, mass one, a largest value that holds."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flowjax.bijections import Affine, Chain, Coupling, Permute
from flowjax.distributions import StandardNormal, Transformed
from paramax import Parameterize

from uvd.core.flows import Flow, coupling_masks, make_flow

# (dim, context, bijectors): no context, no other half, odd halves, odd numbers of couplings
TABLE = [(1, 0, 3), (1, 2, 4), (2, 0, 4), (2, 3, 5), (3, 0, 5), (3, 2, 6), (5, 4, 6)]
HIDDEN = (8, 8)
ROWS = 64  # in every call of a flow: each is compiled once
table = pytest.mark.parametrize(("dim", "context", "bijectors"), TABLE)


class Compiled(NamedTuple):
    """A flow, and its functions over rows of samples."""

    flow: Flow
    log_prob: Any
    sample: Any


@lru_cache
def build(dim, context, bijectors):
    flow = make_flow(dim, context, bijectors, HIDDEN)
    log_prob, sample = (jax.jit(jax.vmap(f, (None, 0, 0))) for f in (flow.log_prob, flow.sample))
    return Compiled(flow, log_prob, sample)


def random_params(flow, seed, size=0.5):
    """Parameters that are nothing special: the zero-initialised layers filled too."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(flow.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(scale=size, size=x.shape).astype(np.float32), shapes)


def random_rows(seed, *sizes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(ROWS, n)).astype(np.float32) for n in sizes]


def keys_of(seed):
    return jax.random.split(jax.random.key(seed), ROWS)


def couplings(params, dim, context, bijectors):
    """Each coupling's net as layers of (weight, bias), and the dimensions it moves.

    The moved dimensions are hidden from the net, and its outputs for the others are dropped: only
    the rest of its first and last layer is given here.
    """
    masks = np.asarray(coupling_masks(dim, bijectors), bool)
    parts = []
    for net, mask in zip(params, masks, strict=True):
        net = jax.tree.map(np.asarray, net)
        moved, fixed = np.flatnonzero(mask), np.flatnonzero(~mask)
        weights, biases = list(net.weights), list(net.biases)
        weights[0] = weights[0][np.concatenate([fixed, dim + np.arange(context, dtype=int)])]
        used = np.concatenate([moved, dim + moved])  # log-scales, then shifts
        weights[-1], biases[-1] = weights[-1][:, used], biases[-1][used]
        parts.append((list(zip(weights, biases)), fixed, moved))
    return parts


def normal_log_prob(z):
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)


def to_noise(parts, x, ctx):
    """Data to noise in plain float64, written from the paper's appendix B."""
    x = np.array(x, np.float64)
    for layers, fixed, moved in parts:
        h = np.concatenate([x[fixed], ctx])
        for i, (w, b) in enumerate(layers):
            h = h @ w.astype(np.float64) + b
            if i < len(layers) - 1:
                h = np.where(h > 0, h, 0.01 * h)
        log_scale, shift = np.tanh(h[: len(moved)]), h[len(moved) :]
        x[moved] = (x[moved] - shift) / np.exp(log_scale)
    return x


def numerical_jacobian(f, x, step=1e-6):
    columns = [(f(x + step * e) - f(x - step * e)) / (2 * step) for e in np.eye(len(x))]
    return np.stack(columns, -1)


@table
def test_log_prob_is_base_density_and_numerical_jacobian_of_the_inverse(dim, context, bijectors):
    flow, log_prob, _ = build(dim, context, bijectors)
    params = random_params(flow, 1)
    parts = couplings(params, dim, context, bijectors)
    x, ctx = random_rows(0, dim, context)
    got = log_prob(params, 2 * x, ctx)
    for i in range(8):
        invert = lambda y, c=ctx[i]: to_noise(parts, y, c)  # noqa: E731
        point = 2 * x[i].astype(np.float64)
        log_det = np.linalg.slogdet(numerical_jacobian(invert, point))[1]
        expected = normal_log_prob(invert(point)) + log_det
        assert got[i] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@table
def test_sample_inverts_the_map_to_noise(dim, context, bijectors):
    flow, _, sample = build(dim, context, bijectors)
    params = random_params(flow, 1)
    parts = couplings(params, dim, context, bijectors)
    (ctx,), keys = random_rows(1, context), keys_of(1)
    noise = jax.vmap(lambda key: jax.random.normal(key, (dim,)))(keys)
    samples = np.asarray(sample(params, keys, ctx))
    recovered = np.stack([to_noise(parts, x, c) for x, c in zip(samples, ctx)])
    np.testing.assert_allclose(recovered, noise, atol=1e-4, rtol=1e-4)
    assert abs(samples - noise).max() > 0.1


@pytest.mark.parametrize(("dim", "context", "bijectors"), TABLE[::3])
def test_identity_at_init(dim, context, bijectors):
    flow, log_prob, sample = build(dim, context, bijectors)
    params = flow.init(jax.random.key(0))
    (x, ctx), keys = random_rows(2, dim, context), keys_of(7)
    np.testing.assert_allclose(log_prob(params, x, ctx), normal_log_prob(x), atol=1e-5)
    noise = jax.vmap(lambda key: jax.random.normal(key, (dim,)))(keys)
    np.testing.assert_allclose(sample(params, keys, ctx), noise, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dim", "context", "bijectors"), [(1, 2, 4), (2, 0, 4)])
def test_integral_is_one(dim, context, bijectors):
    flow, _, sample = build(dim, context, bijectors)
    log_prob = jax.jit(jax.vmap(flow.log_prob, (None, 0, None)))
    for i in range(2):
        params = random_params(flow, i, 0.4)
        ctx = np.linspace(-1, 1, context, dtype=np.float32) * i
        samples = sample(params, keys_of(3), np.tile(ctx, (ROWS, 1)))
        low, high = samples.min(0), samples.max(0)
        margin = high - low
        n = 20_001 if dim == 1 else 501
        axes = [np.linspace(lo, hi, n) for lo, hi in zip(low - margin, high + margin)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dim)
        cell = math.prod(float(a[1] - a[0]) for a in axes)
        mass = np.exp(np.asarray(log_prob(params, grid, ctx), np.float64)).sum() * cell
        assert mass == pytest.approx(1, abs=3e-3)


@table
def test_log_bound_is_never_exceeded(dim, context, bijectors):
    flow, log_prob, sample = build(dim, context, bijectors)
    x, ctx = random_rows(0, dim, context)
    for seed, size in enumerate((0.1, 0.5, 1.0, 3.0, 10.0)):
        params = random_params(flow, seed, size)
        # The densest points of a flow are its modes: samples find them, random points do not.
        for points in (x, 1e-3 * x, sample(params, keys_of(0), ctx)):
            values = log_prob(params, points, ctx)
            assert not jnp.isnan(values).any()
            assert values.max() <= flow.log_bound + 1e-4


@table
def test_log_bound_is_reached(dim, context, bijectors):
    flow, log_prob, _ = build(dim, context, bijectors)
    params = jax.tree.map(
        lambda x: np.zeros(x.shape, np.float32), jax.eval_shape(flow.init, jax.random.key(0))
    )
    for net in params:  # log-scales at -1, shifts at 0, whatever the input
        net.biases[-1][:dim] = -30.0
    peak = log_prob(params, jnp.zeros((ROWS, dim)), jnp.ones((ROWS, context)))[0]
    assert peak == pytest.approx(flow.log_bound, abs=1e-4)


@pytest.mark.parametrize(("bijectors", "peak"), [(5, 24), (6, 64), (10, 3505)])
def test_log_bound_in_two_dimensions(bijectors, peak):
    bound = make_flow(2, 1, bijectors, HIDDEN).log_bound
    assert math.exp(bound) == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8])
def test_every_dimension_moves_equally_often_in_a_random_fixed_order(dim):
    seeds = [np.asarray(coupling_masks(dim, 6, seed)) for seed in range(20)]
    for masks in seeds:
        assert masks.shape == (6, dim)
        assert set(masks.ravel()) <= {0, 1}
        assert (masks.sum(0) == (6 if dim == 1 else 3)).all()
        if dim > 1:  # each pair moves every dimension once, about half of them at a time
            assert (masks[::2] + masks[1::2] == 1).all()
            assert (abs(2 * masks.sum(1) - dim) <= 1).all()
    np.testing.assert_array_equal(coupling_masks(dim, 6, 4), seeds[4])
    if dim > 1:  # other seeds give other orders, in every pair
        for i in range(0, 6, 2):
            assert len({tuple(masks[i]) for masks in seeds}) > 1


def conditional_modes(key):
    """Two Gaussians whose distance and width depend on the context."""
    key_c, key_which, key_x = jax.random.split(key, 3)
    ctx = jax.random.uniform(key_c, (128, 1), minval=-1)
    half = jnp.concatenate([1 + 0.5 * ctx, jnp.sin(2 * ctx)], -1)
    std = 0.3 * jnp.exp(0.5 * ctx)
    centre = jnp.stack([-half, half], 1)  # [128, mode, 2]
    which = jax.random.bernoulli(key_which, 0.5, (128,)).astype(int)
    x = centre[jnp.arange(128), which] + std * jax.random.normal(key_x, (128, 2))
    each = normal_log_prob((x[:, None] - centre) / std[:, None]) - 2 * jnp.log(std)
    return x, ctx, jax.nn.logsumexp(each, 1) + jnp.log(0.5)


def test_fits_a_known_conditional_density():
    flow, steps = make_flow(2, 1, 6, (16, 16)), 800
    optimiser = optax.adam(optax.cosine_decay_schedule(8e-3, steps))
    log_prob = jax.vmap(flow.log_prob, (None, 0, 0))

    def step(carry, key):
        params, opt = carry
        x, ctx, _ = conditional_modes(key)
        grads = jax.grad(lambda p: -log_prob(p, x, ctx).mean())(params)
        updates, opt = optimiser.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), None

    @jax.jit
    def fit(key):
        params = flow.init(key)
        (params, _), _ = jax.lax.scan(
            step, (params, optimiser.init(params)), jax.random.split(key, steps)
        )
        x, ctx, truth = jax.vmap(conditional_modes)(jax.random.split(jax.random.key(99), 40))
        return (truth - jax.vmap(log_prob, (None, 0, 0))(params, x, ctx)).mean()

    divergence = fit(jax.random.key(0))  # Kullback-Leibler, from the truth to the flow
    assert -0.005 < divergence < 0.07


def as_flowjax(parts, dim, context):
    """The same weights in FlowJAX's own couplings: noise to data, the last coupling first."""
    bounded = Parameterize(lambda s: jnp.exp(jnp.tanh(s)), jnp.zeros(()))
    affine = eqx.tree_at(lambda a: a.scale, Affine(), bounded)
    layers = []
    for net, fixed, moved in parts:
        coupling = Coupling(
            jax.random.key(0),
            transformer=affine,
            untransformed_dim=len(fixed),
            dim=dim,
            cond_dim=context,
            nn_width=HIDDEN[0],
            nn_depth=len(HIDDEN),
            nn_activation=lambda h: jax.nn.leaky_relu(h, 0.01),
        )
        # FlowJAX's conditioner gives shift and scale of one dimension after the other.
        n = len(moved)
        paired = np.stack([n + np.arange(n), np.arange(n)], 1).ravel()
        *hidden, (w, b) = net
        coupling = eqx.tree_at(
            lambda c: [x for layer in c.conditioner.layers for x in (layer.weight, layer.bias)],
            coupling,
            [x for w, b in [*hidden, (w[:, paired], b[paired])] for x in (w.T, b)],
        )
        order = np.concatenate([fixed, moved])
        layers.append([Permute(order), coupling, Permute(np.argsort(order))])
    return Transformed(
        StandardNormal((dim,)), Chain([part for layer in reversed(layers) for part in layer])
    )


@pytest.mark.parametrize(("dim", "context", "bijectors"), [(1, 2, 4), (3, 2, 6)])
def test_agrees_with_flowjax(dim, context, bijectors):
    flow, log_prob, sample = build(dim, context, bijectors)
    params = random_params(flow, 1)
    twin = as_flowjax(couplings(params, dim, context, bijectors), dim, context)
    (x, ctx), keys = random_rows(2, dim, context), keys_of(2)

    expected = jax.jit(jax.vmap(twin.log_prob))(2 * x, ctx)
    np.testing.assert_allclose(log_prob(params, 2 * x, ctx), expected, rtol=1e-5, atol=1e-5)

    noise = jax.vmap(lambda k: jax.random.normal(k, (dim,)))(keys)
    expected = jax.jit(jax.vmap(twin.bijection.transform))(noise, ctx)
    np.testing.assert_allclose(sample(params, keys, ctx), expected, rtol=1e-5, atol=1e-5)
