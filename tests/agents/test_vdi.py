"""VDI: its target by hand, which states critic and actor learn from, and its schedules."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import (
    KEY,
    agent_state,
    compiled,
    constant,
    demo_spec,
    differs,
    draw,
    make_batch,
    make_ring,
    plain_twins,
    put,
    shaken,
)
from uvd.agents.actor_critic import ActorCritic, TD3Config
from uvd.agents.heads import make_head
from uvd.agents.state_flows import StateFlowConfig, StateFlows
from uvd.agents.vdi import VDIConfig, make_target, make_vdi, with_state_goals
from uvd.collect.exploration import CollectConfig
from uvd.core.errors import UserError
from uvd.core.policy import act

N, GAMMA = 40, 0.9
SPEC = demo_spec()
COLLECT = CollectConfig(capacity=1000)
TD3 = TD3Config(gamma=GAMMA, hidden=(16,), batch=32, critic_head="huber", action_penalty=0.0)
DENSITY = StateFlowConfig(flow_hidden=(8,), bijectors=4, short=1000)


def make(td3=TD3, density=DENSITY, spec=SPEC, **settings):
    settings = {"density_only": 0, **settings}
    return VDIConfig(collect=COLLECT, td3=td3, density=density, **settings)


def target_of(config, spec=SPEC):
    """The target as a function, the densities and a random state."""
    flows = StateFlows(config.density, spec, "adam", 0)
    bound, state_goals = math.exp(flows.log_bound), with_state_goals(spec)
    head = make_head(config.td3.critic_head, bound, 0.0)
    ac = ActorCritic(config.td3, head, state_goals, actor_reads_goal=False)

    @compiled
    def target(td3, future, batch, goal):
        after = ac.next_value(td3, batch, goal, KEY)
        return make_target(config, flows, future)(td3, batch, goal, *after)

    return target, flows, agent_state(make_vdi(config, spec), state_goals.norm), bound


def test_a_goal_of_the_critic_is_the_varying_columns_of_a_state():
    spec, norm = with_state_goals(SPEC), SPEC.norm
    assert spec.goal_dim == 2
    np.testing.assert_array_equal(spec.norm.achieved_columns, [0, 2])
    np.testing.assert_array_equal(spec.norm.goal_shift, norm.obs_shift[[0, 2]])
    np.testing.assert_array_equal(spec.norm.goal_scale, norm.obs_scale[[0, 2]])


@pytest.mark.parametrize(
    ("smoothed", "head", "smoothing"),
    [(0.0, "huber", 0.1), (0.9, "huber", 0.1), (0.0, "linear", 0.5)],
)
def test_the_target_is_that_of_algorithm_2(smoothed, head, smoothing):
    """max(lambda gamma Q' + (1 - lambda) F, gamma Q') with F(t | s, a), the smaller twin and the
    slow actor of s' alone; zero where the episode ends."""
    density = replace(DENSITY, smoothing=smoothing)
    config = make(replace(TD3, critic_head=head), density, temporal_smoothing=smoothed)
    target_fn, flows, state, bound = target_of(config)
    batch = make_batch(N, SPEC, terminated=np.arange(N) % 5 == 0)
    goal = batch.obs[::-1][:, np.array([0, 2])] * 0.5
    there = put(batch.obs, (np.s_[:, [0, 2]], goal))
    future = jax.tree.map(lambda x: 0.5 * x, state.future_target)
    f = np.exp(compiled(flows.log_f)(future, SPEC.norm, batch.obs, batch.action, there))
    assert f.max() <= bound * (1 + 1e-5)
    # Values about as large as F, so that either may be the larger.
    unit = 10 if head == "huber" else 1
    critic = shaken(state.td3.critic_target, 0.05)
    level = jnp.full((2, 1), unit * np.median(f))
    critic = critic._replace(biases=(*critic.biases[:-1], level))
    td3 = state.td3._replace(critic_target=critic, actor_target=shaken(state.td3.actor, seed=5))
    target, metrics = target_fn(td3, future, batch, goal)

    policy = make_vdi(config, SPEC).policy(state._replace(td3=td3))
    next_obs, none = np.asarray(batch.next_obs), np.zeros((N, 0), np.float32)
    action = act(jax.tree.map(np.asarray, policy), next_obs, none)
    q = GAMMA * plain_twins(critic, td3.norm, next_obs, goal, action).min(0) / unit
    alive = np.arange(N) % 5 != 0
    free = np.maximum(smoothed * q + (1 - smoothed) * f, q) * alive
    np.testing.assert_allclose(target, np.clip(free, 0, bound), rtol=1e-3, atol=2e-5)
    by_td = free <= np.where(alive, q, 0) * (1 + 1e-3)
    assert float(metrics["critic/frac_td"]) == pytest.approx(by_td.mean(), abs=0.03)
    assert 4 < (by_td & alive).sum() < alive.sum() - 4, "either is to be the larger now and then"


def test_no_target_exceeds_its_bound():
    target_fn, _, state, bound = target_of(make())
    batch = make_batch(N, SPEC, terminated=np.arange(N) % 5 == 0)
    goal = batch.obs[:, np.array([0, 2])]
    for q, expected in ((2 * bound, bound), (-2 * bound, 0.0)):
        slow = constant(state.td3.critic, 10 * q, 10 * q)
        # A density that is 0 everywhere but far away
        far = jax.tree.map(jnp.zeros_like, state.future_target)
        far = (far[0]._replace(biases=(*far[0].biases[:-1], far[0].biases[-1] + 1e3)), *far[1:])
        target, metrics = target_fn(state.td3._replace(critic_target=slow), far, batch, goal)
        np.testing.assert_allclose(target, expected * ~np.asarray(batch.terminated), rtol=1e-6)
        over = float(metrics["critic/target_over_bound_max"])  # what it would have been
        assert over == pytest.approx(max(2 * GAMMA * np.sign(q), 0), rel=1e-5)


def test_critics_start_at_a_share_of_the_densitys_bound():
    td3 = replace(TD3, critic_start=-0.025, hidden=(), actor_hidden=(3,))
    config = make(td3, replace(DENSITY, flow_hidden=(), bijectors=1))
    flows = StateFlows(config.density, SPEC, "adam", 0)
    state = make_vdi(config, SPEC).init(KEY)
    # Small first weights: a fresh critic's value is its bias.
    start = state.td3.critic.biases[-1] / 10
    np.testing.assert_allclose(start, -0.025 * math.exp(flows.log_bound), rtol=1e-4)
    assert not differs(state.future_target, state.flows.future)
    np.testing.assert_array_equal(state.log_d, np.zeros(12))


DEMOS = 4


@pytest.fixture(scope="module")
def learner():
    """Updates of an agent that imitates four states, one for each of four columns."""
    spec = demo_spec(varying=range(DEMOS), demos=DEMOS, obs=DEMOS, action=DEMOS)
    norm = spec.norm._replace(
        obs_shift=np.zeros(DEMOS, np.float32), obs_scale=np.ones(DEMOS, np.float32)
    )
    demos = spec.demos._replace(obs=np.eye(DEMOS, dtype=np.float32))
    spec = replace(spec, norm=norm, demos=demos)
    config = make(
        replace(
            TD3, batch=8000, hidden=(DEMOS,), actor_hidden=(3,), goal_input="absolute",
            critic_head="linear", policy_delay=1, actor_start=5,
        ),
        replace(DENSITY, bijectors=2, short=4),
        flow_delay=4, early_delay=2, early_updates=5, density_only=3,
    )  # fmt: skip
    agent = make_vdi(config, spec)
    update = compiled(
        lambda state, ring, i: agent.update(state, ring, jax.random.fold_in(KEY, i), i)
    )
    return config, spec, update, agent_state(agent, with_state_goals(spec).norm)


def ring_of(obs):
    return make_ring(obs, np.full((*np.shape(obs[:, 1:, 0]), DEMOS), 0.5))


def test_critics_learn_of_all_states_alike_and_actors_by_weight(learner):
    """Line 10 and line 14 of Algorithm 2, read off a critic that is made for it.

    The first twin is the sum over k of leaky(10 (t_k - 1) + a_k): its slope in a_k is 1 for the
    k-th demonstrated state t and 0.01 for the others. The second twin is 10^k for the k-th state.
    """
    _, _, update, state = learner
    rng, d = np.random.default_rng(0), 5 * np.array([0.1, 1.0, 2.0, 0.9])
    critic, eye = constant(state.td3.critic, 0.0, 0.0), np.eye(DEMOS)
    goal_rows, action_rows = slice(DEMOS, 2 * DEMOS), slice(2 * DEMOS, None)
    first = put(
        critic.weights[0],
        ((0, goal_rows), 10 * eye),
        ((0, action_rows), eye),
        ((1, goal_rows), eye),
    )
    last = put(critic.weights[1], (0, 1), (np.s_[1, :, 0], 10.0 ** np.arange(DEMOS)))
    biases = (put(critic.biases[0], (0, -10)), critic.biases[1])
    critic = critic._replace(weights=(first, last), biases=biases)
    lean = np.full(DEMOS, 0.3)
    td3 = state.td3._replace(critic=critic, actor=constant(state.td3.actor, *lean))
    state = state._replace(td3=td3, log_d=jnp.log(d))
    obs = draw(rng, 6, 5, DEMOS)
    after, metrics = update(state, ring_of(obs), 7)
    taken = 0.5 + 3 * 0.01 * (0.5 - 10)  # the first twin at the actions of the replay buffer
    assert 2 * float(metrics["critic/q"]) - taken == pytest.approx(1111 / 4, rel=0.05)
    slope = -after.td3.actor_opt[0].mu.biases[-1] / 0.1 / (1 - np.tanh(lean) ** 2)
    weight = np.minimum(5 / d, 4.0)  # the mean of d is 5
    np.testing.assert_allclose((slope - 0.01) / 0.99, weight / weight.sum(), atol=0.03)
    assert float(metrics["demos/weight_max"]) == pytest.approx(4.0)


def test_the_critic_learns_from_the_whole_replay_buffer(learner):
    """The short one, of the last episode here, is the densities' (line 9)."""
    _, _, update, state = learner
    obs = np.zeros((6, 5, DEMOS), np.float32)
    obs[:, :, 0] = np.arange(6)[:, None]
    critic = constant(state.td3.critic, 0.0, 0.0)  # both twins are the first observation
    first = put(critic.weights[0], (np.s_[:, 0, 0], 1))
    critic = critic._replace(weights=(first, put(critic.weights[1], (np.s_[:, 0], 1))))
    _, metrics = update(state._replace(td3=state.td3._replace(critic=critic)), ring_of(obs), 7)
    clipped = np.minimum(np.arange(6), 5).mean()
    assert float(metrics["critic/q"]) == pytest.approx(clipped, rel=0.05)


def test_schedules(learner):
    config, spec, update, start = learner
    rng = np.random.default_rng(0)
    ring, states, logged = ring_of(draw(rng, 6, 5, DEMOS)), [start], []
    for step in range(10):
        state, metrics = update(states[-1], ring, step)
        states.append(state)
        logged.append(metrics)

    def changed(pick):
        pairs = itertools.pairwise(map(pick, states))
        return [step for step, (before, after) in enumerate(pairs) if differs(before, after)]

    assert changed(lambda s: s.flows) == list(range(10))
    assert changed(lambda s: s.future_target) == [0, 2, 4, 8]  # every 2nd, then every 4th
    assert changed(lambda s: s.log_d) == [0, 2, 4, 8]
    assert changed(lambda s: s.td3.critic) == list(range(3, 10))
    assert changed(lambda s: s.td3.critic_target) == list(range(3, 10))
    assert changed(lambda s: s.td3.actor) == list(range(5, 10))
    # The newest fit is copied, and the weights are those of that copy.
    copied = states[5]
    assert not differs(copied.future_target, copied.flows.future)
    flows = StateFlows(config.density, spec, "adam", 0)
    log_d = compiled(flows.log_d)(copied.flows.state, spec.norm, jnp.asarray(spec.demos.obs))
    np.testing.assert_allclose(copied.log_d, log_d, atol=1e-5)
    for step, metrics in enumerate(logged):
        assert all(np.isfinite(x).all() for x in metrics.values())
        assert (float(metrics["critic/loss"]) != 0) == (step >= 3)
    assert float(logged[4]["demos/log_d_min"]) == pytest.approx(float(log_d.min()), abs=1e-5)


def test_the_policy_pursues_no_goal():
    agent = make_vdi(make(), SPEC)
    state = agent_state(agent, with_state_goals(SPEC).norm)
    policy = jax.tree.map(np.asarray, agent.policy(state))
    assert policy.net.weights[0].shape[0] == SPEC.obs_dim
    action = act(policy, draw(np.random.default_rng(0), 7, 3), np.zeros((7, 0), np.float32))
    assert action.shape == (7, 2)


def test_nothing_to_imitate_is_refused():
    for spec in (replace(SPEC, demos=None), demo_spec(demos=0)):
        with pytest.raises(UserError, match="nothing to imitate"):
            make_vdi(VDIConfig(), spec)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flow_delay": 0}, "flow_delay = 0 must be at least 1"),
        ({"early_delay": 100}, "early_delay and early_updates have a meaning only together"),
        (
            {"td3": replace(TD3, actor_start=10), "density_only": 500},
            "waits for density_only = 500",
        ),
        (
            {"density": replace(DENSITY, short=2000)},
            "short = 2000 is larger than the replay buffer",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make(**settings)


def test_targets_read_the_copy_of_f():
    spec = demo_spec()
    config = make()
    agent = make_vdi(config, spec)
    state = agent_state(agent, with_state_goals(spec).norm)
    far = jax.tree.map(jnp.zeros_like, state.future_target)
    far = (far[0]._replace(biases=(*far[0].biases[:-1], far[0].biases[-1] + 1e3)), *far[1:])
    td3 = state.td3._replace(critic_target=constant(state.td3.critic, 0.0, 0.0))
    state = state._replace(td3=td3, future_target=far)
    ring = make_ring(draw(np.random.default_rng(0), 6, 5, 3), np.zeros((6, 4, 2)))
    _, metrics = compiled(lambda s: agent.update(s, ring, KEY, jnp.asarray(7)))(state)
    assert float(metrics["critic/target"]) == 0  # the newest fit is not 0 there
