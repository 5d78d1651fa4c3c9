"""The steps of TD3 against NumPy: values of next states, both gradients, schedules, inputs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import (
    KEY,
    agent_state,
    assert_close,
    compiled,
    constant,
    differs,
    goal_spec,
    make_batch,
    plain_twins,
    put,
    shaken,
)
from uvd.agents.actor_critic import ActorCritic, Goals, TD3Config
from uvd.agents.heads import make_head
from uvd.core.errors import UserError
from uvd.core.policy import act

BOUND = 5.0
SPEC = goal_spec(obs=6, action=2, goal_scale=(1.0, 1.0), varying=(0, 1))
CONFIG = TD3Config(
    hidden=(16,), batch=8, tau=0.1, action_penalty=0.0, critic_head="linear",
    actor_lr=1e-3, critic_lr=2e-3,
)  # fmt: skip
BATCH = make_batch(8, SPEC)
ADAM_SHARE = 0.1  # Adam's first moment after one step is this share of the gradient


def make(spec=SPEC, reads_goal=True, **settings):
    config = replace(CONFIG, **settings)
    head = make_head(config.critic_head, BOUND, config.critic_start)
    return ActorCritic(config, head, spec, reads_goal)


def fixed(target):
    """The target as numbers."""
    return lambda *_: (jnp.broadcast_to(jnp.asarray(target, jnp.float32), 8), {})


def test_fresh_nets():
    """Critics start near their starting value; `actor_scale` is that of the actor's last layer."""
    ac = make(critic_head="tanh", critic_start=0.3, actor_scale=3.0, hidden=(4,))
    state, usual = ac.init(KEY), make(actor_scale=1.0, hidden=(4,)).init(KEY)
    q = plain_twins(state.critic, state.norm, BATCH.obs, BATCH.goal, BATCH.action)
    np.testing.assert_allclose(BOUND * np.tanh(q), 0.3 * BOUND, atol=0.3)
    assert not differs(state.critic, state.critic_target)
    assert not differs(state.actor, state.actor_target)
    assert differs(*(jax.tree.map(lambda x, i=i: x[i], state.critic) for i in (0, 1)))
    np.testing.assert_allclose(state.actor.weights[-1], 3 * usual.actor.weights[-1], rtol=1e-4)
    np.testing.assert_array_equal(state.actor.weights[0], usual.actor.weights[0])


@pytest.mark.parametrize(("head", "start"), [("sigmoid", 0.0), ("tanh", -1.0), ("tanh", 1.0)])
def test_a_start_outside_of_the_heads_range_is_refused(head, start):
    with pytest.raises(UserError, match=f"critic_start = {start} .* range of a {head}"):
        replace(CONFIG, critic_head=head, critic_start=start)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_the_value_that_follows_a_step(noise):
    """min Q'(s', mu'(s')) of both slow copies, with bounded noise; nothing after the end."""
    ac, n = make(target_noise=noise, critic_head="tanh"), 3000
    state, other = agent_state(ac, ac.spec.norm), shaken(agent_state(ac, ac.spec.norm))
    state = state._replace(actor_target=other.actor, critic_target=other.critic)
    batch = make_batch(n, SPEC, terminated=np.arange(n) % 3 == 0)
    goal = batch.goal
    q, action = compiled(ac.next_value)(state, batch, goal, jax.random.key(3))
    clean = act(jax.tree.map(np.asarray, ac.policy(state)), np.asarray(batch.next_obs), goal)
    apart = np.asarray(action) - np.asarray(clean)
    inside = abs(action) < 1
    if noise < 1:
        assert apart[inside].std() == pytest.approx(noise, rel=0.1, abs=1e-6)
    else:
        assert np.mean(abs(apart[inside]) > 0.49) > 0.5
    assert abs(apart).max() <= 0.5 + 1e-6
    assert abs(action).max() <= 1
    both = BOUND * np.tanh(plain_twins(other.critic, state.norm, batch.next_obs, goal, action))
    assert 0.1 < (both[0] < both[1]).mean() < 0.9
    expected = np.where(batch.terminated, 0, both.min(0))
    np.testing.assert_allclose(q, expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def critic_step():
    """One critic step towards targets that are given as numbers, with weights."""
    ac = make(critic_head="tanh")

    @compiled
    def step(state, target, weight):
        return ac.critic_step(state, BATCH, Goals(BATCH.goal, weight), fixed(target), KEY)

    return ac, agent_state(ac, ac.spec.norm), step


def test_the_critics_loss(critic_step):
    """The sum over both critics of the weighted mean of squared errors, and a step down it."""
    ac, state, step = critic_step
    target, weight = np.linspace(-3, 3, 8), np.linspace(0, 2, 8)

    def loss(critic):
        value = BOUND * np.tanh(
            plain_twins(critic, state.norm, BATCH.obs, BATCH.goal, BATCH.action)
        )
        return (weight * (value - target) ** 2).mean(1).sum(), value.mean()

    after, metrics = step(state, target, weight)
    before, q = loss(state.critic)
    assert float(metrics["critic/loss"]) == pytest.approx(before, rel=1e-4)
    assert float(metrics["critic/q"]) == pytest.approx(q, abs=1e-5)
    assert float(metrics["critic/target"]) == pytest.approx(0, abs=1e-6)
    action = ac.next_value(state, BATCH, BATCH.goal, KEY)[1]
    assert float(metrics["actor/abs_action"]) == pytest.approx(float(abs(action).mean()), rel=1e-4)
    # Adam's first step has the length of the learning rate in every number that matters.
    moved = [abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (after.critic, state.critic)))]
    np.testing.assert_allclose(moved, CONFIG.critic_lr, rtol=1e-3)
    assert loss(after.critic)[0] < before
    assert not differs(
        after._replace(critic=0, critic_opt=0), state._replace(critic=0, critic_opt=0)
    )


def test_a_transition_of_weight_0_counts_for_nothing(critic_step):
    _, state, step = critic_step
    half = np.arange(8) < 4
    one, other = (step(state, np.where(half, 1.0, x), 1.0 * half)[0] for x in (0.0, 3.0))
    assert not differs(one, other)
    assert differs(one, step(state, np.where(half, 1.0, 0.0), np.ones(8))[0])


def test_no_gradient_passes_through_the_target(critic_step):
    """A target that depends on the nets teaches the same as its numbers."""
    ac, state, step = critic_step

    def moving(state, batch, goal, next_q, action):
        q = ac.critic_outputs(state.critic, state.norm, batch.obs, goal, batch.action)[0]
        return 2 * q + next_q, {}

    after = ac.next_value(state, BATCH, BATCH.goal, KEY)
    target = compiled(moving)(state, BATCH, BATCH.goal, *after)[0]
    alive = compiled(lambda s: ac.critic_step(s, BATCH, Goals(BATCH.goal), moving, KEY))(state)[0]
    expected = step(state, target, np.ones(8))[0]
    assert_close(alive.critic_opt, expected.critic_opt, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("head", ["linear", "sigmoid"])
def test_the_actors_gradient(head):
    """A constant actor under a linear critic w·a: the gradient of
    penalty * mean a² - utility(w·a) with respect to its biases, in closed form."""
    ac = make(hidden=(), actor_hidden=(3,), action_penalty=0.3, critic_head=head, critic_start=0.5)
    state, lean = agent_state(ac, ac.spec.norm), np.array([0.4, -0.7], np.float32)
    w = np.array([[1.0, -2.0], [5.0, 5.0]])  # of the first and the second critic
    critic = constant(state.critic, 0.1, 0.1)
    first = put(critic.weights[0], (np.s_[:, -2:, 0], w))
    state = state._replace(
        actor=constant(state.actor, *lean),
        critic=critic._replace(weights=(first,)),
        critic_target=constant(critic, 7.0, 7.0),
    )
    after = compiled(ac.actor_step)(state, BATCH.obs, BATCH.goal)
    a = np.tanh(lean)
    out = 0.1 + w[0] @ a
    slope = 1 / (1 + np.exp(out)) if head == "sigmoid" else 1.0  # of log sigmoid, or of x
    expected = (0.3 * 2 * a / 2 - slope * w[0]) * (1 - a**2)
    found = after.actor_opt[0].mu.biases[-1] / ADAM_SHARE
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    moved = np.asarray(after.actor.biases[-1]) - lean
    np.testing.assert_allclose(moved, -CONFIG.actor_lr * np.sign(expected), rtol=1e-3)


def test_the_actor_learns_from_the_goals_it_is_given():
    """Critic Q = g a for the first goal dimension: the slope is the mean of the goals."""
    ac = make(hidden=(1,), actor_hidden=(3,))
    state = agent_state(ac, ac.spec.norm)
    critic = constant(state.critic, 0.0, 0.0)
    # leaky(g + a) for g + a > 0 has slope 1, for g + a < 0 slope 0.01
    first = put(critic.weights[0], (np.s_[:, [6, 8], 0], 1))
    critic = critic._replace(weights=(first, np.ones_like(critic.weights[1])))
    state = state._replace(actor=constant(state.actor, 0.1, 0.0), critic=critic)
    goal = np.where(np.arange(8) < 3, 1.0, -1.0)[:, None] * np.ones((8, 2))
    after = compiled(ac.actor_step)(state, jnp.zeros((8, 6)), goal)
    slope = (3 * 1 + 5 * 0.01) / 8 * (1 - np.tanh(0.1) ** 2)
    found = after.actor_opt[0].mu.biases[-1] / ADAM_SHARE
    np.testing.assert_allclose(found, [-slope, 0], rtol=1e-4, atol=1e-7)


def learning(**settings):
    """One `learn` at update `i`."""
    ac = make(**settings)

    @compiled
    def step(state, i):
        def target(state, batch, goal, q, action):
            return q, {}

        goals = Goals(BATCH.goal)
        return ac.learn(state, BATCH, goals, target, lambda: BATCH.goal, KEY, i)[0]

    return agent_state(ac, ac.spec.norm), step


def test_the_actors_delay_and_start():
    """Each second update moves the slow critics, and from the fourth on the actor."""
    state, step = learning(actor_start=4)
    for i in range(9):
        after = step(state, i)
        assert differs(after.critic, state.critic)
        assert differs(after.critic_target, state.critic_target) == (i % 2 == 0)
        moves = i % 2 == 0 and i >= 4
        assert differs(after.actor, state.actor) == moves
        assert differs(after.actor_target, state.actor_target) == moves
        for name in ("critic", "actor") if moves else ():
            online, before = getattr(after, name), getattr(state, f"{name}_target")
            expected = jax.tree.map(lambda o, b: 0.9 * b + 0.1 * o, online, before)
            assert_close(getattr(after, f"{name}_target"), expected, rtol=1e-5, atol=1e-6)
        state = after


def test_an_actor_of_every_update_from_the_first_on():
    state, step = learning(actor_start=0, policy_delay=1)
    for i in range(3):
        after = step(state, i)
        assert differs(after.actor, state.actor)
        assert differs(after.critic_target, state.critic_target)
        state = after


def test_critics_may_follow_at_a_rate_of_their_own():
    ac = make(critic_tau=0.003)
    before = agent_state(ac, ac.spec.norm)
    moved = before._replace(critic=jax.tree.map(lambda x: x + 1, before.critic))
    after = compiled(ac.actor_step)(moved, BATCH.obs, BATCH.goal)
    expected = jax.tree.map(lambda x: x + 0.003, before.critic)
    assert_close(after.critic_target, expected, atol=1e-5)
    expected = jax.tree.map(lambda b, o: 0.9 * b + 0.1 * o, before.actor, after.actor)
    assert_close(after.actor_target, expected, rtol=1e-5, atol=1e-6)


def test_each_net_has_its_rate_and_the_rates_fall():
    """RMSprop under a constant gradient: v is 0.01 g² and then 0.0199 g²."""
    ac = make(optimiser="rmsprop", lr_half=1, hidden=(), actor_hidden=(3,), actor_lr=1e-4)
    state = agent_state(ac, ac.spec.norm)
    critic = constant(state.critic, 0.0, 0.0)  # and Q = a_0, which the actor ascends
    critic = critic._replace(weights=(put(critic.weights[0], (np.s_[:, -2], 1)),))
    state = state._replace(actor=constant(state.actor, 0.0, 0.0), critic=critic)

    @compiled
    def step(state):
        goals, far = Goals(BATCH.goal), fixed(1e6)
        learned = ac.critic_step(state, BATCH, goals, far, KEY)[0]
        after = ac.actor_step(learned._replace(critic=critic), BATCH.obs, BATCH.goal)
        return after, learned.critic

    for length in (10, 5 / 1.99**0.5):
        after, learned = step(state)
        moved = learned.biases[-1] - critic.biases[-1]
        np.testing.assert_allclose(moved, length * CONFIG.critic_lr, rtol=1e-3)
        moved = after.actor.biases[-1] - state.actor.biases[-1]
        np.testing.assert_allclose(moved, [length * 1e-4, 0], rtol=1e-3, atol=1e-9)
        state = after


def test_normalised_critics_are_so_in_target_loss_and_actor():
    """A thousand times the first layer (no bias) is the same critic: nothing learned differs."""

    def after(normalised):
        ac = make(critic_norm=normalised, policy_delay=1)
        start = agent_state(ac, SPEC.norm)
        (first, last), biases = start.critic
        biases = (np.zeros_like(biases[0]), biases[1])

        @compiled
        def run(scale):
            critic = start.critic._replace(weights=(scale * first, last), biases=biases)
            state = start._replace(critic=critic, critic_target=critic)
            q, _ = ac.next_value(state, BATCH, BATCH.goal, KEY)
            goals = Goals(BATCH.goal)
            learned, metrics = ac.critic_step(state, BATCH, goals, lambda *_: (q, {}), KEY)
            actor_moment = ac.actor_step(state, BATCH.obs, BATCH.goal).actor_opt[0].mu.weights[-1]
            critic_moment = learned.critic_opt[0].mu.weights[1]
            return q, metrics["critic/q"], critic_moment, actor_moment

        return run

    run = after(True)
    for same, other in zip(run(100.0), run(1e5), strict=True):
        np.testing.assert_allclose(same, other, rtol=2e-3, atol=1e-6)
    run = after(False)
    for same, other in zip(run(1.0), run(10.0), strict=True):
        assert abs(same - other).max() > 1e-4


@pytest.mark.parametrize("how", ["relative", "absolute"])
def test_the_goal_as_nets_read_it(how):
    columns = np.array([1, 4])
    spec = replace(SPEC, norm=SPEC.norm._replace(achieved_columns=columns))
    ac = make(spec, goal_input=how)
    state = agent_state(ac, ac.spec.norm)
    shift = np.ones(2, np.float32)
    moved = put(BATCH.obs, (np.s_[:, columns], BATCH.obs[:, columns] + shift))
    critic = shaken(state.critic)
    reads_gap_only = critic._replace(
        weights=(put(critic.weights[0], (np.s_[:, columns], 0)), *critic.weights[1:])
    )
    values = [
        ac.critic_outputs(reads_gap_only, state.norm, obs, goal, BATCH.action)
        for obs, goal in ((BATCH.obs, BATCH.goal), (moved, BATCH.goal + shift), (moved, BATCH.goal))
    ]
    close = [np.allclose(values[0], other, atol=1e-4) for other in values[1:]]
    assert close == ([True, False] if how == "relative" else [False, True])


def test_privileged_observations_reach_no_policy():
    """The last number of an observation: values depend on it, actions do not."""
    ac = make(replace(SPEC, privileged_dim=1))
    state = agent_state(ac, ac.spec.norm)
    obs, goal = np.asarray(BATCH.obs), np.asarray(BATCH.goal)
    other = obs + np.eye(6, dtype=np.float32)[-1] * 3
    values = [plain_twins(state.critic, state.norm, x, goal, BATCH.action) for x in (obs, other)]
    assert (values[0] != values[1]).all()
    actions = [ac.action(state.actor, state.norm, jnp.asarray(x), goal) for x in (obs, other)]
    np.testing.assert_array_equal(*actions)
    # The policy also acts on observations without that number.
    policy = jax.tree.map(np.asarray, ac.policy(state))
    np.testing.assert_allclose(act(policy, obs[:, :-1], goal), actions[0], atol=1e-6)
    assert (act(policy, obs[:, :-1] + 1, goal) != actions[0]).any()


def test_an_actor_that_reads_no_goal():
    """The critic of VDI reads a goal, its policy does not."""
    ac = make(reads_goal=False)
    state = agent_state(ac, ac.spec.norm)
    assert state.actor.weights[0].shape[0] == 6
    assert state.critic.weights[0].shape[1] == 6 + 2 + 2
    obs = np.asarray(BATCH.obs)
    expected = act(jax.tree.map(np.asarray, ac.policy(state)), obs, np.zeros((8, 0), np.float32))
    for goal in (BATCH.goal, BATCH.goal + 1):
        found = ac.action(state.actor, state.norm, BATCH.obs, goal)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_actor_may_have_layers_of_its_own():
    state = agent_state(make(actor_hidden=(3, 4)), SPEC.norm)
    assert [w.shape for w in state.actor.weights] == [(8, 3), (3, 4), (4, 2)]
    assert [w.shape for w in state.critic.weights] == [(2, 10, 16), (2, 16, 1)]
