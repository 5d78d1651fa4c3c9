"""UVD's target by hand and within its bound, its units, and values of a known chain."""

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
    filled,
    goal_spec,
    insert_episodes,
    make_batch,
    make_ring,
    plain_twins,
    put,
    random_ring,
    shaken,
)
from uvd.agents.actor_critic import ActorCritic, TD3Config
from uvd.agents.futures import Context
from uvd.agents.goal_density import DensityConfig, GoalDensity
from uvd.agents.goals import GoalsConfig
from uvd.agents.heads import make_head
from uvd.agents.uvd import COMBINE, Signals, UVDConfig, make_target, make_uvd
from uvd.collect.exploration import CollectConfig
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.core.policy import act

SPEC = goal_spec()
STEP = jnp.asarray(0)
TD3 = TD3Config(hidden=(16,), batch=64, critic_head="linear", gamma=0.9)
DENSITY = DensityConfig(flow_hidden=(8,), bijectors=4, smoothing_half=0)
INTENDED = GoalsConfig(td_goals="intended", actor_goals="intended")


@pytest.mark.parametrize(
    ("combine", "signals", "expected"),
    [
        ("sum", {}, 0.1 * 0.3 + 0.9 * 0.5),
        ("sum", {"f": 0.0}, 0.45),
        ("max", {}, 0.45),
        ("max", {"f": 0.6}, 0.6),
        ("max-next", {}, 0.7),
        ("max-next", {"q": 0.8}, 0.72),
        ("max-paper", {}, 0.9 * 0.7),
        ("max-paper", {"q": 0.8}, 0.9 * 0.8),
    ],
)
def test_combine_by_hand(combine, signals, expected):
    values = {"f": 0.3, "f_next": 0.7, "q": 0.5, **signals}
    given = Signals(lambda: values["f"], lambda: values["f_next"], values["q"], 0.9)
    assert float(COMBINE[combine](given)) == pytest.approx(expected)


def test_every_combination_is_covered():
    assert {*COMBINE} == {"sum", "max", "max-next", "max-paper"}


def make_density(config, spec=SPEC):
    return GoalDensity(config, spec, "adam", TD3.gamma)


def random_flow(density, size=1.0, seed=0):
    flow = filled(jax.eval_shape(density.flow.init, KEY), seed)
    return jax.tree.map(lambda x: size * x, flow)


def test_targets_read_the_density_at_the_right_place():
    """F(g | s, a, g) or F(g | s', a', g) with a' = mu'(s'; g), in units of the kernel's peak, and
    the smaller twin; nothing comes after an end."""
    density = make_density(DENSITY)
    ac = ActorCritic(TD3, make_head("linear", density.bound, 0.0), SPEC)
    flow, state = random_flow(density, 0.5), agent_state(ac, SPEC.norm)
    other = shaken(state)
    state = state._replace(actor_target=other.actor, critic_target=other.critic)
    # Q' about as large as F, so that either may be the larger.
    critic = jax.tree.map(lambda x: 0.05 * x, state.critic_target)
    critic = critic._replace(biases=(critic.biases[0], jnp.full((2, 1), 0.1)))
    state = state._replace(critic_target=critic)
    n = 64
    batch = make_batch(n, SPEC, terminated=np.arange(n) % 4 == 0)
    # Goals near what is achieved before or after the step
    near = jnp.where((jnp.arange(n) % 2 == 0)[:, None], batch.achieved, batch.next_achieved)
    goal = near + 0.3 * batch.goal

    @compiled
    def targets(goal):
        after = ac.next_value(state, batch, goal, KEY)
        configs = {c: UVDConfig(td3=TD3, density=DENSITY, combine=c) for c in COMBINE}
        return {
            combine: make_target(config, density, flow, STEP)(state, batch, goal, *after)
            for combine, config in configs.items()
        }

    policy = jax.tree.map(np.asarray, ac.policy(state))
    action = act(policy, np.asarray(batch.next_obs), np.asarray(goal))
    alive = ~np.asarray(batch.terminated)
    q = plain_twins(critic, state.norm, batch.next_obs, goal, action).min(0) * alive

    def value(obs, action, achieved):
        log_f = compiled(density.log_prob)(
            flow, state.norm, Context(obs, jnp.asarray(action), achieved, goal), goal
        )
        return np.minimum(np.exp(log_f) * 2 * np.pi * 0.3**2, 1)

    f = value(batch.obs, batch.action, batch.achieved)
    f_next = value(batch.next_obs, action, batch.next_achieved) * alive
    expected = {
        "sum": 0.1 * f + 0.9 * q,
        "max": np.maximum(f, 0.9 * q),
        "max-next": np.maximum(f_next, 0.9 * q),
        "max-paper": 0.9 * np.maximum(f_next, q),
    }
    for combine, (target, metrics) in targets(goal).items():
        np.testing.assert_allclose(
            target, np.clip(expected[combine], 0, 1), rtol=2e-3, atol=1e-5, err_msg=combine
        )
        by_td = (np.asarray(target) <= 0.9 * q * (1 + 1e-3)).mean()
        assert float(metrics["critic/frac_td"]) == pytest.approx(by_td, abs=0.02)
        assert combine == "sum" or 0.1 < by_td < 0.9


@pytest.mark.parametrize(
    ("combine", "smoothing"), [("sum", 0.3), ("max", 0.0), ("max-next", 0.3), ("max-paper", 0.0)]
)
def test_targets_stay_within_their_bound(combine, smoothing):
    """Whatever density and critic are: peaks at the goal, tails, critics that run away."""
    settings = replace(DENSITY, smoothing=smoothing, density_scale=2.0)
    config, density = UVDConfig(td3=TD3, density=settings, combine=combine), make_density(settings)
    bound = 2.0 * (1.0 if smoothing else math.exp(density.flow.log_bound))
    ac = ActorCritic(TD3, make_head("linear", bound, 0.0), SPEC)
    batch, state = make_batch(64, SPEC), agent_state(ac, SPEC.norm)
    goal = put(batch.goal, (np.s_[:16], batch.achieved[:16]), (np.s_[48:], 1e10 * batch.goal[48:]))
    flow = random_flow(density)
    zero = jax.tree.map(jnp.zeros_like, flow)
    sharp = tuple(
        n._replace(biases=(*n.biases[:-1], put(n.biases[-1], (np.s_[:2], -30)))) for n in zero
    )

    @compiled
    def targets(flow, slow):
        target_fn = make_target(config, density, flow, STEP)
        slow_state = state._replace(critic_target=slow)
        after = ac.next_value(slow_state, batch, goal, KEY)
        return target_fn(slow_state, batch, goal, *after)

    reached = False
    for some in (sharp, flow, jax.tree.map(lambda x: 60 * x, flow)):
        for q in (-1e6, 0.0, 1e6):
            target, metrics = targets(some, constant(state.critic, q, q))
            assert jnp.isfinite(target).all()
            assert target.min() >= 0
            assert target.max() <= bound * (1 + 1e-6)
            over = float(metrics["critic/target_over_bound_max"])
            reached |= over > 10  # what is logged is before the clip
            if 0 < target.max() < bound * (1 - 1e-6):
                assert over == pytest.approx(float(target.max()) / bound, abs=1e-6)
    assert reached


def make_update(config, spec, ring):
    """One update of a random state, and that state."""
    agent = make_uvd(config, spec)
    state = agent_state(agent, spec.norm)
    return compiled(
        lambda state, i: agent.update(state, ring, jax.random.fold_in(KEY, i), i)
    ), state


def test_the_target_is_in_the_unit_of_its_update():
    """One transition, which ends: the target is (1 - gamma) c F of the newest density, in units of
    the kernel's peak at that update."""
    spec = goal_spec(goal_scale=(1.0,), varying=(0,))
    ring = make_ring(
        np.zeros((1, 2, 3)), np.zeros((1, 1, 2)), [[[0.0], [0.2]]], [[0.15]], terminated=True
    )
    density = replace(DENSITY, smoothing=0.4, smoothing_half=2, bijectors=2)
    config = UVDConfig(td3=replace(TD3, batch=4), density=density, goals=INTENDED)
    update, state = make_update(config, spec, ring)
    exact = make_density(density, spec)
    ones = [jnp.zeros((1, n)) for n in (3, 2, 1)]
    context = Context(*ones, jnp.full((1, 1), 0.15))
    log_prob = compiled(lambda flow: exact.log_prob(flow, spec.norm, context, context.intended)[0])
    for step in range(7):
        state, metrics = update(state, step)
        width = 0.4 * 0.5 ** (step / 2)
        f = math.exp(float(log_prob(state.flow)))
        value = min(1, f * math.sqrt(2 * math.pi) * max(width, 0.08))
        assert float(metrics["critic/target"]) == pytest.approx(0.1 * value, rel=1e-4)
        # Intended goals need no long spans of the density.
        loss, short = metrics["density/loss"], metrics["density/log_f_short"]
        assert float(loss) == pytest.approx(-float(short), rel=1e-5)


def test_critic_and_actor_learn_from_their_own_choice_of_goals():
    """Balanced goals are weighted; the actor's are intended here: Q = g a has their mean slope."""
    config = UVDConfig(
        td3=replace(TD3, hidden=(1,), actor_hidden=(3,), batch=256, action_penalty=0.0),
        density=DENSITY,
        goals=GoalsConfig(td_goals="balanced", actor_goals="intended", futures=0.9),
    )
    ring = random_ring(SPEC)
    positive = ring.goal[:, 0] > 0
    update, state = make_update(config, SPEC, ring._replace(goal=jnp.sign(ring.goal)))
    critic = constant(state.td3.critic, 0.0, 0.0)
    first = put(critic.weights[0], (np.s_[:, [3, 6], 0], 1))
    critic = critic._replace(weights=(first, np.ones_like(critic.weights[1])))
    actor = constant(state.td3.actor, 0.1, 0.0)
    state = state._replace(td3=state.td3._replace(critic=critic, actor=actor))
    after, metrics = update(state, 0)
    # leaky(g + a) has slope 1 where g is 1 and 0.01 where it is -1.
    share = np.asarray(positive)[np.asarray(ring.order)[: int(ring.last)]].mean()
    slope = (0.01 + 0.99 * share) * (1 - np.tanh(0.1) ** 2)
    found = after.td3.actor_opt[0].mu.biases[-1][0] / 0.1
    assert float(found) == pytest.approx(-slope, abs=0.1)
    assert 0.1 < share < 0.9
    assert float(metrics["critic/weight_spread"]) > 0.02
    assert 0 < float(metrics["critic/weight"]) <= 10
    loss, short = metrics["density/loss"], metrics["density/log_f_short"]
    assert abs(float(loss + short)) > 1e-3  # half of the samples are of long spans


GAMMA, WIDTH, FIRST, SECOND = 0.8, 0.3, 0.6, -0.4


@pytest.mark.parametrize("combine", ["sum", pytest.param("max", marks=pytest.mark.slow)])
def test_values_of_a_known_chain(combine):
    """State 0 moves on to 1, at FIRST, and 1 to 2, at SECOND, which stays: values are kernels."""
    n, length = 256, 4
    rng = np.random.default_rng(0)
    spec = goal_spec(action=1, goal_scale=(1.0,), varying=(0,))
    states = np.array([0, 1, 2, 2, 2])
    where = np.array([0.0, FIRST, SECOND], np.float32)[states][:, None]
    episodes = Episode(
        obs=np.broadcast_to(np.eye(3, dtype=np.float32)[states], (n, length + 1, 3)),
        action=rng.uniform(-1, 1, (n, length, 1)).astype(np.float32),
        achieved=np.broadcast_to(where, (n, length + 1, 1)),
        goal=rng.uniform(-1, 1, (n, 1)).astype(np.float32),
        length=np.full(n, length, np.int32),
        terminated=np.zeros(n, bool),
        success=np.zeros((n, length), bool),
        reward=np.zeros((n, length), np.float32),
    )
    ring = insert_episodes(episodes)
    config = UVDConfig(
        td3=replace(
            TD3, gamma=GAMMA, hidden=(64, 64), batch=128, tau=0.1, critic_lr=3e-3,
            actor_start=10_000, critic_head="sigmoid", critic_start=0.5,
        ),
        density=replace(
            DENSITY, smoothing=WIDTH, bijectors=2, flow_hidden=(16,), flow_lr=3e-3
        ),
        goals=INTENDED,
        combine=combine,
    )  # fmt: skip
    agent = make_uvd(config, spec)

    @compiled
    def train(state):
        steps = jnp.arange(1500)
        keys = jax.random.split(KEY, len(steps))
        update = lambda s, xs: (agent.update(s, ring, *xs)[0], None)  # noqa: E731
        return jax.lax.scan(update, state, (keys, steps))[0]

    state = train(agent_state(agent, spec.norm)).td3
    g = np.array([FIRST, SECOND, 0.0, 0.3, -0.8], np.float32)
    here, there = (np.exp(-0.5 * (g - at) ** 2 / WIDTH**2) for at in (FIRST, SECOND))
    start = (1 - GAMMA) * here + GAMMA * there
    if combine == "max":
        start = np.maximum(here, GAMMA * there)
    for s, expected in ((0, start), (1, there), (2, there)):
        obs = np.eye(3, dtype=np.float32)[[s] * len(g)]
        q = plain_twins(state.critic, state.norm, obs, g[:, None], np.zeros((5, 1), np.float32))
        np.testing.assert_allclose(1 / (1 + np.exp(-q)), [expected] * 2, atol=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collect": CollectConfig(capacity=100)}, "short = 50000 is larger than the replay"),
        (
            {"density": replace(DENSITY, lookahead=4)},
            r"lookahead = 4: take lookahead = 1, or a max$",
        ),
        ({"combine": "reward"}, "unknown combine 'reward'"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        UVDConfig(**settings)


def test_a_max_may_look_further():
    assert UVDConfig(density=replace(DENSITY, lookahead=4), combine="max").density.lookahead == 4


@pytest.mark.parametrize("combine", ["max", "max-next"])
def test_the_density_of_a_target_pursues_the_goal_of_the_update(combine):
    """F(g | ., a, g): two or more steps ahead, the goal that is pursued is the update's own."""
    config = UVDConfig(td3=TD3, density=replace(DENSITY, lookahead=4), combine=combine)
    density = make_density(config.density)
    flow, batch = random_flow(density, 0.5), make_batch(64, SPEC)
    goal = batch.achieved + 0.3 * batch.goal[::-1]
    state = agent_state(ActorCritic(TD3, make_head("linear", 1.0, 0.0), SPEC), SPEC.norm)
    low, action = jnp.full(64, -9.0), batch.action[::-1]
    target = compiled(
        lambda: make_target(config, density, flow, STEP)(state, batch, goal, low, action)[0]
    )()

    def value(pursued):
        seen = Context(batch.obs, batch.action, batch.achieved, pursued)
        if combine == "max-next":
            seen = Context(batch.next_obs, action, batch.next_achieved, pursued)
        log_f = compiled(density.log_prob)(flow, SPEC.norm, seen, goal)
        return np.minimum(np.exp(log_f) * 2 * np.pi * 0.3**2, 1)

    np.testing.assert_allclose(target, value(goal), rtol=1e-3, atol=1e-6)
    assert abs(value(goal) - value(batch.goal)).max() > 1e-2
