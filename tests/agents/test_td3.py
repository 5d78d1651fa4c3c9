"""TD3's parts by hand, and its critic on chains whose values are known in closed form."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents import Spec
from uvd.agents.td3 import (
    HEADS,
    TD3Config,
    actor_step,
    critic_outputs,
    critic_step,
    init_td3,
    learn,
    make_td3,
    next_value,
    optimiser,
    policy_of,
    sparse_target,
)
from uvd.core.policy import Norm, Policy, act
from uvd.core.replay import Batch, Episode, init_ring, insert_all

OBS, ACTION, GOAL = 6, 1, 1
GAMMA = 0.8
KEY = jax.random.key(0)
CONFIG = TD3Config(
    gamma=GAMMA, hidden=(32, 32), batch=64, critic_lr=3e-3, tau=0.1, action_penalty=0.0,
    policy_delay=2,
)  # fmt: skip


def near(achieved, goal):
    return ((achieved - goal) ** 2).sum(-1) < 0.01


@pytest.fixture(scope="module")
def spec():
    norm = Norm(np.zeros(OBS), np.ones(OBS), np.zeros(GOAL), np.ones(GOAL))
    return Spec(OBS, ACTION, GOAL, near, jax.tree.map(np.float32, norm), (0,))


@pytest.mark.parametrize("name", sorted(HEADS.keys() - {"huber"}))
def test_head_loss_is_least_at_the_mean_of_the_targets(name):
    bound = 5.0
    head = HEADS[name](bound, 0.3)
    targets = jnp.array([0.5, 1.0, 1.5, 4.0])
    x = jnp.linspace(-6, 6, 4801)
    loss = jax.vmap(lambda o: head.loss(o, targets).mean())(x)
    assert head.value(x[loss.argmin()]) == pytest.approx(float(targets.mean()), abs=0.01)


def test_hubers_loss_is_squared_near_the_target_and_linear_far_off():
    """So it is least at the mean of targets less than 1 off, and bears outliers."""
    head = HEADS["huber"](5.0, 0.0)
    off = jnp.array([0.0, 0.5, 1.0, 3.0, -3.0])
    loss = head.loss(jnp.full(5, 20.0), 2.0 + off)
    np.testing.assert_allclose(loss, [0.0, 0.125, 0.5, 2.5, 2.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("linear", -50, 50), ("huber", -5, 5), ("tanh", -5, 5), ("sigmoid", 0, 5)],
)
def test_head_range_start_and_utility(name, low, high):
    head = HEADS[name](5.0, 0.3)
    x = jnp.array([-50.0, -1.0, 0.0, 1.0, 50.0])
    value = head.value(x)
    assert value[0] == pytest.approx(low, abs=1e-4)
    assert value[-1] == pytest.approx(high, abs=1e-4)
    assert (jnp.diff(value) >= 0).all()
    assert head.value(jnp.asarray(head.start)) == pytest.approx(0.3 * 5.0, rel=1e-5)
    slope = jax.vmap(jax.grad(lambda o: head.utility(o)))(x[1:4])
    assert (slope > 0).all()


@pytest.mark.parametrize("name", HEADS)
def test_critics_start_near_their_start_value(name, spec):
    config = replace(CONFIG, critic_head=name, critic_start=0.3)
    head = HEADS[name](5.0, 0.3)
    state = init_td3(config, head, spec, jax.random.key(0))
    obs = np.eye(OBS, dtype=np.float32)
    q = critic_outputs(
        state.critic, state.norm, obs, np.zeros((OBS, GOAL)), np.zeros((OBS, ACTION))
    )
    np.testing.assert_allclose(head.value(q), 1.5, atol=0.15)


def transition(n, **changes):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    batch = Batch(
        jnp.arange(n), draw(n, OBS), draw(n, ACTION), draw(n, OBS), draw(n, GOAL), draw(n, GOAL),
        draw(n, GOAL), jnp.zeros(n, bool),
    )  # fmt: skip
    return jax.tree.map(
        jnp.asarray, batch._replace(**{k: jnp.asarray(v) for k, v in changes.items()})
    )


def test_sparse_target_by_hand(spec):
    head = HEADS["linear"](1 / (1 - GAMMA), 0.0)
    state = init_td3(CONFIG, head, spec, jax.random.key(1))
    goal = jnp.array([[0.0], [0.0], [0.0], [0.0], [0.0]])
    batch = transition(
        5,
        next_achieved=[[0.0], [1.0], [1.0], [0.05], [1.0]],
        terminated=[False, False, True, True, False],
    )
    target = sparse_target(CONFIG, head, spec)

    def with_bias(low, high):  # critics that say `low` and `high` whatever they see
        zero = jax.tree.map(jnp.zeros_like, state.critic)
        out = jnp.array([[low], [high]])
        return state._replace(critic_target=zero._replace(biases=(*zero.biases[:-1], out)))

    got, metrics = target(with_bias(-2.0, -1.0), batch, goal, jax.random.key(0))
    # The smaller of the twins, nothing after an end, the reward of the transition's own s'.
    np.testing.assert_allclose(got, [-1.6, -2.6, -1.0, 0.0, -2.6], rtol=1e-6)
    assert metrics["critic/reward"] == pytest.approx(-0.6)
    # What is possible: no less than -1 for ever, no more than 0.
    got, _ = target(with_bias(-90.0, -80.0), batch, goal, jax.random.key(0))
    np.testing.assert_allclose(got, [-5, -5, -1, 0, -5], rtol=1e-6)
    got, _ = target(with_bias(80.0, 90.0), batch, goal, jax.random.key(0))
    np.testing.assert_allclose(got, [0, 0, -1, 0, 0], rtol=1e-6)


def test_rewards_of_an_environment_bound_the_target(spec):
    own = replace(spec, reward=lambda a, g: 3.0 * near(a, g) - 1.0, reward_range=(-1.0, 2.0))
    head = HEADS["linear"](10.0, 0.0)
    state = init_td3(CONFIG, head, own, jax.random.key(1))
    batch = transition(3, next_achieved=[[0.0], [1.0], [0.0]], terminated=[False, False, True])
    target = sparse_target(CONFIG, head, own)
    for bias, expected in [(1.0, [2.8, -0.2, 2.0]), (90.0, [10, 10, 2]), (-90.0, [-5, -5, 2])]:
        zero = jax.tree.map(jnp.zeros_like, state.critic)
        out = jnp.full((2, 1), bias)
        critic = zero._replace(biases=(*zero.biases[:-1], out))
        got, metrics = target(
            state._replace(critic_target=critic), batch, jnp.zeros((3, 1)), jax.random.key(0)
        )
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert metrics["critic/reward"] == pytest.approx(1.0)


def test_a_tasks_own_rewards_are_neither_recomputed_nor_clipped(spec):
    own = replace(spec, rewards=True)
    assert own.value_range(GAMMA) == (-np.inf, np.inf)
    head = HEADS["linear"](1.0, 0.0)
    state = init_td3(CONFIG, head, own, jax.random.key(1))
    batch = transition(3, reward=[2.0, -70.0, 5.0], terminated=[False, False, True])
    zero = jax.tree.map(jnp.zeros_like, state.critic)
    critic = zero._replace(biases=(*zero.biases[:-1], jnp.array([[100.0], [110.0]])))
    got, metrics = sparse_target(CONFIG, head, own)(
        state._replace(critic_target=critic), batch, batch.goal, jax.random.key(0)
    )
    np.testing.assert_allclose(got, [82.0, 10.0, 5.0], rtol=1e-6)
    assert metrics["critic/reward"] == pytest.approx(-21.0)


def test_td3_learns_the_value_of_rewards_without_goals():
    """One step to the end: the value is the reward that the action brings."""
    norm = Norm(np.zeros(1), np.ones(1), np.zeros(0), np.ones(0))
    spec = Spec(1, 1, 0, near, jax.tree.map(np.float32, norm), (), rewards=True)
    rng, n = np.random.default_rng(0), 256
    action = rng.uniform(-1, 1, (n, 1, 1)).astype(np.float32)
    episodes = Episode(
        jnp.zeros((n, 2, 1)), jnp.asarray(action), jnp.zeros((n, 2, 0)), jnp.zeros((n, 0)),
        jnp.ones(n, jnp.int32), jnp.ones(n, bool), jnp.zeros(n, bool),
        jnp.asarray(20 - 8 * (action[..., 0] - 0.5) ** 2),
    )  # fmt: skip
    ring = insert_all(init_ring(600, 1, 1, 0), episodes)
    config = replace(CONFIG, critic_head="linear", actor_start=500)
    agent = make_td3(config, spec)
    steps = jnp.arange(2000)

    @jax.jit
    def train(state):
        keys = jax.random.split(KEY, len(steps))
        return jax.lax.scan(lambda s, x: agent.update(s, ring, *x), state, (keys, steps))[0]

    state = train(agent.init(KEY, spec))
    there = jnp.array([[-0.5], [0.0], [0.5], [1.0]])
    q = critic_outputs(state.critic, state.norm, jnp.zeros((4, 1)), jnp.zeros((4, 0)), there)
    np.testing.assert_allclose(q, [[12, 18, 20, 18]] * 2, atol=1.0)
    best = act(agent.policy(state), jnp.zeros((1, 1)), jnp.zeros((1, 0)))
    assert best[0, 0] == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_target_action_and_its_noise(spec, noise):
    head = HEADS["linear"](5.0, 0.0)
    config = replace(CONFIG, target_noise=noise)
    state = init_td3(config, head, spec, jax.random.key(1))
    other = init_td3(config, head, spec, jax.random.key(2))
    state = state._replace(actor_target=other.actor, critic_target=other.critic)
    n = 4000
    batch = transition(n, next_obs=np.zeros((n, OBS), np.float32))
    goal = jnp.zeros((n, GOAL))
    q, action = next_value(config, head, state, batch, goal, jax.random.key(3))
    clean = act(Policy(other.actor, state.norm), batch.next_obs, goal)
    apart = np.asarray(action - clean)
    assert apart.std() == pytest.approx({0.0: 0.0, 0.1: 0.1, 3.0: 0.47}[noise], rel=0.05)
    assert abs(apart).max() <= 0.5 + 1e-6
    both = critic_outputs(other.critic, state.norm, batch.next_obs, goal, action)
    np.testing.assert_allclose(q, both.min(0), rtol=1e-6)


def test_normalised_critics_are_so_in_target_loss_and_actor(spec):
    """A thousand times the first layer (no bias) is the same critic: nothing learned differs."""
    head = HEADS["linear"](5.0, 0.0)
    config = replace(CONFIG, critic_norm=True, hidden=(32,), policy_delay=1)
    batch = transition(8)

    def after(config, scale):
        state = init_td3(config, head, spec, KEY)
        first, last = state.critic.weights
        biases = (jnp.zeros_like(state.critic.biases[0]), state.critic.biases[1])
        critic = state.critic._replace(weights=(scale * first, last), biases=biases)
        state = state._replace(critic=critic, critic_target=critic)
        q, _ = next_value(config, head, state, batch, batch.goal, KEY)
        learned, told = critic_step(
            config, head, state, batch, batch.goal, 1.0, lambda *_: (q, {}), KEY
        )
        bent = actor_step(config, head, state, batch.obs, batch.goal).actor_opt[0].mu
        return q, told["critic/q"], learned.critic_opt[0].mu.weights[1], bent.weights[-1]

    for same, other in zip(after(config, 100.0), after(config, 1e5), strict=True):
        np.testing.assert_allclose(same, other, rtol=2e-3, atol=1e-6)
    plain = replace(config, critic_norm=False)
    for same, other in zip(after(plain, 1.0), after(plain, 10.0), strict=True):
        assert abs(same - other).max() > 1e-4


@pytest.fixture(scope="module")
def step(spec):
    """One `learn` at update `i`, for an actor that starts at 4 and moves every second time."""
    config = replace(CONFIG, actor_start=4, batch=8)
    head = HEADS["tanh"](5.0, 0.0)
    target = sparse_target(config, head, spec)
    batch = transition(8)

    @jax.jit
    def one(state, i):
        return learn(
            config, head, state, batch, batch.goal, 1.0, target, lambda: batch.goal,
            jax.random.key(0), i,
        )[0]  # fmt: skip

    return config, init_td3(config, head, spec, jax.random.key(0)), one


@pytest.mark.parametrize(("how", "reads"), [("relative", True), ("absolute", False)])
def test_goal_input(spec, how, reads):
    shown = replace(spec, norm=spec.norm._replace(seen=np.arange(GOAL)))
    state = init_td3(replace(CONFIG, goal_input=how), HEADS["tanh"](5.0, 0.0), shown, KEY)
    assert (state.norm.seen is not None) == reads


def test_weights_weigh(spec):
    """A transition of weight 0 moves nothing; doubling all weights doubles the loss."""
    head = HEADS["tanh"](5.0, 0.0)
    state, batch = init_td3(CONFIG, head, spec, KEY), transition(8)
    half = jnp.arange(8) < 4

    def loss(weight, target):
        tell = lambda *_: (target, {})  # noqa: E731
        return critic_step(CONFIG, head, state, batch, batch.goal, weight, tell, KEY)

    one, other = (loss(1.0 * half, jnp.where(half, 1.0, x)) for x in (0.0, 3.0))
    assert not differs(one[0].critic, other[0].critic)
    assert differs(loss(1.0, jnp.where(half, 1.0, 0.0))[0].critic, one[0].critic)
    double = loss(2.0 * half, jnp.ones(8))[1]["critic/loss"]
    assert double == pytest.approx(2 * float(one[1]["critic/loss"]), rel=1e-5)


def differs(a, b):
    return any((x != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_policy_delay_and_actor_start(step):
    _, state, one = step
    for i in range(9):
        after = one(state, jnp.asarray(i))
        assert differs(after.critic, state.critic)
        assert differs(after.critic_target, state.critic_target) == (i % 2 == 0)
        moves = i % 2 == 0 and i >= 4
        assert differs(after.actor, state.actor) == moves
        assert differs(after.actor_target, state.actor_target) == moves
        state = after


def test_an_actor_of_every_update_from_the_first_on(spec):
    config = replace(CONFIG, actor_start=0, policy_delay=1, batch=8)
    head = HEADS["tanh"](5.0, 0.0)
    state, batch = init_td3(config, head, spec, KEY), transition(8)
    target = sparse_target(config, head, spec)
    goal = batch.goal
    for i in range(3):
        after = learn(
            config, head, state, batch, goal, 1.0, target, lambda: goal, KEY, jnp.asarray(i)
        )[0]
        assert differs(after.actor, state.actor)
        assert differs(after.critic_target, state.critic_target)
        state = after


def test_what_critics_are_told_reaches_no_policy(spec):
    """The last number of an observation: values depend on it, actions do not."""
    told = replace(spec, told=1)
    state = init_td3(CONFIG, HEADS["linear"](1.0, 0.0), told, KEY)
    batch = transition(8)
    other = batch.obs.at[:, -1].add(3.0)
    values = [
        critic_outputs(state.critic, state.norm, obs, batch.goal, batch.action)
        for obs in (batch.obs, other)
    ]
    assert (values[0] != values[1]).all()
    policy = policy_of(state.actor, state.norm)
    actions = [act(policy, obs, batch.goal) for obs in (batch.obs, other)]
    np.testing.assert_array_equal(*actions)
    # The policy plays where the number is not shown at all.
    alone = act(policy, batch.obs[:, :-1], batch.goal)
    np.testing.assert_array_equal(alone, actions[0])
    assert (actions[0] != act(policy, batch.obs + 1, batch.goal)).any()


@pytest.mark.parametrize("i", [0, 4])
def test_slow_copies_follow_by_tau(step, i):
    config, state, one = step
    after = one(state, jnp.asarray(i))
    for name in ("critic", "actor"):
        online, before = getattr(after, name), getattr(state, f"{name}_target")
        expected = jax.tree.map(lambda o, b: (1 - config.tau) * b + config.tau * o, online, before)
        got = getattr(after, f"{name}_target")
        jax.tree.map(lambda e, g: np.testing.assert_allclose(g, e, atol=1e-6), expected, got)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_actor_ascends_the_first_critic(spec, sign):
    """Critics that value ±a: the action moves that way, and the penalty alone pulls it to 0."""
    config = replace(CONFIG, hidden=(4,), actor_lr=1e-2, critic_lr=1e-9, action_penalty=0.1)
    head = HEADS["linear"](5.0, 0.0)
    state = init_td3(config, head, spec, jax.random.key(0))
    critic = jax.tree.map(jnp.zeros_like, state.critic)
    slope = critic.weights[0].at[0, -1, 0].set(1.0).at[0, -1, 1].set(-1.0)  # a and -a
    out = critic.weights[1].at[0, 0, 0].set(sign).at[0, 1, 0].set(-sign)
    state = state._replace(critic=critic._replace(weights=(slope, out)))
    batch = transition(16)

    @jax.jit
    def train(state):
        def body(state, i):
            target = lambda *_: (jnp.zeros(16), {})  # noqa: E731
            return learn(
                config, head, state, batch, batch.goal, 1.0, target, lambda: batch.goal,
                jax.random.key(0), i,
            )  # fmt: skip

        return jax.lax.scan(body, state, jnp.arange(0, 400, 2))[0]

    action = act(Policy(train(state).actor, state.norm), batch.obs, batch.goal)
    assert (sign * action > 0.9).all()
    alone = state._replace(critic=critic)
    action = act(Policy(train(alone).actor, state.norm), batch.obs, batch.goal)
    assert abs(action).max() < 0.05


@pytest.mark.parametrize("lean", [-4.0, -2.1, 1.9, 3.0])
def test_an_actor_that_leans_too_far_is_pulled_back(spec, lean):
    """With critics that value nothing: the penalty's slope is its closed form, and 0 below 2."""
    config = replace(CONFIG, hidden=(4,), leaning_penalty=0.5)
    head = HEADS["linear"](5.0, 0.0)
    state = init_td3(config, head, spec, jax.random.key(0))
    actor = jax.tree.map(jnp.zeros_like, state.actor)
    actor = actor._replace(biases=(*actor.biases[:-1], jnp.full_like(actor.biases[-1], lean)))
    state = state._replace(actor=actor, critic=jax.tree.map(jnp.zeros_like, state.critic))
    batch = transition(16)
    after = actor_step(config, head, state, batch.obs, batch.goal)
    # Adam's first moment after one step is a tenth of the gradient.
    slope = 10 * after.actor_opt[0].mu.biases[-1]
    beyond = max(abs(lean) - 2, 0)
    expected = 0.5 * 2 * beyond * np.sign(lean) / spec.action_dim
    np.testing.assert_allclose(slope, np.full(spec.action_dim, expected), rtol=1e-5)


def test_rmsprop_is_pytorchs():
    """v <- 0.99 v + 0.01 g²; x <- x - rate g / (sqrt(v) + 1e-8), by hand over three steps."""
    step = optimiser(replace(CONFIG, optimiser="rmsprop"), 0.1)
    x, v = jnp.array([1.0, -2.0, 0.5]), np.zeros(3)
    opt, expected = step.init(x), np.asarray(x, np.float64)
    for g in np.random.default_rng(0).normal(size=(3, 3)) * [1.0, 1e-3, 1e-7]:
        updates, opt = step.update(jnp.asarray(g, jnp.float32), opt)
        x = x + updates
        v = 0.99 * v + 0.01 * g**2
        expected = expected - 0.1 * g / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-6)


def test_learning_rates_fall_by_half_and_on():
    """A gradient that stays is a step of Adam's of just the rate."""
    step = optimiser(replace(CONFIG, lr_half=3), 0.1)
    g = jnp.array([1.0, -4.0])
    opt, rates = step.init(g), []
    for _ in range(7):
        updates, opt = step.update(g, opt)
        rates.append(updates * -jnp.sign(g))
    expected = 0.1 * np.array([1, 3 / 4, 3 / 5, 1 / 2, 3 / 7, 3 / 8, 1 / 3])
    np.testing.assert_allclose(np.array(rates), expected[:, None].repeat(2, 1), rtol=1e-4)


def test_critics_may_follow_at_a_pace_of_their_own(spec):
    config = replace(CONFIG, critic_tau=0.003, actor_scale=3.0)
    head = HEADS["linear"](5.0, 0.0)
    before = init_td3(config, head, spec, jax.random.key(0))
    usual = init_td3(replace(config, actor_scale=1.0), head, spec, jax.random.key(0)).actor
    np.testing.assert_allclose(before.actor.weights[-1], 3 * usual.weights[-1], rtol=1e-4)
    np.testing.assert_array_equal(before.actor.weights[0], usual.weights[0])
    moved = jax.tree.map(lambda x: x + 1.0, before.critic)
    batch = transition(16)
    after = actor_step(config, head, before._replace(critic=moved), batch.obs, batch.goal)
    for x, y in zip(jax.tree.leaves(after.critic_target), jax.tree.leaves(before.critic)):
        np.testing.assert_allclose(x - y, 0.003, rtol=1e-2)
    for x, y, z in zip(*map(jax.tree.leaves, (after.actor_target, before.actor, after.actor))):
        np.testing.assert_allclose(x, y + config.tau * (z - y), rtol=1e-5, atol=1e-7)


FAR = 5.0  # a goal that nothing achieves


def probe_ring():
    """Chains, told apart by a one-hot observation, with random actions that change nothing.

    0 -> 1 -> end, the goal achieved at the end or never; 3 -> 3 for ever, at its goal or never.
    """
    rng = np.random.default_rng(0)
    hot = np.eye(OBS, dtype=np.float32)
    chain, loop = hot[[0, 1, 2]], hot[[3, 3, 3]]
    paths = [(chain, [0, 0, 1], 1.0, True), (chain, [0, 0, 1], FAR, True)]
    paths += [(loop, [2, 2, 2], 2.0, False), (loop, [2, 2, 2], FAR, False)]
    stacked = Episode(
        jnp.asarray([p[0] for p in paths] * 8),
        jnp.asarray(rng.uniform(-1, 1, (32, 2, ACTION)), jnp.float32),
        jnp.asarray([np.reshape(p[1], (3, 1)) for p in paths] * 8, jnp.float32),
        jnp.asarray([[p[2]] for p in paths] * 8, jnp.float32),
        jnp.full(32, 2, jnp.int32),
        jnp.asarray([p[3] for p in paths] * 8),
        jnp.zeros(32, bool),
    )
    return insert_all(init_ring(96, OBS, ACTION, GOAL), stacked)


@pytest.mark.parametrize("head", ["linear", "tanh"])
def test_values_of_known_chains(spec, head):
    config = replace(CONFIG, critic_head=head, actor_start=10_000)
    agent = make_td3(config, spec)

    @jax.jit
    def train(key):
        ring, state = probe_ring(), agent.init(key, spec)
        steps = jnp.arange(600)
        keys = jax.random.split(key, len(steps))
        return jax.lax.scan(lambda s, xs: agent.update(s, ring, *xs), state, (keys, steps))[0]

    state = train(jax.random.key(0))
    cases = {  # (state, goal): value
        (0, 1.0): -1.0,
        (1, 1.0): 0.0,
        (0, FAR): -1.0 - GAMMA,
        (1, FAR): -1.0,
        (3, 2.0): 0.0,
        (3, FAR): -1 / (1 - GAMMA),
    }
    obs = np.eye(OBS, dtype=np.float32)[[s for s, _ in cases]]
    goal = np.array([[g] for _, g in cases], np.float32)
    value = HEADS[head](1 / (1 - GAMMA), 0.0).value
    for action in (-0.5, 0.0, 0.5):
        q = critic_outputs(state.critic, state.norm, obs, goal, np.full((6, 1), action, "f4"))
        np.testing.assert_allclose(value(q), [list(cases.values())] * 2, atol=0.1)
