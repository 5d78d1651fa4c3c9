"""VDI without flows: kernels against SciPy's Gaussians, and the target that they make."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from imitated import ACTION, OBS, SMALL, N, fresh, history, make_batch, make_ring, make_spec
from uvd.agents import vdi
from uvd.agents.kernels import make_kernels, squared_distances
from uvd.agents.vdi import make_vdi
from uvd.core.errors import UserError
from uvd.settings import build

LIVE = [0, 2]
KERNEL = {
    **SMALL, "density": "kernel", "combine": "sum", "horizon": 1, "average": False, "pool": 4,
    "smoothing": 0.7, "weight_bound": 3.0, "gamma": 0.9,
}  # fmt: skip


COMPARE = pytest.mark.parametrize("compare", ["states", "pairs", "changes"])


def points(spec, compare, obs, action, after):
    """What kernels compare, in the plain."""
    x = np.asarray(obs)[..., LIVE] / spec.norm.obs_scale[LIVE]
    if compare == "states":
        return x
    demos = spec.demos
    varies = (demos.next_obs - demos.obs)[:, LIVE].std(0)
    change = np.asarray(after - obs)[..., LIVE] / (2 * varies)
    return np.concatenate([x, action if compare == "pairs" else change], -1)


def following(spec, compare, batch):
    """The same of what a transition is valued by."""
    at = batch.next_obs if compare == "states" else batch.obs
    return points(spec, compare, at, batch.action, batch.next_obs)


def gaussian(x, y, width):
    """The density of y under a Gaussian around x, over its peak."""
    pdf = stats.norm.pdf(x - y, scale=width) / stats.norm.pdf(0, scale=width)
    return pdf.prod(-1)


def test_distances_are_those_of_the_points_and_precise_where_they_are_near():
    rng = np.random.default_rng(0)
    x = 3 * rng.normal(size=(5, 22))
    y = np.concatenate([x[:2] + 1e-2 * rng.normal(size=(2, 22)), 3 * rng.normal(size=(4, 22))])
    want = ((x[:, None] - y) ** 2).sum(-1)
    got = squared_distances(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@COMPARE
def test_d_is_the_mean_of_gaussians_around_what_was_met(compare):
    spec, rng, width = make_spec(), np.random.default_rng(0), 0.9
    shown = points(spec, compare, *spec.demos)
    kernels = make_kernels(spec, compare)
    obs, action = rng.normal(size=(3, 5, OBS)), rng.normal(size=(3, 4, ACTION))
    for episodes in (3, 1):  # more than the short memory holds, and fewer
        ring = make_ring(obs[:episodes], action[:episodes])
        played = obs[:episodes, :-1], action[:episodes], obs[:episodes, 1:]
        starts = points(spec, compare, *played)
        met = np.concatenate(starts)[-9:]
        want = gaussian(shown[:, None], met, width).mean(1)
        np.testing.assert_allclose(
            np.exp(kernels.log_d(width, spec.norm, ring, 9)), want, rtol=1e-3
        )


@COMPARE
def test_f_is_of_what_follows_or_of_the_pair_itself(compare):
    spec, rng, width = make_spec(), np.random.default_rng(0), 0.9
    batch, kernels = make_batch(rng), make_kernels(spec, compare)
    shown = points(spec, compare, *spec.demos)
    here = following(spec, compare, batch)
    want = gaussian(shown[:, None], here, width)
    np.testing.assert_allclose(
        np.exp(kernels.log_f_all(width, spec.norm, batch)), want, rtol=1e-3, atol=1e-6
    )
    assert want.shape == (12, N)
    # One for each transition: the same, of that row.
    which = rng.integers(12, size=N)
    one = np.exp(kernels.log_f(width, spec.norm, batch, kernels.shown[which]))
    np.testing.assert_allclose(one, want[which, np.arange(N)], rtol=1e-3, atol=1e-6)


@COMPARE
def test_the_target_is_the_mean_ratio_and_what_comes_after(monkeypatch, compare):
    """(1 - gamma) mean F / d + gamma Q', 1 / d bounded: all states, none drawn."""
    spec, seen = make_spec(demos=4), {}
    config = build("vdi", "default", {**KERNEL, "compare": compare})
    real = vdi.make_target

    def spy(config, head, density, bound):
        inner = real(config, head, density, bound)

        def target_fn(state, batch, goal, key):
            # Q' is whatever the target has besides F.
            q, _ = vdi.next_value(config.td3, head, state, batch, goal, key, vdi.free_policy)
            target, metrics = inner(state, batch, goal, key)
            seen.update(batch=batch, target=target, q=q, bound=bound)
            return target, metrics

        return target_fn

    monkeypatch.setattr(vdi, "make_target", spy)
    rng = np.random.default_rng(0)
    ring = make_ring(rng.normal(size=(6, 5, OBS)), rng.normal(size=(6, 4, ACTION)), True)
    d = np.array([0.01, 0.1, 0.2, 0.09])
    state = fresh(config, spec)._replace(log_d=jnp.log(d))
    make_vdi(config, spec).update(state, ring, jax.random.key(0), jnp.asarray(1))
    batch = seen["batch"]
    shown = points(spec, compare, *spec.demos)
    here = following(spec, compare, batch)
    f = gaussian(shown[:, None], here, 0.7)
    counts = np.maximum(d, 0.1 / 3.0)  # the mean of d is 0.1
    want = 0.1 * (f / counts[:, None]).mean(0) + 0.9 * np.asarray(seen["q"])
    if compare == "states":  # a pair or a change was played before anything ended
        want *= ~np.asarray(batch.terminated)
    assert (want > 0).any()
    assert np.asarray(batch.terminated).any()
    np.testing.assert_allclose(seen["target"], np.maximum(want, 0), rtol=1e-3, atol=1e-6)
    assert float(seen["bound"]) == pytest.approx((1 / counts).mean(), rel=1e-4)

    # Where nothing is near any of them, d stays what a float can divide by.
    far = state._replace(log_d=jnp.full(4, -1e3))
    make_vdi(config, spec).update(far, ring, jax.random.key(0), jnp.asarray(1))
    assert float(seen["bound"]) == pytest.approx(np.exp(vdi.FARTHEST), rel=1e-3)


def test_kernels_narrow_and_d_is_taken_at_each_copy():
    narrows = {"smoothing_half": 2, "smoothing_end": 0.2, "flow_delay": 2}
    _, states, logged = history({**KERNEL, **narrows, "short": 9}, 6)
    widths = [float(s.future_target) for s in states[1:]]  # as of the last copy
    want = 0.7 * 0.5 ** np.array([0, 0, 1, 1, 2, 2.0])
    np.testing.assert_allclose(widths, np.maximum(want, 0.2), rtol=1e-5)
    spec, rng = make_spec(), np.random.default_rng(0)
    ring = make_ring(rng.normal(size=(6, 5, OBS)), np.tanh(rng.normal(size=(6, 4, ACTION))))
    for state, width in zip(states[1:], widths):
        want = make_kernels(spec, "states").log_d(width, spec.norm, ring, 9)
        np.testing.assert_allclose(state.log_d, want, rtol=1e-5)
    for metrics in logged:
        assert all(np.isfinite(x).all() for x in metrics.values())


def test_a_change_that_does_not_vary_counts_as_if_it_did():
    spec = make_spec()
    spec = dataclasses.replace(spec, demos=spec.demos._replace(next_obs=spec.demos.obs))
    batch = make_batch(np.random.default_rng(0))
    batch = batch._replace(obs=spec.demos.obs[:1] + 0 * batch.obs)
    batch = batch._replace(next_obs=batch.obs + 0.02 * spec.norm.obs_scale)
    log_f = make_kernels(spec, "changes").log_f_all(1.0, spec.norm, batch)
    np.testing.assert_allclose(log_f[0], -(2.0**2 + 2.0**2) / 2, rtol=1e-3)


def test_what_is_compared_has_to_be_there():
    spec = make_spec()
    bare = dataclasses.replace(spec, demos=spec.demos._replace(action=None, next_obs=None))
    make_kernels(bare, "states")
    with pytest.raises(UserError, match="no actions, which compare = pairs needs"):
        make_kernels(bare, "pairs")
    with pytest.raises(UserError, match="what each chosen step led to"):
        make_kernels(bare, "changes")
    make_kernels(dataclasses.replace(spec, demos=spec.demos._replace(action=None)), "changes")


def test_who_is_kept_made_demonstrations_likeliest_in_its_own_cycle():
    """log (d + e^-3) of the newest cycle, at the width of the end, decides; who plays goes on."""
    spec = dataclasses.replace(make_spec(demos=4), cycle=4)
    narrows = {"smoothing_half": 2, "smoothing_end": 0.35}
    config = build("vdi", "default", {**KERNEL, **narrows, "keep": True, "compare": "pairs"})
    agent, state, rng = make_vdi(config, spec), fresh(config, spec), np.random.default_rng(0)
    shown = points(spec, "pairs", *spec.demos)
    cycles, scores, kept = [], [], []
    for i, far in enumerate((2.0, 0.3, 1.0, 0.1)):
        obs = np.repeat(spec.demos.obs[None], 5, 1)[:, :5] + far * rng.normal(size=(1, 5, OBS))
        action = spec.demos.action[None] + far * rng.normal(size=(1, 4, ACTION))
        cycles.append((obs, action))
        d = gaussian(
            shown[:, None], points(spec, "pairs", obs[0, :4], action[0], obs[0, 1:5]), 0.35
        ).mean(1)
        scores.append(np.log(d + np.exp(-3)).mean())
        ring = make_ring(*(np.concatenate(x) for x in zip(*cycles)))
        player = agent.policy(state)
        player = player._replace(net=jax.tree.map(lambda x, i=i: jnp.full_like(x, i), player.net))
        state = agent.judged(state, player, ring)
        assert float(state.kept.score) == pytest.approx(max(scores), rel=1e-3)
        kept.append(float(agent.result(state).net.biases[0][0]))
    assert kept == [int(np.argmax(scores[: i + 1])) for i in range(4)]
    assert len(set(kept)) > 1
    assert kept[2] != 2.0, "not just the newest"
    assert agent.policy(state).net is state.td3.actor_target
    alone = make_vdi(build("vdi", "default", KERNEL), spec)
    assert alone.judged(state, player, ring) is state


def test_until_episodes_have_their_final_length_who_plays_is_kept():
    """Scores of shorter episodes are no measure for those of longer ones."""
    spec = dataclasses.replace(make_spec(demos=4), cycle=4)
    config = build("vdi", "default", {**KERNEL, "keep": True})
    agent, state, rng = make_vdi(config, spec), fresh(config, spec), np.random.default_rng(0)
    kept, scores = [], []
    # The second is nearest of all, and the fourth nearest of those that count.
    for i, (far, settled) in enumerate(
        [(2.0, False), (0.01, False), (1.0, False), (0.2, True), (1.0, True)]
    ):
        shown = np.concatenate([spec.demos.obs, spec.demos.obs[:1]])[None]
        ring = make_ring(
            shown + far * rng.normal(size=shown.shape), rng.normal(size=(1, 4, ACTION))
        )
        player = agent.policy(state)
        player = player._replace(net=jax.tree.map(lambda x, i=i: jnp.full_like(x, i), player.net))
        state = agent.judged(state, player, ring, settled)
        kept.append(int(agent.result(state).net.biases[0][0]))
        scores.append(float(state.kept.score))
    assert kept == [0, 1, 2, 3, 3]
    assert scores[1] == max(scores)
    assert scores[2] < scores[3] == scores[4] < scores[1]
