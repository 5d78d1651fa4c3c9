"""The flow is a density: exact Jacobian, exact inverse, mass one, a largest value that holds."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flowjax.bijections import Affine, Chain, Coupling, Permute
from flowjax.distributions import StandardNormal, Transformed
from paramax import Parameterize

from uvd.core.flows import coupling_masks, make_flow
from uvd.core.policy import MLP

# (dim, context, bijectors): no context, no other half, odd halves, odd numbers of couplings
TABLE = [(1, 0, 3), (1, 2, 4), (2, 0, 4), (2, 3, 5), (3, 0, 5), (3, 2, 6), (5, 4, 6)]
HIDDEN = (8, 8)
table = pytest.mark.parametrize(("dim", "context", "bijectors"), TABLE)


def build(dim, context, bijectors):
    return make_flow(dim, context, bijectors, HIDDEN)


def wild(flow, seed, size=0.5):
    """Parameters that are nothing special: the zero-initialised layers filled too."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(flow.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(scale=size, size=x.shape).astype(np.float32), shapes)


def couplings(params, dim, context, bijectors):
    """Each coupling's net as layers of (weight, bias), and the dimensions it moves.

    What is moved is hidden from the net, and what it says of the others is dropped: only the rest
    of its first and last layer is given here.
    """
    masks = np.asarray(coupling_masks(dim, bijectors), bool)
    if isinstance(params, MLP):  # stacked
        params = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(bijectors)]
    parts = []
    for net, mask in zip(params, masks, strict=True):
        net = jax.tree.map(np.asarray, net)
        moved, kept = np.flatnonzero(mask), np.flatnonzero(~mask)
        weights, biases = list(net.weights), list(net.biases)
        weights[0] = weights[0][np.concatenate([kept, dim + np.arange(context, dtype=int)])]
        told = np.concatenate([moved, dim + moved])  # log-scales, then shifts
        weights[-1], biases[-1] = weights[-1][:, told], biases[-1][told]
        parts.append((list(zip(weights, biases)), kept, moved))
    return parts


def normal_log_prob(z):
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)


def push(flow, params, z, ctx):
    """The sampling map itself, noise to data: the noise goes in where the key belongs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "normal", lambda key, shape: key)
        return flow.sample(params, z, ctx)


def to_noise(parts, x, ctx):
    """Data to noise in plain float64, written from the paper's appendix B."""
    x = np.array(x, np.float64)
    for layers, kept, moved in parts:
        h = np.concatenate([x[kept], ctx])
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
    flow = build(dim, context, bijectors)
    params = wild(flow, 1)
    parts = couplings(params, dim, context, bijectors)
    rng = np.random.default_rng(0)
    x, ctx = 2 * rng.normal(size=(8, dim)), rng.normal(size=(8, context))
    x, ctx = x.astype(np.float32), ctx.astype(np.float32)
    got = jax.jit(jax.vmap(flow.log_prob, (None, 0, 0)))(params, x, ctx)
    for i in range(len(x)):
        invert = lambda y, c=ctx[i]: to_noise(parts, y, c)  # noqa: E731
        log_det = np.linalg.slogdet(numerical_jacobian(invert, x[i].astype(np.float64)))[1]
        expected = normal_log_prob(invert(x[i])) + log_det
        assert got[i] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@table
def test_sample_and_log_prob_are_inverse(dim, context, bijectors):
    flow = build(dim, context, bijectors)
    params = wild(flow, 1)
    parts = couplings(params, dim, context, bijectors)
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=(16, dim)), jnp.float32)
    ctx = jnp.asarray(rng.normal(size=(16, context)), jnp.float32)
    x = jax.jit(jax.vmap(lambda z, c: push(flow, params, z, c)))(z, ctx)
    recovered = np.stack([to_noise(parts, a, np.asarray(c)) for a, c in zip(x, ctx)])
    np.testing.assert_allclose(recovered, z, atol=1e-4, rtol=1e-4)

    jacobian = jax.jit(jax.vmap(jax.jacfwd(lambda z, c: push(flow, params, z, c))))(z, ctx)
    density = normal_log_prob(z) - jnp.linalg.slogdet(jacobian)[1]
    got = jax.jit(jax.vmap(flow.log_prob, (None, 0, 0)))(params, x, ctx)
    np.testing.assert_allclose(got, density, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("dim", "context", "bijectors"), TABLE[::3])
def test_identity_at_init(dim, context, bijectors):
    flow = build(dim, context, bijectors)
    params = flow.init(jax.random.key(0))
    ctx = jnp.arange(context) / 3
    x = jnp.linspace(-2, 2, dim)
    assert flow.log_prob(params, x, ctx) == pytest.approx(float(normal_log_prob(x)), abs=1e-5)
    key = jax.random.key(7)
    np.testing.assert_array_equal(flow.sample(params, key, ctx), jax.random.normal(key, (dim,)))


@pytest.mark.parametrize(("dim", "context", "bijectors"), [c for c in TABLE if c[0] < 3])
def test_integral_is_one(dim, context, bijectors):
    flow = build(dim, context, bijectors)
    log_prob = jax.jit(jax.vmap(flow.log_prob, (None, 0, None)))
    sample = jax.jit(jax.vmap(flow.sample, (None, 0, None)))
    keys = jax.random.split(jax.random.key(3), 4000)
    for i in range(3):
        params = wild(flow, i, 0.4)
        ctx = np.linspace(-1, 1, context, dtype=np.float32) * i
        samples = sample(params, keys, ctx)
        low, high = samples.min(0), samples.max(0)
        margin = 0.5 * (high - low)
        n = 20_001 if dim == 1 else 501
        axes = [np.linspace(lo, hi, n) for lo, hi in zip(low - margin, high + margin)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dim)
        cell = math.prod(float(a[1] - a[0]) for a in axes)
        mass = np.exp(np.asarray(log_prob(params, grid, ctx), np.float64)).sum() * cell
        assert mass == pytest.approx(1, abs=3e-3)


@table
def test_log_bound_is_never_exceeded(dim, context, bijectors):
    flow = build(dim, context, bijectors)
    log_prob = jax.jit(jax.vmap(flow.log_prob, (None, 0, 0)))
    sample = jax.jit(jax.vmap(flow.sample, (None, 0, 0)))
    keys = jax.random.split(jax.random.key(0), 256)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, dim)).astype(np.float32)
    ctx = rng.normal(size=(256, context)).astype(np.float32)
    for seed, size in enumerate((0.1, 0.5, 1.0, 3.0, 10.0)):
        params = wild(flow, seed, size)
        # The densest points of a flow are its modes: samples find them, random points do not.
        for points in (x, 1e-3 * x, sample(params, keys, ctx)):
            values = log_prob(params, points, ctx)
            assert not jnp.isnan(values).any()
            assert values.max() <= flow.log_bound + 1e-4


@table
def test_log_bound_is_reached(dim, context, bijectors):
    flow = build(dim, context, bijectors)

    params = jax.tree.map(jnp.zeros_like, flow.init(jax.random.key(0)))
    # Log-scales at -1, shifts at 0, whatever the input.
    params = jax.tree.map(
        lambda x: x.at[..., :dim].set(-30.0) if x.shape[-1] == 2 * dim else x, params
    )
    peak = flow.log_prob(params, jnp.zeros(dim), jnp.ones(context))
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


def conditional_gaussian(key):
    key_c, key_x = jax.random.split(key)
    ctx = jax.random.uniform(key_c, (256, 2), minval=-1)
    mean = jnp.stack([jnp.sin(2 * ctx[:, 0]), ctx[:, 1] - ctx[:, 0]], -1)
    std = jnp.stack([0.2 * jnp.exp(ctx[:, 1]), jnp.full(len(ctx), 0.5)], -1)
    z = jax.random.normal(key_x, mean.shape)
    return mean + std * z, ctx, normal_log_prob(z) - jnp.log(std).sum(-1)


def two_modes(key):
    key_which, key_x = jax.random.split(key)
    centre, std = jnp.array([[-1.0, -0.5], [1.0, 0.5]]), 0.4
    which = jax.random.bernoulli(key_which, 0.5, (256,)).astype(int)
    x = centre[which] + std * jax.random.normal(key_x, (256, 2))
    each = normal_log_prob((x[:, None] - centre) / std) - 2 * jnp.log(std)
    return x, jnp.zeros((256, 0)), jax.nn.logsumexp(each, 1) + jnp.log(0.5)


@pytest.mark.parametrize(
    ("data", "context", "bijectors", "steps", "gap"),
    [(conditional_gaussian, 2, 4, 600, 0.03), (two_modes, 0, 6, 1000, 0.06)],
)
def test_fits_known_densities(data, context, bijectors, steps, gap):
    flow = make_flow(2, context, bijectors, (32, 32))
    optimiser = optax.adam(optax.cosine_decay_schedule(4e-3, steps))
    log_prob = jax.vmap(flow.log_prob, (None, 0, 0))

    def step(carry, key):
        params, opt = carry
        x, ctx, _ = data(key)
        grads = jax.grad(lambda p: -log_prob(p, x, ctx).mean())(params)
        updates, opt = optimiser.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), None

    @jax.jit
    def fit(key):
        params = flow.init(key)
        (params, _), _ = jax.lax.scan(
            step, (params, optimiser.init(params)), jax.random.split(key, steps)
        )
        x, ctx, truth = jax.vmap(data)(jax.random.split(jax.random.key(99), 40))
        return (truth - jax.vmap(log_prob, (None, 0, 0))(params, x, ctx)).mean()

    divergence = fit(jax.random.key(0))  # Kullback-Leibler, from the truth to the flow
    assert -0.005 < divergence < gap


def as_flowjax(parts, dim, context):
    """The same weights in FlowJAX's own couplings: noise to data, the last coupling first."""
    bounded = Parameterize(lambda s: jnp.exp(jnp.tanh(s)), jnp.zeros(()))
    affine = eqx.tree_at(lambda a: a.scale, Affine(), bounded)
    layers = []
    for net, kept, moved in parts:
        coupling = Coupling(
            jax.random.key(0),
            transformer=affine,
            untransformed_dim=len(kept),
            dim=dim,
            cond_dim=context,
            nn_width=HIDDEN[0],
            nn_depth=len(HIDDEN),
            nn_activation=lambda h: jax.nn.leaky_relu(h, 0.01),
        )
        # FlowJAX's conditioner tells shift and scale of one dimension after the other.
        n = len(moved)
        paired = np.stack([n + np.arange(n), np.arange(n)], 1).ravel()
        *hidden, (w, b) = net
        coupling = eqx.tree_at(
            lambda c: [x for layer in c.conditioner.layers for x in (layer.weight, layer.bias)],
            coupling,
            [x for w, b in [*hidden, (w[:, paired], b[paired])] for x in (w.T, b)],
        )
        order = np.concatenate([kept, moved])
        layers.append([Permute(order), coupling, Permute(np.argsort(order))])
    return Transformed(
        StandardNormal((dim,)), Chain([part for layer in reversed(layers) for part in layer])
    )


@pytest.mark.parametrize(("dim", "context", "bijectors"), [c for c in TABLE if c[1]])
def test_agrees_with_flowjax(dim, context, bijectors):
    flow = build(dim, context, bijectors)
    params = wild(flow, 1)
    twin = as_flowjax(couplings(params, dim, context, bijectors), dim, context)
    keys = jax.random.split(jax.random.key(2), 32)
    ctx = jax.random.normal(keys[0], (32, context))
    x = 2 * jax.random.normal(keys[1], (32, dim))

    expected = jax.jit(jax.vmap(twin.log_prob))(x, ctx)
    got = jax.jit(jax.vmap(flow.log_prob, (None, 0, 0)))(params, x, ctx)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    noise = jax.vmap(lambda k: jax.random.normal(k, (dim,)))(keys)
    expected = jax.jit(jax.vmap(twin.bijection.transform))(noise, ctx)
    got = jax.jit(jax.vmap(flow.sample, (None, 0, 0)))(params, keys, ctx)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
