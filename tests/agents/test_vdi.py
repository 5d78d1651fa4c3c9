"""VDI: its target by brute force, its weights, densities against closed forms, its schedules."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from imitated import ACTION, OBS, SMALL, N, fresh, history, make_batch, make_ring, make_spec
from uvd.agents import Spec, vdi
from uvd.agents.agent import Demos
from uvd.agents.td3 import HEADS
from uvd.agents.vdi import (
    Pool,
    VDIConfig,
    density_of,
    draw,
    flow_densities,
    flows_of,
    log_weights,
    make_optimiser,
    make_target,
    make_vdi,
)
from uvd.core.policy import Norm, act, mlp
from uvd.core.replay import init_ring
from uvd.core.errors import UserError
from uvd.settings import PRESETS, build, override


@pytest.mark.parametrize("preset", PRESETS["vdi"])
def test_every_preset_can_be_built(preset):
    spec, config = make_spec(), build("vdi", preset, {"flow_hidden": (8, 8), "capacity": 600_000})
    agent, ring = make_vdi(config, spec), init_ring(100, OBS, ACTION, 0)
    state = jax.eval_shape(lambda key: agent.init(key, spec), jax.random.key(0))
    after, _ = jax.eval_shape(agent.update, state, ring, jax.random.key(0), jnp.asarray(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )


def test_critics_start_where_the_settings_say():
    """A share of F's bound, as the authors' critics do; of a pool's, of 1."""
    spec = make_spec()
    for settings in ({}, {"combine": "sum", "horizon": 1, "pool": 2}):
        config = build("vdi", "authors", {**SMALL, **settings})
        bound = 1.0 if settings else math.exp(flows_of(config, spec).log_bound)
        head = HEADS[config.td3.critic_head](bound, config.td3.critic_start)
        assert config.td3.critic_start == -0.025
        # Small first weights: what a fresh critic says is its bias, whatever it is asked.
        output = fresh(config, spec).td3.critic.biases[-1]
        np.testing.assert_allclose(head.value(output), -0.025 * bound, rtol=1e-4)


def shaken(tree, key, size=0.3):
    leaves, tree = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten([x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys)])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"average": False, "smoothing": 0.5},
        {"temporal_smoothing": 0.9},
        {"critic_head": "linear"},
        {"combine": "sum", "horizon": 1, "gamma": 0.9},
        {"combine": "max-next"},
        {"combine": "max-paper", "temporal_smoothing": 0.9},
    ],
)
def test_the_target_is_that_of_algorithm_2(settings):
    config = build("vdi", "default", {**SMALL, **settings})
    spec = make_spec()
    densities = flow_densities(config, spec)
    bound = math.exp(densities.log_bound)
    head = HEADS[config.td3.critic_head](bound, 0.0)
    state = fresh(config, spec)
    critic = shaken(state.td3.critic_target, jax.random.key(1))
    # Values about as large as F, so that either may be the larger.
    level = (3.0 if config.average else 1.0) if config.td3.critic_head == "huber" else 1.0
    critic = critic._replace(biases=(*critic.biases[:-1], jnp.full((2, 1), level)))
    td3 = state.td3._replace(critic_target=critic)
    flow = shaken(state.learned.stack.future, jax.random.key(2), 0.1)
    batch = make_batch(np.random.default_rng(3))
    live = np.array([0, 2])
    goal = batch.obs[::-1][:, live] * 0.5
    target_fn = jax.jit(make_target(config, head, density_of(densities, flow), bound))
    target, metrics = target_fn(td3, batch, goal, jax.random.key(4))

    shift, scale = (np.asarray(x) for x in (spec.norm.obs_shift, spec.norm.obs_scale))
    root = 2 if config.average else 1
    td3, flow, batch, goal = jax.tree.map(np.asarray, (td3, flow, batch, goal))
    gamma, lam = config.td3.gamma, config.temporal_smoothing
    summed = config.combine == "sum"  # Eq. 3, as the preset `humanoid` has it

    def density(obs, action, goal):
        """F in the plain: the couplings undone one by one."""
        context = np.concatenate([np.clip((obs - shift) / scale, -5, 5), action])
        x = (goal - obs[live]) / scale[live]
        log_f = 0.0
        for net, moved in zip(flow, vdi_masks(config)):
            out = mlp(net, np.concatenate([x * (1 - moved), context]))
            log_scale, move = np.tanh(out[:2]) * moved, out[2:] * moved
            x = (x - move) * np.exp(-log_scale)
            log_f -= log_scale.sum()
        log_f += -0.5 * (x**2).sum() - np.log(2 * np.pi)
        return min(math.exp(log_f / root), bound)

    by_td = ends = 0
    for i in range(N):
        # Q' in the plain: the actor reads the observation alone, the critic the gap too
        seen = np.clip((batch.next_obs[i] - shift) / scale, -5, 5)
        a = np.tanh(mlp(td3.actor_target, seen))
        gap = (goal[i] - batch.next_obs[i][live]) / scale[live]
        x = np.concatenate([seen, np.clip(gap, -5, 5), a])
        twins = [jax.tree.map(lambda w, k=k: w[k], td3.critic_target) for k in (0, 1)]
        q = min(mlp(net, x)[0] for net in twins)
        q = gamma * q / (10 if config.td3.critic_head == "huber" else 1)
        if config.combine in ("max", "sum"):
            f = density(batch.obs[i], batch.action[i], goal[i])
        else:
            f = density(batch.next_obs[i], a, goal[i])
            f *= gamma if config.combine == "max-paper" else 1
        want = (1 - gamma) * f + q if summed else max(lam * q + (1 - lam) * f, q)
        want *= i % 5 != 0
        ends += i % 5 == 0
        by_td += i % 5 != 0 and want <= q * (1 + 1e-3)
        assert float(target[i]) == pytest.approx(np.clip(want, 0, bound), abs=2e-5)
    assert float(metrics["critic/frac_td"]) == pytest.approx((by_td + ends) / N)
    assert summed or 4 < by_td < N - ends - 4, "either is to be the larger now and then"


def test_no_target_exceeds_its_bound():
    config, spec = build("vdi", "default", SMALL), make_spec()
    densities, state = flow_densities(config, spec), fresh(config, spec)
    bound = math.exp(densities.log_bound)
    critic = state.td3.critic_target
    high = critic._replace(biases=(*critic.biases[:-1], jnp.full((2, 1), 20 * bound)))  # Q / 10
    batch = make_batch(np.random.default_rng(3))
    target_fn = make_target(
        config, HEADS["huber"](bound, 0.0), density_of(densities, state.future_target), bound
    )
    goal = batch.obs[:, np.array([0, 2])]
    td3 = state.td3._replace(critic_target=high)
    target, metrics = target_fn(td3, batch, goal, jax.random.key(4))
    np.testing.assert_allclose(target, bound * ~np.asarray(batch.terminated), rtol=1e-6)
    assert float(metrics["critic/target_over_bound_max"]) > 1.5  # what it would have been


def test_l2_is_part_of_the_gradient():
    """Not decay beside the optimiser: Adam's first step follows the sign of gradient + l2 w."""
    config = build("vdi", "default", {"l2": 0.5, "flow_lr": 0.01})
    weights, grads = jnp.array([2.0, -2.0, 2.0]), jnp.array([-0.5, 0.5, 3.0])
    optimiser = make_optimiser(config)
    step, _ = optimiser.update(grads, optimiser.init(weights), weights)
    np.testing.assert_allclose(step, [-0.01, 0.01, -0.01], rtol=1e-4)


def test_a_pool_of_states_is_one_value(monkeypatch):
    """(1 - gamma) mean F / d + gamma Q'(s', mu'(s')), where Q reads no state to be reached."""
    settings = {**SMALL, "combine": "sum", "horizon": 1, "gamma": 0.9, "pool": 3}
    config, spec = build("vdi", "default", settings), make_spec()
    state = fresh(config, spec)
    td3 = state.td3._replace(critic_target=shaken(state.td3.critic_target, jax.random.key(1)))
    flow = shaken(state.learned.stack.future, jax.random.key(2), 0.1)
    flows = flows_of(config, spec)._replace(log_bound=math.log(0.35))  # so that some F exceed it
    monkeypatch.setattr(vdi, "flows_of", lambda *_: flows)
    batch = make_batch(np.random.default_rng(3))
    pool = jnp.stack([batch.obs[::-1][:, [0, 2]] * x for x in (0.3, 0.6, 0.9)])
    head = HEADS["huber"](1.0, 0.0)
    none = jnp.zeros((N, 0))
    unit = Pool(pool, jnp.log(0.2))
    bound, largest = 0.35 / 0.2, 0.0
    density = density_of(flow_densities(config, spec), flow, unit)
    target_fn = make_target(config, head, density, bound)
    target, metrics = target_fn(td3, batch, none, None)
    f, cut = 0.0, []
    for goal in pool:
        there = batch.obs.at[:, jnp.array([0, 2])].set(goal)
        one = np.exp(flows.log_f(flow, spec.norm, batch.obs, batch.action, there))
        cut.extend(one > 0.35)
        f += np.minimum(one, 0.35) / 3 / 0.2
    assert 0.1 < np.mean(cut) < 0.9
    seen = np.clip((batch.next_obs - spec.norm.obs_shift) / spec.norm.obs_scale, -5, 5)
    for i in range(N):
        x = np.concatenate([seen[i], np.tanh(mlp(td3.actor_target, seen[i]))])
        twins = [jax.tree.map(lambda w, k=k: w[k], td3.critic_target) for k in (0, 1)]
        q = min(mlp(net, x)[0] for net in twins) / 10
        want = (0.1 * f[i] + 0.9 * q) * (i % 5 != 0)
        largest = max(want, largest)
        assert float(target[i]) == pytest.approx(np.clip(want, 0, bound), abs=2e-5)
    assert float(metrics["critic/target_over_bound_max"]) == pytest.approx(largest / bound)


def vdi_masks(config):
    from uvd.core.flows import coupling_masks

    return coupling_masks(2, config.bijectors, 0)


def test_weights_are_bounded_inverse_densities():
    d = np.array([0.5, 1.0, 1.5, 0.01, 5.0])
    weight = np.exp(log_weights(jnp.log(d), 4.0))
    np.testing.assert_allclose(weight, np.minimum(d.mean() / d, 4.0), rtol=1e-5)
    far = log_weights(jnp.array([-1e5, -2e5, -3e5]), 4.0)  # all of these underflow
    assert np.isfinite(far).all()
    np.testing.assert_allclose(far[1:], math.log(4.0))


def test_states_are_drawn_by_weight():
    weight = jnp.array([1.0, 0.0, 3.0, 4.0])
    index = draw(jax.random.key(0), weight, 40_000)
    np.testing.assert_allclose(np.bincount(index, minlength=4) / 40_000, weight / 8, atol=0.01)


def test_averaged_logits_are_those_of_the_root_and_dead_columns_do_not_count():
    spec = make_spec()
    batch = make_batch(np.random.default_rng(0))
    config = build("vdi", "default", SMALL)
    mean, whole = (
        flows_of(dataclasses.replace(config, average=average), spec) for average in (True, False)
    )
    stack = shaken(mean.init(jax.random.key(0)), jax.random.key(1), 0.2)
    args = (spec.norm, batch.obs, batch.action, batch.next_obs)
    log_f = mean.log_f(stack.future, *args)
    np.testing.assert_allclose(2 * log_f, whole.log_f(stack.future, *args), rtol=1e-5)
    moved = batch.next_obs.at[:, 1].add(5.0)  # column 1 is dead
    same = mean.log_f(stack.future, spec.norm, batch.obs, batch.action, moved)
    np.testing.assert_array_equal(same, log_f)
    assert (mean.root, whole.root) == (2, 1)
    # Learned together, they are what they are apart; noise moves what they are of.
    log_d = mean.log_d(stack.state, spec.norm, batch.obs)
    shift = jnp.zeros((2, len(log_f), 2))
    both = mean.log_both(stack, *args, shift)
    np.testing.assert_allclose(both, [log_f, log_d], rtol=1e-5, atol=1e-6)
    scale = spec.norm.obs_scale
    apart = mean.log_f(stack.future, *args[:3], batch.next_obs + 0.5 * scale)
    there = batch.obs + 0.25 * scale
    moved = mean.log_both(stack, *args, shift.at[0].set(0.5).at[1].set(0.25))
    np.testing.assert_allclose(
        moved, [apart, mean.log_d(stack.state, spec.norm, there)], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("average", "power"), [(True, 2), (False, 1)])
def test_offsets_are_discounted_as_the_root_is(monkeypatch, average, power):
    asked = []
    plain = vdi.replay.geometric_offset
    monkeypatch.setattr(
        vdi.replay, "geometric_offset", lambda k, n, g: asked.append(g) or plain(k, n, g)
    )
    config = build("vdi", "default", {**SMALL, "average": average, "horizon": 3})
    spec = make_spec()
    rng = np.random.default_rng(0)
    ring = make_ring(rng.normal(size=(6, 5, OBS)), rng.normal(size=(6, 4, ACTION)))
    flows = flows_of(config, spec)
    learned = jax.eval_shape(lambda: fresh(config, spec).learned)
    jax.eval_shape(
        lambda x: vdi.density_step(config, flows, x, spec.norm, ring, jax.random.key(1), 0), learned
    )
    gamma = asked[0]
    assert gamma == config.td3.gamma**power


def test_densities_learn_from_the_newest_and_from_their_own_episodes():
    """Targets are 1..T steps ahead, never beyond the end; both samples are smoothed."""
    spec = make_spec()
    small = {**SMALL, "batch": 8000, "gamma": 0.8, "horizon": 3, "short": 20, "smoothing": 0.2}
    config = build("vdi", "default", small)
    seen = []

    def spy(stack, norm, obs, action, target, noise):
        seen.extend(np.asarray(x) for x in (obs[:, 0], target[:, 0], noise))
        return jnp.stack([obs[:, 0]] * 2) * jax.tree.leaves(stack)[0].sum()

    number = 100.0 * np.arange(12)[:, None] + np.arange(6)  # twelve episodes of five steps
    obs, action = np.repeat(number[..., None], OBS, -1), np.zeros((12, 5, ACTION))
    ring = make_ring(obs, action, rows=63)  # the last but one goes on at the ring's beginning
    flows, learned = flows_of(config, spec)._replace(log_both=spy), fresh(config, spec).learned
    vdi.density_step(config, flows, learned, spec.norm, ring, jax.random.key(1), 0)
    start, target, noise = seen
    assert set(start) == {100.0 * e + t for e in range(8, 12) for t in range(5)}
    offset = (target - start).astype(int)
    for left in range(1, 6):
        last = min(3, left)
        counts = np.bincount(offset[start % 100 == 5 - left], minlength=last + 1)
        assert counts[0] == 0
        assert len(counts) == last + 1
        share = 0.64 ** np.arange(last)  # gamma to the number of live columns
        expected = counts.sum() * share / share.sum()
        assert last == 1 or stats.chisquare(counts[1:], expected).pvalue > 1e-4
    assert noise.shape == (2, 8000, 2)
    np.testing.assert_allclose(noise.std((1, 2)), 0.2, rtol=0.05)


def test_critics_are_asked_for_all_states_alike_and_actors_by_weight(monkeypatch):
    asked = {}

    def spy(config, head, td3, batch, goal, weight, target_fn, actor_goal, *rest):
        asked.update(critic=goal, actor=actor_goal(), batch=batch)
        return td3, {}

    monkeypatch.setattr(vdi, "learn", spy)
    spec = make_spec(demos=4)
    config = build("vdi", "default", {**SMALL, "batch": 8000, "weight_bound": 3.0, "short": 4})
    rng = np.random.default_rng(0)
    ring = make_ring(rng.normal(size=(6, 5, OBS)), rng.normal(size=(6, 4, ACTION)))
    d = 5 * np.array([0.1, 1.0, 2.0, 0.9])
    state = fresh(config, spec)._replace(log_d=jnp.log(d))
    make_vdi(config, spec).update(state, ring, jax.random.key(0), jnp.asarray(1))
    weight = np.minimum(5 / d, 3.0)  # the mean of d is 5
    # On the whole memory: the short one, of one episode here, is the densities' (Alg. 2, line 9).
    assert len(np.unique(asked["batch"].row)) == 6 * 4

    def share(goals):
        return [(goals[..., 0] == x).mean() for x in spec.demos.obs[:, 0]]

    np.testing.assert_allclose(share(asked["critic"]), 0.25, atol=0.02)
    np.testing.assert_allclose(share(asked["actor"]), weight / weight.sum(), atol=0.02)

    # A pool is drawn by weight: nobody weighs its states later.
    def spy_density(densities, flow, pool):
        asked["pool"] = pool

    def spy_target(config, head, density, bound):
        asked["bound"] = bound

    monkeypatch.setattr(vdi, "density_of", spy_density)
    monkeypatch.setattr(vdi, "make_target", spy_target)
    pooled = override(config, {"combine": "sum", "horizon": 1, "pool": 2})
    state = fresh(pooled, spec)._replace(log_d=jnp.log(d))
    make_vdi(pooled, spec).update(state, ring, jax.random.key(0), jnp.asarray(1))
    states, log_unit = asked["pool"]
    assert states.shape == (2, 8000, 2)
    np.testing.assert_allclose(share(states), weight / weight.sum(), atol=0.02)
    # In its unit, what such draws have on average is the mean of F / d over all states (Eq. 8).
    f = rng.uniform(size=4)
    drawn = (weight / weight.sum() * f).sum() / np.exp(log_unit)
    assert drawn == pytest.approx((f * np.minimum(1 / d, 3.0 / 5)).mean(), rel=1e-5)
    # As many as there are: each with its own, in the order of the states.
    everyone = override(pooled, {"pool": 4})
    make_vdi(everyone, spec).update(state, ring, jax.random.key(0), jnp.asarray(1))
    states, log_unit = asked["pool"]
    assert states is None
    densities, batch = flow_densities(everyone, spec), make_batch(np.random.default_rng(3))
    flow = shaken(state.future_target, jax.random.key(2), 0.1)
    each = [
        densities.log_f(flow, spec.norm, batch, jnp.tile(t, (N, 1)))
        for t in jnp.asarray(spec.demos.obs[:, [0, 2]])
    ]
    np.testing.assert_allclose(densities.log_f_all(flow, spec.norm, batch), each, rtol=1e-5)
    np.testing.assert_allclose(np.exp(-log_unit[:, 0]), np.minimum(1 / d, 3.0 / 5), rtol=1e-5)
    top = flows_of(pooled, spec).log_bound
    assert float(asked["bound"]) == pytest.approx(np.exp(top - log_unit).mean(), rel=1e-5)
    # Where nothing is near any of them, the unit stays one that a float can divide by.
    far = state._replace(log_d=jnp.full(4, -1e3))
    make_vdi(pooled, spec).update(far, ring, jax.random.key(0), jnp.asarray(1))
    assert float(asked["pool"].log_unit) == pytest.approx(top - vdi.FARTHEST)


def test_flows_of_a_linear_system_are_as_they_should_be():
    """s' = A s + B a + noise has F = N(A s + B a, noise² + smoothing²), and d = N(0, 1)."""
    rng = np.random.default_rng(0)
    a_matrix, b_matrix = np.array([[0.9, 0.2], [-0.1, 0.8]]), np.array([[0.3], [0.5]])
    n, noise = 8000, 0.2
    s = rng.normal(size=(n, 2))
    action = rng.uniform(-1, 1, (n, 1))
    after = s @ a_matrix.T + action @ b_matrix.T + noise * rng.normal(size=(n, 2))
    ring = make_ring(np.stack([s, after], 1), action[:, None])
    one = np.ones(2, np.float32)
    spec = Spec(
        2, 1, 0, lambda a, g: False, Norm(0 * one, one, one[:0], one[:0]), (),
        demos=Demos(s[:20].astype(np.float32)), live_obs=(0, 1),
    )  # fmt: skip
    small = {**SMALL, "batch": 256, "flow_hidden": (32, 32), "flow_lr": 3e-3, "smoothing": 0.8}
    config = build("vdi", "default", {**small, "horizon": 1, "short": n, "capacity": 2 * n})
    flows = flows_of(config, spec)

    @jax.jit
    def fit(learned):
        def body(learned, key):
            return vdi.density_step(config, flows, learned, spec.norm, ring, key, 0)[0], None

        return jax.lax.scan(body, learned, jax.random.split(jax.random.key(1), 1200))[0]

    stack = fit(fresh(config, spec).learned).stack
    test = rng.choice(n, 400, replace=False)
    x = [jnp.asarray(v[test], jnp.float32) for v in (s, action, after)]
    log_f = 2 * flows.log_f(stack.future, spec.norm, *x)
    log_d = 2 * flows.log_d(stack.state, spec.norm, x[0])

    def gaussian(gap, variance):
        return -0.5 * (gap**2).sum(-1) / variance - np.log(2 * np.pi * variance)

    mean = s[test] @ a_matrix.T + action[test] @ b_matrix.T
    true_f = gaussian(after[test] - mean, noise**2 + 0.8**2)
    true_d = gaussian(s[test], 1 + 0.8**2)
    assert abs(np.mean(log_f - true_f)) < 0.06
    assert np.mean(abs(log_f - true_f)) < 0.25
    assert np.mean(abs(log_d - true_d)) < 0.15


def test_schedules(monkeypatch):
    plain, asked = vdi.fading, []
    monkeypatch.setattr(
        vdi, "fading", lambda *args: jax.debug.callback(asked.append, args[-1]) or plain(*args)
    )
    agent, states, logged = history(
        {
            "flow_delay": 4, "early_delay": 2, "early_updates": 5, "density_only": 3,
            "actor_start": 5, "policy_delay": 1, "noise": 0.3, "late_noise": 0.1, "late_updates": 6,
        },
        10,
    )  # fmt: skip

    def changed(pick):
        moves = [
            any((a != b).any() for a, b in zip(jax.tree.leaves(pick(x)), jax.tree.leaves(pick(y))))
            for x, y in itertools.pairwise(states)
        ]
        return np.flatnonzero(moves).tolist()

    jax.effects_barrier()
    assert [int(step) for step in asked] == list(range(10)), "the smoothing is the update's own"
    assert changed(lambda s: s.learned.stack) == list(range(10))
    assert changed(lambda s: s.future_target) == [0, 2, 4, 8]  # every 2nd, then every 4th
    assert changed(lambda s: s.log_d) == [0, 2, 4, 8]
    assert changed(lambda s: s.td3.critic) == list(range(3, 10))
    assert changed(lambda s: s.td3.actor) == list(range(5, 10))
    noise = [float(agent.policy(s).noise) for s in states[1:]]
    np.testing.assert_allclose(noise, [0.3] * 6 + [0.1] * 4)
    # What was copied is what had just been learned, and the weights are of that copy.
    copied = states[5]
    learned = copied.learned.stack
    for a, b in zip(jax.tree.leaves(copied.future_target), jax.tree.leaves(learned.future)):
        np.testing.assert_array_equal(a, b)
    spec = make_spec()
    flows = flows_of(build("vdi", "default", SMALL), spec)
    log_d = flows.log_d(learned.state, spec.norm, jnp.asarray(spec.demos.obs))
    np.testing.assert_allclose(copied.log_d, log_d, atol=1e-5)
    for metrics in logged:
        assert all(np.isfinite(x).all() for x in metrics.values())
    assert float(logged[4]["demos/log_d_min"]) == pytest.approx(float(log_d.min()), abs=1e-5)


def test_the_policy_pursues_no_goal():
    config, spec = build("vdi", "default", SMALL), make_spec()
    policy = make_vdi(config, spec).policy(fresh(config, spec))
    obs = np.random.default_rng(0).normal(size=(7, OBS)).astype(np.float32)
    action = act(jax.tree.map(np.asarray, policy), obs, np.zeros((7, 0), np.float32))
    norm = make_spec().norm
    want = np.tanh(mlp(policy.net, jnp.asarray((obs - norm.obs_shift) / norm.obs_scale)))
    np.testing.assert_allclose(action, want, atol=1e-6)


def test_the_bound_is_that_of_smoothing_or_flow():
    spec = make_spec()
    faded = {"smoothing": 2.0, "smoothing_half": 9, "smoothing_end": 0.5}
    wide, narrow, none, ends = (
        flows_of(build("vdi", "default", {**SMALL, **settings}), spec).log_bound
        for settings in ({"smoothing": 0.5}, {"smoothing": 1e-3}, {"smoothing": 0.0}, faded)
    )
    assert wide == ends == pytest.approx(-math.log(0.5 * math.sqrt(2 * math.pi)))
    assert narrow == none == pytest.approx(2 - math.log(2 * math.pi) / 2)  # 4 couplings, 2 each


def test_the_smoothing_narrows_to_its_end():
    faded = {"smoothing": 2.0, "smoothing_half": 10, "smoothing_end": 0.5}
    stays, narrows = (
        build("vdi", "default", {**SMALL, **settings}) for settings in ({"smoothing": 0.3}, faded)
    )
    assert [float(vdi.smoothing(stays, n)) for n in (0, 1000)] == pytest.approx([0.3, 0.3])
    assert [float(vdi.smoothing(narrows, n)) for n in (0, 10, 15, 20, 30)] == pytest.approx(
        [2.0, 1.0, 2**-0.5, 0.5, 0.5]
    )
    # That is the width of the noise that the densities learn with.
    config = build("vdi", "default", {**SMALL, **faded, "batch": 4000})
    seen = []

    def spy(stack, norm, obs, action, target, noise):
        seen.append(float(noise.std()))
        return jnp.stack([obs[:, 0]] * 2) * jax.tree.leaves(stack)[0].sum()

    rng = np.random.default_rng(0)
    ring = make_ring(rng.normal(size=(6, 5, OBS)), rng.normal(size=(6, 4, ACTION)))
    spec = make_spec()
    flows, learned = flows_of(config, spec)._replace(log_both=spy), fresh(config, spec).learned
    for step in (0, 10, 30):
        vdi.density_step(
            config, flows, learned, spec.norm, ring, jax.random.key(1), jnp.asarray(step)
        )
    assert seen == pytest.approx([2.0, 1.0, 0.5], rel=0.05)


def test_nothing_to_imitate_is_refused():
    spec = dataclasses.replace(make_spec(), demos=None)
    with pytest.raises(UserError, match="nothing to imitate"):
        make_vdi(VDIConfig(), spec)
