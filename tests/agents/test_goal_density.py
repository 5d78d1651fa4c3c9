"""The density of goals: units and bounds in closed form, and what each sample of its fit is."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from small_tasks import KEY, compiled, draw, filled, goal_spec, make_ring
from uvd.agents.futures import SHORT_TERM, Context, after_outcome, long_term
from uvd.agents.goal_density import DensityConfig, GoalDensity
from uvd.agents.goal_kernel import GoalKernel
from uvd.core.errors import UserError
from uvd.core.flows import coupling_masks

SPEC = goal_spec()
CONFIG = DensityConfig(flow_hidden=(8, 8), bijectors=4, smoothing_half=0)
N = 16
STEP = jnp.asarray(0)


def make(spec=SPEC, **settings):
    return GoalDensity(replace(CONFIG, **settings), spec, "adam", 0.98)


def random_flow(density, size=1.5, seed=0):
    shapes = jax.eval_shape(density.flow.init, KEY)
    return jax.tree.map(lambda x: size * x, filled(shapes, seed))


def gaussian_flow(density, mean, std):
    """Parameters that make the flow an exact Gaussian, whatever the context."""
    params = jax.tree.map(jnp.zeros_like, random_flow(density))
    masks = coupling_masks(density.kernel.dim, len(params), 0)
    log_scale = np.arctanh(np.log(std) / masks.sum(0))

    def coupling(net, i):
        shift = (
            np.asarray(mean) if i < 2 else np.zeros(density.kernel.dim)
        )  # each dimension's first move
        out = jnp.asarray(np.concatenate([log_scale, shift]), jnp.float32)
        return net._replace(biases=(*net.biases[:-1], out))

    return tuple(coupling(net, i) for i, net in enumerate(params))


def contexts(seed=0, n=N):
    """Where the density looks from, and goals."""
    rng = np.random.default_rng(seed)
    obs, action, achieved, intended, goal = (jnp.asarray(draw(rng, n, d)) for d in (3, 2, 3, 3, 3))
    return Context(obs, action, achieved, intended), goal


CONTEXT, GOAL = contexts()


@pytest.fixture(scope="module")
def density():
    return make()


@pytest.fixture(scope="module")
def log_f(density):
    """log F of a random flow, by context, goal and time code."""
    flow = random_flow(density)
    return compiled(lambda *args: density.log_prob(flow, SPEC.norm, *args))


def test_goals_are_relative_to_what_is_achieved_and_dead_dimensions_are_dropped(density, log_f):
    code = jnp.zeros((N, 1))
    before = log_f(CONTEXT, GOAL, code)
    moved = CONTEXT._replace(achieved=CONTEXT.achieved + 2)
    np.testing.assert_allclose(log_f(moved, GOAL + 2, code), before, rtol=1e-4, atol=1e-4)
    other = GOAL + np.float32([0, 9, 0])  # column 1 does not vary
    np.testing.assert_allclose(log_f(CONTEXT, other, code), before, rtol=1e-5)
    assert abs(log_f(CONTEXT, GOAL + np.float32([0, 0, 1]), code) - before).min() > 1e-3
    assert density.kernel.dim == 2

    flow = random_flow(density)
    sample = compiled(lambda c: density.sample(flow, SPEC.norm, KEY, c, code + 2))
    drawn = sample(CONTEXT)
    np.testing.assert_array_equal(drawn[:, 1], CONTEXT.achieved[:, 1])
    assert abs(drawn - CONTEXT.achieved)[:, [0, 2]].min() > 1e-4
    moved = CONTEXT._replace(achieved=CONTEXT.achieved + 3)
    np.testing.assert_allclose(sample(moved), drawn + 3, rtol=1e-4, atol=1e-4)


def test_the_density_reads_state_action_and_time(log_f):
    code = jnp.ones((N, 1))
    before = log_f(CONTEXT, GOAL, code)
    others = (
        (CONTEXT._replace(obs=CONTEXT.obs + 1), code),
        (CONTEXT._replace(action=-CONTEXT.action), code),
        (CONTEXT, code + 1),
    )
    for context, time_code in others:
        assert abs(log_f(context, GOAL, time_code) - before).max() > 1e-3


def test_noise_moves_goals_in_normalised_units():
    spec = goal_spec(goal_scale=(2.0, 1.0, 0.5))
    density, noise = make(spec), 0.3 * GOAL[:, :2]
    flow = random_flow(density)
    log_f = compiled(lambda *args: density.log_prob(flow, spec.norm, CONTEXT, *args))
    moved = GOAL + noise @ np.float32([[2, 0, 0], [0, 0, 0.5]])
    found = log_f(GOAL, SHORT_TERM, noise)
    np.testing.assert_allclose(found, log_f(moved, SHORT_TERM, 0.0), rtol=1e-4, atol=1e-4)
    assert abs(found - log_f(GOAL, SHORT_TERM, 0.0)).max() > 0.1


@pytest.mark.parametrize(("lookahead", "reads"), [(1, False), (4, True)])
def test_the_pursued_goal_matters_from_the_second_step_on(lookahead, reads):
    density = make(lookahead=lookahead)
    flow = random_flow(density)

    @compiled
    def difference(code):
        one, other = (
            density.log_prob(flow, SPEC.norm, CONTEXT._replace(intended=x), GOAL, code)
            for x in (CONTEXT.intended, CONTEXT.intended + 1)
        )
        return abs(one - other).max()

    assert (difference(jnp.full((N, 1), SHORT_TERM)) > 1e-3) == reads
    assert difference(jnp.full((N, 1), long_term(jnp.asarray(1)))) > 1e-3


def test_the_kernel_is_round_where_success_is_a_distance():
    spec = goal_spec(goal_scale=(1.0, 9.0, 3.0))
    np.testing.assert_array_equal(make(spec).kernel.unit, [1, 3])
    ball = replace(spec, radius=0.5)
    np.testing.assert_array_equal(make(ball).kernel.unit, [2, 2])
    away = jnp.array([[0.6, 0, 0], [0, 0, 0.6], [0, 0.6, 0]])
    found = jnp.exp(make(ball).kernel.log_prob(away, jnp.zeros((3, 3)), STEP))
    peak = 1 / (2 * np.pi * 0.3**2)
    off = peak * np.exp(-((0.6 / 2) ** 2) / 2 / 0.3**2)
    np.testing.assert_allclose(found, [off, off, peak], rtol=1e-5)


def test_units_of_the_goal_do_not_matter():
    """The same world in millimetres: c F is the same, and samples are the same places."""
    results = []
    for factor in (np.ones(3, np.float32), np.array([1000.0, 0.01, 7.0], np.float32)):
        density = make(goal_spec(goal_scale=tuple(factor * [2.0, 1.0, 0.5])))
        norm = goal_spec(goal_scale=tuple(factor * [2.0, 1.0, 0.5])).norm
        context = CONTEXT._replace(
            achieved=CONTEXT.achieved * factor, intended=CONTEXT.intended * factor
        )
        flow, code = random_flow(density, 0.7), jnp.full((N, 1), 2.0)

        @compiled
        def both(context, goal, norm, density=density, flow=flow, code=code):
            log_f = density.log_prob(flow, norm, context, goal)
            return density.scaled(log_f, STEP), density.sample(flow, norm, KEY, context, code)

        value, drawn = both(context, GOAL * factor, norm)
        results.append((value, drawn / factor))
    assert results[0][0].max() > 1e-3
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("std", "scale"), [(0.3, 1.0), (0.15, 2.5)])
def test_a_perfect_density_is_the_kernel(std, scale):
    """Displacement m plus the smoothing's noise: c F = scale exp(-|g - achieved - m|² / 2 std²)."""
    mean, spec = [0.2, -0.1], goal_spec(goal_scale=(2.0, 1.0, 0.5))
    density = make(spec, smoothing=std, density_scale=scale)
    flow = gaussian_flow(density, mean, std)
    goal = CONTEXT.achieved + 0.3 * GOAL
    value = compiled(
        lambda: density.scaled(density.log_prob(flow, spec.norm, CONTEXT, goal), STEP)
    )()
    gap = np.asarray(goal - CONTEXT.achieved)[:, [0, 2]] / [2.0, 0.5] - mean
    expected = scale * np.exp(-(gap**2).sum(1) / std**2 / 2)
    np.testing.assert_allclose(value, expected, rtol=2e-3, atol=1e-6)
    assert density.bound == pytest.approx(scale)


def test_the_smoothing_narrows_and_the_unit_follows():
    density = make(replace(SPEC, radius=0.02), smoothing=0.4, smoothing_half=100)
    end = density.kernel.end
    assert end < 0.05
    for step, width in [(0, 0.4), (50, 0.4 / 2**0.5), (100, 0.2), (200, 0.1), (1000, end)]:
        assert float(density.kernel.width(step)) == pytest.approx(width, rel=1e-5)
        assert float(density.kernel.long_width(step)) == pytest.approx(max(width, 0.05), rel=1e-5)
        # A density of 0.1 in units of the peak of this width's kernel
        value = density.scaled(jnp.log(0.1), step)
        assert float(value) == pytest.approx(min(1, 0.1 * 2 * math.pi * width**2), rel=1e-4)
    stays = make(smoothing=0.4, smoothing_half=0)
    assert float(stays.kernel.width(STEP + 1000)) == pytest.approx(0.4)


def test_the_smoothing_ends_at_four_fifths_of_the_success_radius():
    spec = replace(goal_spec(goal_scale=(2.0, 2.0, 2.0)), radius=0.12)
    for some, smoothing, half, end in (
        (spec, 0.4, 100, 0.8 * 0.12 / 2),
        (spec, 0.4, 0, 0.4),
        (SPEC, 0.4, 100, 0.08),  # no distance: a tenth
        (spec, 0.01, 100, 0.01),
    ):
        assert GoalKernel(smoothing, half, some).end == pytest.approx(end)


@pytest.mark.parametrize("half", [0, 100])
def test_without_smoothing_the_flow_sets_the_bound(half):
    density = make(smoothing=0.0, smoothing_half=half, density_scale=0.5)
    log_bound = density.flow.log_bound
    assert density.bound == pytest.approx(0.5 * math.exp(log_bound), rel=1e-5)
    value = density.scaled(jnp.array([0.0, log_bound, log_bound + 9]), STEP)
    np.testing.assert_allclose(value, [0.5, density.bound, density.bound], rtol=1e-5)
    assert density.kernel.width(STEP) == 0


def test_no_density_counts_as_more_than_its_bound():
    density = make(smoothing=0.5, density_scale=2.0)
    log_peak = -math.log(2 * math.pi * 0.25)
    value = density.scaled(log_peak + jnp.array([-1.0, 0.0, 3.0, 50.0]), STEP)
    np.testing.assert_allclose(value, [2 * math.exp(-1), 2, 2, 2], rtol=1e-5)


def test_goals_are_blurred_by_what_the_smoothing_has_left_to_lose():
    kernel = GoalKernel(0.28, 100, goal_spec(goal_scale=(2.0, 1.0, 0.5)))
    for step, width in ((0, 0.2), (100, 0.06), (10_000, 0.0)):
        noise = np.asarray(kernel.blur(jnp.ones((4000, 3)), KEY, step)) - 1
        np.testing.assert_allclose(noise.std(0), np.array([2, 0, 0.5]) * width, rtol=0.05)


@pytest.mark.parametrize(("radius", "couplings"), [(0.15, 6), (0.013, 10), (0.001, 16)])
def test_couplings_follow_the_narrowest_kernel(radius, couplings):
    density = make(replace(SPEC, radius=radius), bijectors=0, smoothing_half=100)
    assert len(random_flow(density)) == couplings
    assert math.exp(-couplings / 2) <= 0.8 * radius


HORIZON = 8


def counting_ring(episodes):
    """Every number tells its episode and step: 100 e + t."""
    mark = (100.0 * np.arange(episodes)[:, None] + np.arange(HORIZON + 1))[..., None]
    return make_ring(
        np.repeat(mark, 3, -1), np.repeat(mark[:, :-1], 2, -1), mark, -np.ones((episodes, 1))
    )


class LinearDensity(GoalDensity):
    """log F is linear in the parameters: a step of plain gradient ascent gives back each sample."""

    def log_prob(self, flow, norm, context, goal, time_code=SHORT_TERM, noise=0.0):
        return (flow * jnp.concatenate([*context, goal, time_code, noise], -1)).sum(-1)


def fit_samples(config, long_spans, after_spans, n=6000):
    """The samples of one step of the fit."""
    density = LinearDensity(config, goal_spec(goal_scale=(1.0,), varying=(0,)), "adam", 0.7)
    density.optimiser = optax.sgd(n)  # the loss is a mean
    flow, ring = jnp.zeros((n, 3 + 2 + 1 + 1 + 1 + 1 + 1)), counting_ring(10)
    norm = goal_spec(goal_scale=(1.0,)).norm
    fit = compiled(
        lambda key: density.fit(
            flow, density.optimiser.init(flow), norm, ring, key, STEP, n, long_spans, after_spans
        )[0]
    )
    x = np.asarray(fit(jax.random.key(1)), np.float64)
    return x[:, :3], x[:, 3:5], *x[:, 5:].T


@pytest.mark.parametrize(
    ("offsets", "long_spans", "after_spans"),
    [("geometric", False, False), ("uniform", True, False), ("geometric", True, True)],
)
def test_the_density_learns_from_the_right_futures(offsets, long_spans, after_spans):
    """Short term: offsets 1..T from the newest transitions. Long term: all that is left, if goals
    are drawn from it; for balanced goals half of these are seen from s', unless the goal was
    achieved there."""
    config = replace(CONFIG, lookahead=3, offsets=offsets, short=40, smoothing=0.02)
    samples = fit_samples(config, long_spans, after_spans)
    obs, action, achieved, intended, goal, code, noise = samples
    np.testing.assert_allclose(obs, achieved[:, None].repeat(3, 1), rtol=1e-5)
    after, goal = code < -0.5, goal.round()
    start = achieved.round() - after
    np.testing.assert_allclose(action, start[:, None].repeat(2, 1), rtol=1e-5)
    assert set(start) == {100.0 * e + t for e in range(5, 10) for t in range(HORIZON)}
    np.testing.assert_allclose(intended, -1, rtol=1e-5)
    left, offset = HORIZON - start % 100, goal - start
    long = abs(code) > 0.5
    assert abs(noise.mean()) < 0.02
    assert noise[~long].std() == pytest.approx(0.02, rel=0.05)
    assert not long_spans or noise[long].std() == pytest.approx(0.05, rel=0.05)
    assert long.mean() == (0.5 if long_spans else 0)
    assert (code[~long] == SHORT_TERM).all()
    ahead = long & ~after
    np.testing.assert_allclose(code[ahead], 1 + np.log(offset[ahead]) / 2, rtol=1e-4)
    np.testing.assert_allclose(code[after], -1 - np.log(offset[after] - 1) / 2, rtol=1e-4)
    share = after[long & (offset > 1)].mean() if long_spans else 0.0
    assert share == pytest.approx(0.5 if after_spans else 0.0, abs=0.03)
    for which, limit, gamma in ((~long, 3, 0.7 if offsets == "geometric" else 1), (long, 99, 1)):
        for n in range(1, HORIZON + 1) if which.any() else ():
            last = min(limit, n)
            counts = np.bincount(offset[which & (left == n)].astype(int), minlength=last + 1)
            assert counts[0] == 0
            assert len(counts) == last + 1
            weights = float(gamma) ** np.arange(last)
            expected = counts.sum() * weights / weights.sum()
            assert last == 1 or stats.chisquare(counts[1:], expected).pvalue > 1e-4


def test_the_loss_of_the_fit_is_minus_the_mean_log_likelihood():
    """Of a fresh flow, a standard normal density, for one transition whose displacement is known;
    its step goes down that loss by the learning rate."""
    spec = goal_spec(goal_scale=(2.0,), varying=(0,))
    ring = make_ring(np.zeros((1, 2, 3)), np.zeros((1, 1, 2)), [[[0.5], [1.7]]], [[0.0]])
    density = make(spec, smoothing=0.0, flow_lr=0.01)
    flow = jax.tree.map(jnp.zeros_like, random_flow(density))
    fit = compiled(
        lambda flow, opt: density.fit(flow, opt, spec.norm, ring, KEY, STEP, 4, False, False)
    )
    after, opt, metrics = fit(flow, density.optimiser.init(flow))
    loss = 0.5 * ((1.7 - 0.5) / 2) ** 2 + 0.5 * math.log(2 * math.pi)
    assert float(metrics["density/loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(metrics["density/log_f_short"]) == pytest.approx(-loss, rel=1e-5)
    # The shift of the first coupling goes towards the goal.
    np.testing.assert_allclose(after[0].biases[-1][1], 0.01, rtol=1e-4)
    assert float(fit(after, opt)[2]["density/loss"]) < loss


def test_the_fit_is_regularised():
    """Without a gradient of the likelihood, L2 alone draws parameters to zero."""
    spec = goal_spec(goal_scale=(2.0,), varying=(0,))
    ring = make_ring(np.zeros((1, 2, 3)), np.zeros((1, 1, 2)), np.zeros((1, 2, 1)), [[0.0]])
    density = make(spec, smoothing=0.0, flow_lr=0.01, l2=0.5)
    flow = jax.tree.map(jnp.zeros_like, random_flow(density))
    first = flow[0]._replace(weights=(flow[0].weights[0] + 1.0, *flow[0].weights[1:]))
    flow = (first, *flow[1:])
    fit = compiled(
        lambda flow, opt: density.fit(flow, opt, spec.norm, ring, KEY, STEP, 4, False, False)
    )
    after = fit(flow, density.optimiser.init(flow))[0]
    np.testing.assert_allclose(after[0].weights[0], 0.99, rtol=1e-5)


def test_time_codes_are_apart():
    offsets = np.arange(1, 200)
    codes = np.concatenate([[SHORT_TERM], long_term(offsets), after_outcome(offsets)])
    assert np.diff(np.sort(codes)).min() > 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 0.0, "bijectors": 0}, "without smoothing, bijectors must be given"),
        ({"offsets": "even"}, "unknown offsets 'even'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        replace(CONFIG, **settings)
