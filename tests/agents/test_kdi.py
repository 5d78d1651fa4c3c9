"""KDI: rewards and targets against SciPy's Gaussians, weights, schedules and the score."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from small_tasks import (
    KEY,
    agent_state,
    compiled,
    constant,
    demo_spec,
    draw,
    make_batch,
    make_ring,
    plain_twins,
    random_ring,
)
from uvd.agents import kdi
from uvd.agents.actor_critic import ActorCritic, TD3Config
from uvd.agents.agent import DemoSteps
from uvd.agents.heads import make_head
from uvd.agents.kdi import (
    LOG_DENSITY_FLOOR,
    MAX_STEPS,
    KDIConfig,
    Weighted,
    defaults_for,
    make_kdi,
    make_target,
    weigh,
)
from uvd.agents.kernels import Kernels
from uvd.core.errors import UserError
from uvd.core.policy import act
from uvd.settings import build

N, GAMMA, WIDTH = 40, 0.9, 0.7
SPEC = replace(demo_spec(demos=4), cycle_steps=4)
TD3 = TD3Config(gamma=GAMMA, hidden=(16,), batch=32, critic_head="huber", action_penalty=0.0)
CONFIG = KDIConfig(
    td3=TD3, match="pairs", width=WIDTH, width_half=0, width_end=0.2, weight_bound=3.0, short=9
)
D = np.array([0.01, 0.1, 0.2, 0.09])  # of the demonstrated steps; the mean is 0.1


def gaussian(x, y, width):
    """The density of y under a Gaussian around x, over its peak."""
    pdf = stats.norm.pdf(x - y, scale=width) / stats.norm.pdf(0, scale=width)
    return pdf.prod(-1)


def pair_points(obs, action):
    """Pairs as the kernels compare them."""
    return np.concatenate([obs[..., [0, 2]] / SPEC.norm.obs_scale[[0, 2]], action], -1)


def test_weights_are_bounded_inverse_densities_of_all_steps():
    points = jnp.asarray(draw(np.random.default_rng(0), 4, 3))
    weighted = weigh(CONFIG, points, jnp.log(D), KEY)
    np.testing.assert_array_equal(weighted.points, points)
    expected = np.maximum(D, 0.1 / 3)  # 1 / weight
    np.testing.assert_allclose(np.exp(weighted.log_unit[:, 0]), expected, rtol=1e-5)
    # Where the agent is near none of them, d stays a number that one can divide by.
    far = weigh(CONFIG, points, jnp.full(4, -1e3), KEY)
    np.testing.assert_array_equal(far.log_unit, np.full((4, 1), LOG_DENSITY_FLOOR))


def test_of_very_many_steps_some_are_drawn_by_weight():
    """The mean of F / d over the drawn steps is the mean over all of them (Eq. 8)."""
    n = 5 * MAX_STEPS
    rng = np.random.default_rng(0)
    d, f = rng.uniform(0.02, 1, n), rng.uniform(size=n)
    weigh_all = compiled(lambda key: weigh(CONFIG, jnp.arange(n)[:, None], jnp.log(d), key))
    weighted = weigh_all(KEY)
    assert weighted.points.shape == (MAX_STEPS, 1)
    inverse = np.minimum(1 / d, 3.0 / d.mean())
    drawn = np.asarray(weighted.points)[:, 0]
    assert (1 / d)[drawn].mean() > (1 / d).mean()
    drawn_weight = np.minimum(d.mean() / d, 3)
    share = (drawn_weight > 2)[drawn].mean()
    expected = drawn_weight[drawn_weight > 2].sum() / drawn_weight.sum()
    assert share == pytest.approx(expected, abs=0.05)
    mean = (f[drawn] / np.exp(weighted.log_unit[:, 0])).mean()
    assert mean == pytest.approx((f * inverse).mean(), rel=0.05)
    np.testing.assert_allclose(np.exp(-weighted.log_unit), inverse.mean(), rtol=1e-4)
    far = compiled(lambda: weigh(CONFIG, jnp.arange(n)[:, None], jnp.full(n, -1e3), KEY))()
    np.testing.assert_allclose(far.log_unit, LOG_DENSITY_FLOOR)


@pytest.mark.parametrize("match", ["pairs", "changes", "states"])
def test_the_target_is_the_mean_ratio_and_the_value_that_follows(match):
    """(1 - gamma) mean F / d + gamma Q' with the smaller twin; a step that ends the task earns the
    reward of its pair or change, but not that of the state it leads to."""
    kernels = Kernels(match, SPEC)
    ac = ActorCritic(TD3, make_head("huber", 1.0, 0.0), SPEC)
    state = agent_state(make_kdi(CONFIG, SPEC), SPEC.norm).td3
    batch = make_batch(N, SPEC, terminated=np.arange(N) % 3 == 0)
    units = np.maximum(D, 0.1 / 3)
    weighted = Weighted(kernels.demo_points, jnp.log(units)[:, None])
    none = jnp.zeros((N, 0))

    @compiled
    def target_of(state):
        after = ac.next_value(state, batch, none, KEY)
        target_fn = make_target(CONFIG, kernels, jnp.asarray(WIDTH), weighted)
        return target_fn(state, batch, none, *after)

    target, metrics = target_of(state)
    # Densities are tested with the kernels; here it matters how they enter.
    f = np.exp(kernels.log_f(jnp.asarray(WIDTH), SPEC.norm, batch, kernels.demo_points))
    reward = (f / units[:, None]).mean(0)
    action = act(jax.tree.map(np.asarray, ac.policy(state)), np.asarray(batch.next_obs), none)
    q = plain_twins(state.critic, state.norm, batch.next_obs, none, action).min(0) / 10
    alive = np.arange(N) % 3 != 0
    free = (1 - GAMMA) * reward * (alive if match == "states" else 1) + GAMMA * q * alive
    bound = (1 / units).mean()
    assert (free < 0).any()
    assert (free[~alive] > 0).any() == (match != "states")
    np.testing.assert_allclose(target, np.clip(free, 0, bound), rtol=1e-3, atol=1e-6)
    assert float(metrics["critic/reward"]) > 0
    # Within the bound: the largest reward for ever
    slow = constant(state.critic, 20 * bound, 20 * bound)
    target, metrics = target_of(state._replace(critic_target=slow))
    np.testing.assert_allclose(np.asarray(target)[alive], bound, rtol=1e-5)
    assert float(metrics["critic/target_over_bound_max"]) > 1.7


@pytest.fixture(scope="module")
def history():
    """States and metrics of six updates on noise."""
    config = replace(CONFIG, width_half=2)
    agent, ring = make_kdi(config, SPEC), random_ring(SPEC)
    update = compiled(lambda state, i: agent.update(state, ring, jax.random.fold_in(KEY, i), i))
    state, states = agent_state(agent, SPEC.norm), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kdi, "REFRESH", 2)
        for step in range(6):
            state, metrics = update(state, step)
            states.append((state, metrics))
    return ring, states


def test_kernels_narrow_and_d_is_taken_at_each_refresh(history):
    """Widths and densities are those of the last refresh, and rewards are computed with them."""
    ring, states = history
    kernels = Kernels("pairs", SPEC)
    expected = np.maximum(WIDTH * 0.5 ** np.array([0, 0, 1, 1, 2, 2.0]), 0.2)
    np.testing.assert_allclose([float(s.width) for s, _ in states], expected, rtol=1e-5)
    log_d = compiled(lambda width: kernels.log_d(width, SPEC.norm, ring, 9))
    for state, metrics in states:
        np.testing.assert_allclose(state.log_d, log_d(state.width), rtol=1e-4)
        assert all(np.isfinite(x).all() for x in metrics.values())
        d = np.exp(state.log_d)
        weight = np.minimum(d.mean() / d, 3.0)
        assert float(metrics["demos/weight_max"]) == pytest.approx(weight.max(), rel=1e-4)


def test_rewards_are_of_the_width_and_the_weights_of_the_last_refresh(history):
    """The mean reward of an update is near that of the whole replay buffer."""
    ring, states = history
    obs, action = (np.asarray(x)[np.asarray(ring.order)[:24]] for x in (ring.obs, ring.action))
    x, demo = pair_points(obs, action), pair_points(SPEC.demos.obs, SPEC.demos.action)
    for state, metrics in states:
        d = np.exp(state.log_d)
        f = gaussian(demo[:, None], x, float(state.width))
        reward = (f * np.minimum(1 / d, 3 / d.mean())[:, None]).mean(0)
        error = reward.std() / TD3.batch**0.5
        assert float(metrics["critic/reward"]) == pytest.approx(reward.mean(), abs=4 * error)


def test_the_score_is_the_likelihood_of_demonstrations_under_the_newest_cycle_alone():
    """The mean of log(d + e^-3) at the width of the end."""
    rng = np.random.default_rng(0)
    for half, width in ((2, 0.2), (0, WIDTH)):  # without narrowing, the width stays
        agent = make_kdi(replace(CONFIG, width_half=half), SPEC)
        state = agent_state(agent, SPEC.norm)
        obs, action = draw(rng, 3, 5, 3), draw(rng, 3, 4, 2)
        # The last cycle is near the demonstrations.
        obs[2, :4] = SPEC.demos.obs + 0.1 * obs[2, :4]
        action[2] = SPEC.demos.action + 0.1 * action[2]
        score = compiled(agent.score)(state, make_ring(obs, action))
        demo = pair_points(SPEC.demos.obs, SPEC.demos.action)
        d = gaussian(demo[:, None], pair_points(obs[2, :4], action[2]), width).mean(1)
        expected = np.log(d + np.exp(-3)).mean()
        assert float(score) == pytest.approx(expected, rel=1e-3)


def test_the_policy_acts_without_a_goal():
    agent = make_kdi(CONFIG, SPEC)
    policy = jax.tree.map(np.asarray, agent.policy(agent_state(agent, SPEC.norm)))
    action = act(policy, draw(np.random.default_rng(0), 7, 3), np.zeros((7, 0), np.float32))
    assert action.shape == (7, 2)


OFFERS = {
    "pairs": DemoSteps(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros((2, 3))),
    "changes": DemoSteps(np.zeros((2, 3)), None, np.zeros((2, 3))),
    "states": DemoSteps(np.zeros((2, 3))),
}
WIDTHS = {  # width, width_half, width_end, weight_bound, short
    "pairs": (0, 0, 0.7, 5.0, 4000),
    "changes": (0, 0, 0.7, 5.0, 4000),
    "states": (1.16, 0, 0.7, 30.0, 20_000),
}
NOISE = {  # noise, late_noise, late_updates
    "pairs": (0.15, 0.07, 60_000),
    "changes": (0.3, 0.1, 100_000),
    "states": (0.15, 0.1, 600_000),
}


@pytest.mark.parametrize("match", OFFERS)
def test_defaults_follow_from_what_the_demonstrations_offer(match):
    """The numbers of docs/kdi.md."""
    defaults = defaults_for({}, OFFERS[match])
    config = build("kdi", "PointLoop-v0", defaults=defaults).settings
    assert config.match == match
    found = (config.width, config.width_half, config.width_end, config.weight_bound, config.short)
    assert found == WIDTHS[match]
    collect = config.collect
    assert (collect.noise, collect.late_noise, collect.late_updates) == NOISE[match]
    assert defaults_for({"match": "states"}, OFFERS[match])["width"] == 1.16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width_end": 0.8, "width_half": 9}, "width_end = 0.8 is above width = 0.7"),
        ({"width": 0.0, "width_half": 9}, "width_half = 9 needs a width"),
        ({"td3": replace(TD3, critic_head="tanh")}, "critic_head = tanh: the reward has no known"),
        ({"match": "pair"}, "unknown match 'pair'; nearest: pairs"),
        ({"weight_bound": 0.5}, "weight_bound = 0.5 must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        replace(CONFIG, **settings)


def test_nothing_to_imitate_is_refused():
    with pytest.raises(UserError, match="nothing to imitate"):
        make_kdi(CONFIG, replace(SPEC, demos=None))


def test_a_width_that_is_not_given_follows_from_how_near_the_agent_is():
    """At each refresh the mean of log d is the same, and the score needs no width."""
    ring, spec = random_ring(SPEC), replace(SPEC, horizon=4)
    agent = make_kdi(replace(CONFIG, width=0.0), spec)
    state, _ = compiled(agent.update)(agent_state(agent, SPEC.norm), ring, KEY, 0)
    kernels = Kernels("pairs", SPEC)
    log_d = compiled(lambda: kernels.log_d(state.width, SPEC.norm, ring, 9))()
    wanted = -(2 + 4 / 10)  # two columns of the state vary, and two of the action
    assert log_d.mean() == pytest.approx(wanted, abs=0.02)
    assert state.log_d.mean() == pytest.approx(wanted, abs=0.02)
    near = compiled(lambda: kernels.closeness(SPEC.norm, ring, kdi.SCORED_STEPS))()
    lasted = kdi.survival(ring, kdi.SCORED_STEPS, 4)
    np.testing.assert_allclose(compiled(agent.score)(state, ring), near + np.log(lasted), rtol=1e-5)


def test_a_width_that_follows_is_not_too_narrow():
    """An agent that only repeats the demonstrated step: 0.15 sqrt(4 columns)."""
    spec = replace(SPEC, demos=DemoSteps(*(x[:1] for x in SPEC.demos)))
    obs = np.tile(np.asarray(spec.demos.obs), (1, 5, 1))
    ring = make_ring(obs, np.tile(np.asarray(spec.demos.action), (1, 4, 1)))
    agent = make_kdi(replace(CONFIG, width=0.0), spec)
    state, _ = compiled(agent.update)(agent_state(agent, spec.norm), ring, KEY, 0)
    assert state.width == pytest.approx(0.3)


def test_episodes_that_end_early_count_by_how_long_they_last():
    """Episodes of the whole length, cut by a limit, and ended by the task after half of it."""
    spec = replace(SPEC, horizon=4, cycle_steps=8)
    rng = np.random.default_rng(0)
    obs, action = draw(rng, 2, 5, 3), draw(rng, 2, 4, 2)
    agent = make_kdi(CONFIG, spec)
    state = agent_state(agent, spec.norm)
    score = compiled(agent.score)
    found = {}
    for name, length, terminated in (("whole", 4, False), ("cut", 2, False), ("fell", 2, True)):
        ring = make_ring(obs, action, length=[length] * 2, terminated=terminated)
        log_d = Kernels("pairs", spec).log_d(CONFIG.width, spec.norm, ring, 8)
        share = 0.5 if name == "fell" else 1.0
        found[name] = np.logaddexp(np.asarray(log_d) + np.log(share), -3).mean()
        np.testing.assert_allclose(score(state, ring), found[name], rtol=1e-4)
    assert found["fell"] < found["cut"]
