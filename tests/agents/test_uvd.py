"""UVD's parts by hand: units and bounds of the density, targets, values."""

import ast
import dataclasses
import inspect
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from uvd.agents import Spec
from uvd.agents.her import HERConfig
from uvd.agents.td3 import HEADS, TD3Config, critic_outputs, init_td3
from uvd.agents.uvd import (
    COMBINE,
    SHORT,
    Signals,
    UVDConfig,
    after_horizon,
    choose_goals,
    density_step,
    goal_unit,
    long_horizon,
    make_density,
    make_target,
    make_uvd,
    smoothing_end,
)
from uvd.core.flows import coupling_masks
from uvd.core.policy import Norm
from uvd.core.replay import Batch, Episode, fetch, init_ring, insert_all

SMALL = TD3Config(hidden=(16, 16), batch=64, critic_head="sigmoid", critic_start=0.5)
CONFIG = UVDConfig(SMALL, flow_hidden=(8, 8), bijectors=4, smoothing_half=0)


def make_spec(obs=3, action=2, goal_scale=(1.0, 1.0, 1.0), live=(0, 2)):
    goal = len(goal_scale)
    norm = Norm(np.zeros(obs), np.ones(obs), np.zeros(goal), np.array(goal_scale))
    success = lambda achieved, goal: ((achieved - goal) ** 2).sum(-1) < 0.01  # noqa: E731
    return Spec(obs, action, goal, success, jax.tree.map(np.float32, norm), live)


def wild(density, size=0.5, seed=0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(density.flow.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(scale=size, size=x.shape), "f4"), shapes)


def points(n, *dims, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(n, d)), jnp.float32) for d in dims]


def signals(f=0.3, f_next=0.7, success=1.0, q=0.5, gamma=0.9, smooth=0.0):
    return Signals(lambda: f, lambda: f_next, lambda: success, q, gamma, smooth)


@pytest.mark.parametrize(
    ("combine", "given", "expected"),
    [
        ("sum", {}, 0.1 * 0.3 + 0.9 * 0.5),
        ("sum", {"f": 0.0}, 0.45),
        ("reward", {}, 0.1 * 1.0 + 0.9 * 0.5),
        ("reward", {"success": 0.0}, 0.45),
        ("max", {}, 0.45),
        ("max", {"f": 0.6}, 0.6),
        ("max", {"f": 0.6, "smooth": 0.5}, 0.5 * 0.45 + 0.5 * 0.6),
        ("max", {"f": 0.2, "smooth": 0.5}, 0.45),
        ("max-next", {}, 0.7),
        ("max-next", {"q": 0.8}, 0.72),
        ("max-next", {"smooth": 0.25}, 0.25 * 0.45 + 0.75 * 0.7),
        ("max-paper", {}, 0.9 * 0.7),
        ("max-paper", {"q": 0.8}, 0.9 * 0.8),
        ("max-paper", {"smooth": 0.25}, 0.9 * (0.25 * 0.5 + 0.75 * 0.7)),
        ("max-paper", {"q": 0.8, "smooth": 0.25}, 0.9 * 0.8),
    ],
)
def test_combine_by_hand(combine, given, expected):
    assert float(COMBINE[combine](signals(**given))) == pytest.approx(expected)


def test_every_combination_is_covered():
    assert set(COMBINE) == {"sum", "reward", "max", "max-next", "max-paper"}


def a_batch(n, spec, terminated=False):
    obs, action, next_obs, achieved, next_achieved, goal = points(
        n, spec.obs_dim, spec.action_dim, spec.obs_dim, *[spec.goal_dim] * 3
    )
    ended = jnp.full(n, terminated)
    return Batch(jnp.arange(n), obs, action, next_obs, achieved, next_achieved, goal, ended)


@pytest.mark.parametrize("combine", COMBINE)
@pytest.mark.parametrize("smoothing", [0.3, 0.0])
def test_targets_stay_within_their_bound(combine, smoothing):
    """Whatever the density and the critic say: peaks at the goal, tails, critics run away."""
    spec = make_spec()
    config = replace(
        CONFIG, combine=combine, smoothing=smoothing, density_scale=2.0, temporal_smoothing=0.1
    )
    density = make_density(config, spec)
    bound = 2.0 * (1.0 if smoothing else math.exp(density.flow.log_bound))
    assert float(density.bound) == pytest.approx(bound, rel=1e-5)
    head = HEADS["linear"](bound, 0.0)
    batch = a_batch(64, spec)
    goal = batch.achieved.at[16:].set(batch.goal[16:]).at[48:].mul(1e10)
    state = init_td3(SMALL, head, spec, jax.random.key(0))
    zero = jax.tree.map(jnp.zeros_like, wild(density))
    sharp = tuple(n._replace(biases=(*n.biases[:-1], n.biases[-1].at[:2].set(-30))) for n in zero)

    @jax.jit
    def targets(flow, q):
        biases = (*state.critic_target.biases[:-1], jnp.full((2, 1), q))
        says = state._replace(critic_target=state.critic_target._replace(biases=biases))
        make = make_target(config, spec, density, head, flow, jnp.asarray(0))
        return make(says, batch, goal, jax.random.key(0))

    for flow in (sharp, wild(density), wild(density, 30.0)):
        for q in (-1e6, 0.0, 1e6):
            target, metrics = targets(flow, q)
            assert jnp.isfinite(target).all()
            assert target.min() >= 0
            assert target.max() <= bound * (1 + 1e-6)
            if 0 < target.max() < bound * (1 - 1e-6):  # what is logged is before the clip
                np.testing.assert_allclose(
                    metrics["critic/target_over_bound_max"], target.max() / bound, atol=1e-6
                )


def test_a_density_sharper_than_the_kernel_counts_as_the_bound():
    """It cannot be true: so it is cut before it enters the sum, not after."""
    spec = make_spec()
    config = replace(CONFIG, combine="sum", smoothing=0.5, density_scale=2.0)
    density = make_density(config, spec)
    head = HEADS["sigmoid"](density.bound, 0.5)
    flow = gaussian_flow(2, 4, [0.0, 0.0], 0.2)(wild(density))
    batch = a_batch(8, spec, terminated=True)
    state = init_td3(SMALL, head, spec, jax.random.key(0))
    target_fn = make_target(config, spec, density, head, flow, jnp.asarray(0))
    target, _ = target_fn(state, batch, batch.achieved, jax.random.key(0))
    np.testing.assert_allclose(target, (1 - SMALL.gamma) * 2.0, rtol=1e-5)


def test_targets_read_the_density_at_the_right_place():
    """F(g | s, a, g) or F(g | s', a', g), over the short horizon, with the goal as intended one."""
    spec = make_spec()
    batch = a_batch(8, spec, terminated=True)
    goal = batch.goal + 1
    seen = []

    def spy(params, norm, obs, action, achieved, goal, intended, horizon):
        seen.append((params, obs, action, achieved, goal, intended, horizon))
        return jnp.full(len(obs), -1.0)

    head = HEADS["sigmoid"](1.0, 0.5)
    state = init_td3(SMALL, head, spec, jax.random.key(0))
    for combine in ("max", "max-next"):
        config = replace(CONFIG, combine=combine)
        density = make_density(config, spec)._replace(log_prob=spy)
        target_fn = make_target(config, spec, density, head, "flow", jnp.asarray(0))
        target, _ = target_fn(state, batch, goal, jax.random.key(0))
        # Ended, so the density stands alone: log F = -1 in units of a kernel of width 0.3; what
        # would come after the end counts for nothing.
        alone = 0.0 if combine == "max-next" else math.exp(-1) * 2 * math.pi * 0.3**2
        np.testing.assert_allclose(target, alone, rtol=1e-5)
    here, there = seen
    assert here[0] == there[0] == "flow"
    np.testing.assert_array_equal(here[1], batch.obs)
    np.testing.assert_array_equal(here[2], batch.action)
    np.testing.assert_array_equal(here[3], batch.achieved)
    np.testing.assert_array_equal(there[1], batch.next_obs)
    np.testing.assert_array_equal(there[3], batch.next_achieved)
    assert not np.allclose(there[2], batch.action)
    for call in seen:
        np.testing.assert_array_equal(call[4], goal)
        np.testing.assert_array_equal(call[5], goal)
        assert (call[6] == SHORT).all()


def test_density_is_relative_to_what_is_achieved_and_drops_dead_dimensions():
    spec = make_spec()
    density = make_density(CONFIG, spec)
    params = wild(density)
    later = long_horizon(jnp.asarray(7))
    obs, action, achieved, goal, intended = points(16, 3, 2, 3, 3, 3)
    flag = jnp.zeros((16, 1))

    @jax.jit
    def log_f(achieved, goal):
        return density.log_prob(params, spec.norm, obs, action, achieved, goal, intended, flag)

    before = log_f(achieved, goal)
    np.testing.assert_allclose(log_f(achieved + 2, goal + 2), before, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_f(achieved, goal.at[:, 1].add(9)), before, rtol=1e-5)
    assert abs(log_f(achieved, goal.at[:, 2].add(1)) - before).min() > 1e-3
    assert density.dim == 2

    key = jax.random.key(0)
    drawn = density.sample(params, spec.norm, key, obs, action, achieved, intended, later)
    np.testing.assert_array_equal(drawn[:, 1], achieved[:, 1])
    moved = density.sample(params, spec.norm, key, obs, action, achieved + 3, intended, later)
    np.testing.assert_allclose(moved, drawn + 3, rtol=1e-4, atol=1e-4)


def test_the_kernel_is_round_where_success_is_a_distance():
    spec = make_spec(goal_scale=(1.0, 9.0, 3.0), live=(0, 2))
    np.testing.assert_array_equal(goal_unit(spec), [1, 3])
    ball = dataclasses.replace(spec, radius=0.5)
    np.testing.assert_array_equal(goal_unit(ball), [2, 2])
    kernel = make_density(CONFIG, ball).log_kernel
    away = jnp.array([[0.6, 0, 0], [0, 0, 0.6], [0, 0.6, 0]])
    near = jnp.exp(kernel(away, jnp.zeros((3, 3)), 0.3))
    peak = 1 / (2 * np.pi * 0.3**2)
    away = np.exp(-0.045 / 0.09)  # (0.6 / 2)² / 2 / 0.3²
    np.testing.assert_allclose(near, [peak * away] * 2 + [peak], rtol=1e-5)


def test_units_of_the_goal_do_not_matter():
    """The same world in millimetres: c F is the same, and samples are the same places."""
    obs, action, achieved, goal, intended = points(16, 3, 2, 3, 3, 3)
    unit = jnp.array([1000.0, 0.01, 7.0])
    flag = jnp.zeros((16, 1))
    results = []
    for factor in (jnp.ones(3), unit):
        spec = make_spec(goal_scale=tuple(np.asarray(factor * jnp.array([2.0, 1.0, 0.5]))))
        density = make_density(CONFIG, spec)
        params, norm = wild(density), jax.tree.map(jnp.asarray, spec.norm)
        scaled = [x * factor for x in (achieved, goal, intended)]
        log_f = density.log_prob(params, norm, obs, action, *scaled, flag)
        drawn = density.sample(
            params,
            norm,
            jax.random.key(0),
            obs,
            action,
            scaled[0],
            scaled[2],
            long_horizon(jnp.asarray(7)),
        )
        results.append((log_f + density.log_scale(jnp.asarray(0)), drawn / factor))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("horizon", "reads"), [(1, False), (4, True)])
def test_what_is_pursued_matters_from_the_second_step_on(horizon, reads):
    spec = make_spec()
    density = make_density(replace(CONFIG, horizon=horizon), spec)
    obs, action, achieved, goal, one, other = points(16, 3, 2, 3, 3, 3, 3)

    @jax.jit
    def differ(ahead):
        ask = lambda intended: density.log_prob(  # noqa: E731
            wild(density), spec.norm, obs, action, achieved, goal, intended, ahead
        )
        return abs(ask(one) - ask(other)).max()

    assert (differ(jnp.full((16, 1), SHORT)) > 1e-3) == reads
    assert differ(jnp.full((16, 1), long_horizon(jnp.asarray(1)))) > 1e-3


@pytest.mark.parametrize(("radius", "couplings"), [(0.15, 6), (0.013, 10), (0.001, 16)])
def test_couplings_follow_the_narrowest_kernel(radius, couplings):
    config = replace(CONFIG, bijectors=0, smoothing_half=100)
    flow = make_density(config, replace(make_spec(), radius=radius)).flow
    assert len(flow.init(jax.random.key(0))) == couplings
    assert math.exp(-couplings / 2) <= 0.8 * radius


def test_density_goals_are_asked_for_at_all_offsets():
    """Goals from a density that answers with the horizon it was asked for."""
    spec, ring = make_spec(goal_scale=(1.0,), live=(0,)), counting_ring(200)
    config = replace(CONFIG, intended=0.0)
    density = make_density(config, spec)

    def tell(params, norm, key, obs, action, achieved, intended, horizon):
        return horizon

    state = make_uvd(config, spec).init(jax.random.key(0), spec)
    batch = fetch(ring, ring.order[: ring.last])
    goals = choose_goals(
        "density", config, density._replace(sample=tell), state, ring, batch, jax.random.key(0),
        jnp.asarray(0),
    )  # fmt: skip
    left = HORIZON - np.asarray(batch.achieved)[:, 0] % 100
    offset = np.exp(2 * (np.asarray(goals.goal)[:, 0] - 1)).round().astype(int)
    for n in range(1, HORIZON + 1):
        counts = np.bincount(offset[left == n], minlength=n + 1)
        assert counts[0] == 0
        assert len(counts) == n + 1
        assert n == 1 or stats.chisquare(counts[1:]).pvalue > 1e-4


def gaussian_flow(dim, bijectors, mean, std):
    """Parameters that make the flow of `make_density` an exact Gaussian, whatever the context."""
    masks = coupling_masks(dim, bijectors, 0)
    log_scale = math.log(std) / masks.sum(0)[0]

    def coupling(net, i):
        zero = jax.tree.map(jnp.zeros_like, net)
        shift = jnp.asarray(mean) if i < 2 else jnp.zeros(dim)  # each dimension's first move
        out = jnp.concatenate([jnp.full(dim, math.atanh(log_scale)), shift])
        return zero._replace(biases=(*zero.biases[:-1], out))

    return lambda params: tuple(coupling(net, i) for i, net in enumerate(params))


@pytest.mark.parametrize("std", [0.3, 0.15])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_perfect_density_is_the_kernel(std, scale):
    """Displacement m plus the smoothing's noise: c F = scale exp(-|g - achieved - m|² / 2 std²)."""
    mean = [0.2, -0.1]
    spec = make_spec(goal_scale=(2.0, 1.0, 0.5))
    config = replace(CONFIG, smoothing=std, density_scale=scale)
    density = make_density(config, spec)
    params = gaussian_flow(2, 4, mean, std)(wild(density))
    obs, action, achieved, goal, intended = points(32, 3, 2, 3, 3, 3)
    goal = achieved + 0.3 * goal
    log_f = density.log_prob(
        params, spec.norm, obs, action, achieved, goal, intended, jnp.zeros((32, 1))
    )
    got = jnp.exp(log_f + density.log_scale(jnp.asarray(0)))
    d = np.asarray(goal - achieved)[:, [0, 2]] / [2.0, 0.5] - mean
    np.testing.assert_allclose(
        got, scale * np.exp(-0.5 * (d**2).sum(1) / std**2), rtol=2e-3, atol=1e-6
    )


def test_smoothing_fades_and_the_scale_follows():
    spec = make_spec()
    config = replace(CONFIG, smoothing=0.4, smoothing_half=100, smoothing_end=0.09)
    density = make_density(config, spec)
    for step, width in [(0, 0.4), (50, 0.4 / 2**0.5), (100, 0.2), (200, 0.1), (1000, 0.09)]:
        assert density.smoothing(jnp.asarray(step)) == pytest.approx(width, rel=1e-5)
        scale = math.log(2 * math.pi * width**2)
        assert density.log_scale(jnp.asarray(step)) == pytest.approx(scale, rel=1e-4)
    radius = replace(spec, radius=0.12, norm=spec.norm._replace(goal_scale=np.full(3, 2.0)))
    assert smoothing_end(replace(config, smoothing_end=0.0), radius) == pytest.approx(0.048)
    stays = make_density(replace(config, smoothing_half=0), spec)
    assert stays.smoothing(jnp.asarray(1000)) == pytest.approx(0.4)


@pytest.mark.parametrize("half", [0, 100])
def test_without_smoothing_there_is_no_noise_and_the_flow_sets_the_bound(half):
    spec = make_spec()
    config = replace(CONFIG, smoothing=0.0, smoothing_half=half, density_scale=0.5)
    density = make_density(config, spec)
    assert density.log_scale(jnp.asarray(0)) == pytest.approx(math.log(0.5))
    assert density.bound == pytest.approx(0.5 * math.exp(density.flow.log_bound), rel=1e-5)
    assert density.smoothing(jnp.asarray(0)) == 0


HORIZON = 8


def counting_ring(episodes, dim=1):
    """Achieved goals that tell (episode, step): 100 e + t. Row 0 of an episode starts at 0."""
    t = jnp.arange(HORIZON + 1.0)
    mark = 100.0 * jnp.arange(episodes)[:, None] + t
    stacked = Episode(
        jnp.repeat(mark[..., None], 3, -1),
        jnp.zeros((episodes, HORIZON, 2)),
        jnp.repeat(mark[..., None], dim, -1),
        -jnp.ones((episodes, dim)),
        jnp.full(episodes, HORIZON, jnp.int32),
        jnp.zeros(episodes, bool),
        jnp.zeros(episodes, bool),
    )
    ring = init_ring(episodes * (HORIZON + 1), 3, 2, dim)
    return jax.jit(insert_all)(ring, stacked)


@pytest.mark.parametrize("offsets", ["geometric", "uniform"])
@pytest.mark.parametrize("td_goals", ["density", "balanced", "intended"])
def test_density_learns_from_the_right_futures(offsets, td_goals):
    """Short: offsets 1..T from the newest transitions. Long: all that is left, if it is used; for
    balanced goals half of these are seen from s', unless that is where they were achieved."""
    spec = make_spec(goal_scale=(1.0,), live=(0,))
    config = replace(
        CONFIG, td3=replace(SMALL, batch=8000, gamma=0.7), horizon=3, offsets=offsets, short=40,
        td_goals=td_goals, actor_goals="intended", smoothing=0.2, smoothing_long=0.5,
    )  # fmt: skip
    density = make_density(config, spec)
    seen = []

    def spy(params, norm, obs, action, achieved, goal, intended, horizon, noise):
        seen.extend(np.asarray(x)[:, 0] for x in (obs, achieved, goal, intended, horizon, noise))
        return jax.tree.leaves(params)[0].sum() * jnp.zeros(len(obs))

    state = make_uvd(config, spec).init(jax.random.key(0), spec)
    density_step(
        config, density._replace(log_prob=spy), state, counting_ring(10), jax.random.key(1),
        jnp.asarray(0),
    )  # fmt: skip
    obs, achieved, goal, intended, flag, noise = seen
    np.testing.assert_array_equal(obs, achieved)
    after = flag < 0
    start = achieved - after
    assert set(start) == {100.0 * e + t for e in range(5, 10) for t in range(HORIZON)}
    assert (intended == -1).all()
    left, offset = HORIZON - start % 100, goal - start
    long = flag != SHORT
    assert abs(noise.mean()) < 0.02
    assert noise[~long].std() == pytest.approx(0.2, rel=0.05)
    assert td_goals == "intended" or noise[long].std() == pytest.approx(0.5, rel=0.05)
    assert long.mean() == (0 if td_goals == "intended" else 0.5)
    ahead = long & ~after
    np.testing.assert_allclose(flag[ahead], long_horizon(offset[ahead]), rtol=1e-6)
    np.testing.assert_allclose(flag[after], after_horizon(offset[after] - 1), rtol=1e-6)
    share = after[long & (offset > 1)].mean() if long.any() else 0.0
    assert share == pytest.approx(0.5 if td_goals == "balanced" else 0.0, abs=0.03)
    for which, limit, gamma in ((~long, 3, 0.7 if offsets == "geometric" else 1), (long, 99, 1)):
        if which.any():
            for n in range(1, HORIZON + 1):
                last = min(limit, n)
                counts = np.bincount(offset[which & (left == n)].astype(int), minlength=last + 1)
                assert counts[0] == 0
                assert len(counts) == last + 1
                weights = float(gamma) ** np.arange(last)
                expected = counts.sum() * weights / weights.sum()
                assert last == 1 or stats.chisquare(counts[1:], expected).pvalue > 1e-4


def test_delayed_density_is_a_hard_copy(monkeypatch):
    """Targets read the copy, in the unit (the kernel's width) of the update that made it."""

    def told(config, spec, density, head, flow, step):
        sums = sum(leaf.sum() for leaf in jax.tree.leaves(flow))
        return lambda state, batch, goal, key: (jnp.zeros(len(goal)), {"of": step, "sums": sums})

    monkeypatch.setattr("uvd.agents.uvd.make_target", told)
    spec = make_spec(goal_scale=(1.0,), live=(0,))
    config = replace(CONFIG, flow_delay=3, bijectors=2, td_goals="intended")
    agent, ring = make_uvd(config, spec), counting_ring(10)

    @jax.jit
    def run(state):
        def body(state, i):
            key = jax.random.fold_in(jax.random.key(0), i)
            state, metrics = agent.update(state, ring, key, i)
            return state, (state.flow, state.flow_target, metrics)

        return jax.lax.scan(body, state, jnp.arange(7))[1]

    state = agent.init(jax.random.key(0), spec)
    flow, slow, metrics = jax.tree.map(np.asarray, run(state))
    copied = np.arange(7) // 3 * 3
    for online, target in zip(jax.tree.leaves(flow), jax.tree.leaves(slow), strict=True):
        np.testing.assert_array_equal(target, online[copied])
    assert any((leaf[1] != leaf[0]).any() for leaf in jax.tree.leaves(flow))
    sums = sum(leaf.reshape(7, -1).sum(1) for leaf in jax.tree.leaves(slow))
    np.testing.assert_allclose(metrics["sums"], sums, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(metrics["of"], copied)


@pytest.mark.parametrize(("step", "share"), [(0, 0.6), (100, 0.4), (10_000, 0.2)])
def test_early_share_of_intended_goals(step, share):
    ring = counting_ring(1000)
    batch = fetch(ring, ring.order[: ring.last])
    config = replace(CONFIG, intended=0.2, intended_early=0.6, smoothing_half=100)
    goals = choose_goals("future", config, None, None, ring, batch, jax.random.key(0), step)
    assert (goals.goal == -1).mean() == pytest.approx(share, abs=0.02)


GAMMA, WIDTH, FIRST, SECOND = 0.8, 0.3, 0.6, -0.4


def kernel(gap):
    return np.exp(-0.5 * gap**2 / WIDTH**2)


@pytest.mark.parametrize("combine", ["sum", pytest.param("max", marks=pytest.mark.slow)])
def test_values_of_a_known_chain(combine):
    """State 0 moves on to 1, at FIRST, and 1 to 2, at SECOND, which stays: values are kernels."""
    n, length = 256, 4
    rng = np.random.default_rng(0)
    spec = make_spec(obs=3, action=1, goal_scale=(1.0,), live=(0,))
    states = [0, 1, 2, 2, 2]
    where = jnp.array([0.0, FIRST, SECOND])[jnp.array(states)][:, None]
    episodes = Episode(
        jnp.broadcast_to(jnp.eye(3)[jnp.array(states)], (n, length + 1, 3)),
        jnp.asarray(rng.uniform(-1, 1, (n, length, 1)), jnp.float32),
        jnp.broadcast_to(where, (n, length + 1, 1)),
        jnp.asarray(rng.uniform(-1, 1, (n, 1)), jnp.float32),
        jnp.full(n, length, jnp.int32),
        jnp.zeros(n, bool),
        jnp.zeros(n, bool),
    )
    td3 = replace(
        SMALL, gamma=GAMMA, hidden=(64, 64), batch=128, tau=0.1, critic_lr=3e-3, actor_start=10_000
    )
    config = UVDConfig(
        td3, combine=combine, td_goals="intended", actor_goals="intended", horizon=1,
        smoothing=WIDTH, smoothing_half=0, bijectors=2, flow_hidden=(16, 16), flow_lr=3e-3,
    )  # fmt: skip
    agent = make_uvd(config, spec)

    @jax.jit
    def train(key):
        ring = insert_all(init_ring(n * (length + 1), 3, 1, 1), episodes)
        steps = jnp.arange(1500)
        keys = jax.random.split(key, len(steps))
        state = agent.init(key, spec)
        update = lambda s, xs: (agent.update(s, ring, *xs)[0], None)  # noqa: E731
        return jax.lax.scan(update, state, (keys, steps))[0]

    state = train(jax.random.key(0)).td3
    g = np.array([FIRST, SECOND, 0.0, 0.3, -0.8])
    here, there = kernel(g - FIRST), kernel(g - SECOND)
    start = (1 - GAMMA) * here + GAMMA * there
    if combine == "max":
        start = np.maximum(here, GAMMA * there)
    for s, expected in ((0, start), (1, there), (2, there)):
        obs = np.eye(3, dtype=np.float32)[[s] * len(g)]
        q = critic_outputs(
            state.critic, state.norm, obs, g[:, None].astype("f4"), np.zeros((5, 1), "f4")
        )
        np.testing.assert_allclose(jax.nn.sigmoid(q), [expected] * 2, atol=0.1)


@pytest.mark.parametrize("config", [TD3Config, HERConfig, UVDConfig])
def test_every_setting_is_documented(config):
    (body,) = (node.body for node in ast.parse(inspect.getsource(config)).body)
    for field in dataclasses.fields(config):
        (at,) = (
            i for i, node in enumerate(body)
            if isinstance(node, ast.AnnAssign) and node.target.id == field.name
        )  # fmt: skip
        if field.name != "td3":  # nested settings document themselves
            line = body[at + 1].value.value
            assert isinstance(line, str), field.name
            assert line.endswith(".")
            assert len(line) > 8
