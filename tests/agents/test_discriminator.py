"""The discriminator against the known ratio of two densities, and DAC's target by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents import Spec
from uvd.agents.agent import Demos
from uvd.agents.dac import make_dac, make_target
from uvd.agents.discriminator import DiscriminatorConfig, logits, make_discriminator
from uvd.agents.td3 import HEADS, init_td3
from uvd.core.policy import MLP, Norm, act, mlp
from uvd.core.replay import Batch, Episode, init_ring, insert_all
from uvd.core.errors import UserError
from uvd.settings import build

ONE = np.ones(2, np.float32)
NORM = Norm(0 * ONE, ONE, ONE[:0], ONE[:0])


def make_spec(obs, action=None, next_obs=None):
    return Spec(2, 1, 0, lambda a, g: False, NORM, (), demos=Demos(obs, action, next_obs))


def make_batch(obs, action, terminated):
    n = len(obs)
    none = jnp.zeros((n, 0))
    return Batch(
        jnp.arange(n), jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32),
        jnp.asarray(obs, jnp.float32), none, none, none, jnp.asarray(terminated),
    )  # fmt: skip


def trained(config, spec, draw, ends, steps=1500, n=256):
    """A discriminator after some steps on what `draw` gives as the agent's."""
    discriminator = make_discriminator(config, spec)

    @jax.jit
    def fit(state):
        def body(state, key):
            key_draw, key_step = jax.random.split(key)
            batch = draw(key_draw, n)
            return discriminator.step(state, NORM, batch, ends(batch), key_step)

        return jax.lax.scan(body, state, jax.random.split(jax.random.key(1), steps))

    state, metrics = fit(discriminator.init(jax.random.key(0)))
    return discriminator, state, metrics


def test_logits_tend_to_the_log_ratio_of_two_gaussians():
    rng = np.random.default_rng(0)
    centre = np.array([0.8, -0.4])
    expert = (centre + rng.normal(size=(20_000, 2))).astype(np.float32)

    def draw(key, n):
        return make_batch(jax.random.normal(key, (n, 2)), jnp.zeros((n, 1)), jnp.zeros(n, bool))

    config = DiscriminatorConfig(gradient_penalty=0.0, discriminator_lr=3e-3)
    discriminator, state, metrics = trained(
        config, make_spec(expert), draw, lambda batch: batch.terminated
    )
    x = rng.normal(size=(200, 2)).astype(np.float32)
    read = discriminator.read(NORM, jnp.asarray(x), None, None)
    ratio = -0.5 * ((x - centre) ** 2).sum(-1) + 0.5 * (x**2).sum(-1)
    assert np.mean(abs(logits(state.net, read) - ratio)) < 0.2
    assert float(metrics["discriminator/right"][-200:].mean()) == pytest.approx(0.67, abs=0.03)
    for kind, want in (("softplus", np.log1p(np.exp(ratio))), ("log", -np.log1p(np.exp(-ratio)))):
        other = make_discriminator(dataclasses.replace(config, reward=kind), make_spec(expert))
        assert np.mean(abs(other.reward(state.net, read) - want)) < 0.2


def test_the_absorbing_state_is_the_agents_as_often_as_its_episodes_end():
    """Its log loss has no expert's part here, so its logit falls without end; by how much each end
    counts is seen in the gradient."""
    expert = np.zeros((10, 2), np.float32)
    spec = make_spec(expert)
    discriminator = make_discriminator(DiscriminatorConfig(gradient_penalty=0.0), spec)
    state = discriminator.init(jax.random.key(0))
    batch = make_batch(np.zeros((8, 2)), np.zeros((8, 1)), np.arange(8) < 2)

    def loss(ends):
        _, metrics = discriminator.step(state, NORM, batch, ends, jax.random.key(0))
        return float(metrics["discriminator/loss"])

    here = float(logits(state.net, jnp.zeros(3)))
    there = float(logits(state.net, discriminator.absorbing))
    soft = lambda x: np.log1p(np.exp(x))  # noqa: E731
    assert loss(jnp.zeros(8)) == pytest.approx(soft(-here) + soft(here), abs=1e-5)
    want = soft(-here) + (8 * soft(here) + 2 * soft(there)) / 10
    assert loss(batch.terminated) == pytest.approx(want, abs=1e-5)


def test_the_gradient_penalty_holds_slopes_near_one():
    rng = np.random.default_rng(0)
    expert = (np.array([2.0, 0.0]) + 0.05 * rng.normal(size=(500, 2))).astype(np.float32)

    def draw(key, n):
        obs = 0.05 * jax.random.normal(key, (n, 2))
        return make_batch(obs, jnp.zeros((n, 1)), jnp.zeros(n, bool))

    slopes = []
    for penalty in (0.0, 10.0):
        discriminator, state, _ = trained(
            DiscriminatorConfig(gradient_penalty=penalty), make_spec(expert), draw,
            lambda batch: batch.terminated, 600,
        )  # fmt: skip
        at = discriminator.read(NORM, jnp.array([[0.0, 0.0], [2.0, 0.0]]), None, None)
        low, high = logits(state.net, at)
        slopes.append(float(high - low) / 2)
    assert slopes[0] > 2
    assert slopes[1] == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("logit", [-3, -2, 2, 3]),
        ("softplus", [0.0003354, 0.1269280, 2.1269280, 3]),  # log(1 + e^x)
        ("log", [-3, -2.1269280, -0.1269280, -0.0003354]),
    ],
)
def test_rewards_are_clipped_to_their_bound(kind, want):
    config = DiscriminatorConfig(reward=kind, reward_bound=3.0, discriminator_hidden=())
    discriminator = make_discriminator(config, make_spec(np.zeros((4, 2), np.float32)))
    net = MLP((jnp.array([[4.0], [0.0], [0.0]]),), (jnp.zeros(1),))
    obs = jnp.array([[-2.0, 0.0], [-0.5, 0.0], [0.5, 0.0], [2.0, 0.0]])
    x = discriminator.read(NORM, obs, None, None)
    np.testing.assert_allclose(logits(net, x), [-8, -2, 2, 8])  # some of them exceed it
    np.testing.assert_allclose(discriminator.reward(net, x), want, rtol=1e-4)


@pytest.mark.parametrize(
    ("reads", "shown", "width"),
    [("auto", "action", 4), ("auto", "obs", 3), ("state", "action", 3), ("next", "next", 5)],
)
def test_what_is_read(reads, shown, width):
    obs, action = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
    demos = {"obs": (obs,), "action": (obs, action), "next": (obs, None, obs)}[shown]
    discriminator = make_discriminator(DiscriminatorConfig(reads=reads), make_spec(*demos))
    x = discriminator.read(NORM, jnp.ones((3, 2)), jnp.full((3, 1), 2.0), jnp.full((3, 2), 4.0))
    more = {4: [1.0], 3: [], 5: [4.0, 4.0]}[width]  # an action is read as the task felt it
    np.testing.assert_array_equal(x[0], [1.0, 1.0, *more, 0.0])


@pytest.mark.parametrize("reads", ["action", "next"])
def test_what_demonstrations_lack_is_refused(reads):
    with pytest.raises(UserError, match=f"which reads = {reads} needs"):
        make_discriminator(DiscriminatorConfig(reads=reads), make_spec(np.zeros((4, 2))))


def test_dac_goes_on_in_the_absorbing_state():
    config = build("dac", "default", {"hidden": (8,), "reward_bound": 3.0})
    spec = make_spec(np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32))
    discriminator = make_discriminator(config.discriminator, spec)
    net = discriminator.init(jax.random.key(0)).net
    biases = (*net.biases[:-1], jnp.array([0.7]))
    net = net._replace(biases=biases, weights=tuple(3 * w for w in net.weights))
    head = HEADS["linear"](1.0, 0.0)
    state = init_td3(config.td3, head, spec, jax.random.key(1))
    rng = np.random.default_rng(0)
    batch = make_batch(rng.normal(size=(6, 2)), rng.uniform(-1, 1, (6, 1)), np.arange(6) % 2 == 0)
    target, _ = make_target(config, head, discriminator, net)(
        state, batch, batch.goal, jax.random.key(2)
    )
    gamma = config.td3.gamma
    # A reward for ever: r_abs (1 + gamma + gamma² + ...)
    r_abs = np.clip(mlp(net, np.array([0, 0, 0, 1.0]))[0], -3, 3)
    for_ever = sum(gamma**t * r_abs for t in range(2000))
    for i in range(6):
        x = np.concatenate([batch.obs[i], batch.action[i], [0.0]])
        reward = np.clip(mlp(net, x)[0], -3, 3)
        a = np.tanh(mlp(state.actor_target, batch.next_obs[i]))
        seen = jnp.concatenate([batch.next_obs[i], a])
        q = min(mlp(jax.tree.map(lambda w, k=k: w[k], state.critic), seen)[0] for k in (0, 1))
        want = reward + gamma * (for_ever if i % 2 == 0 else q)
        assert float(target[i]) == pytest.approx(float(want), rel=1e-4)


def test_no_target_of_dac_exceeds_that_of_the_largest_reward_for_ever():
    settings = {"hidden": (8,), "discriminator_hidden": (), "reward_bound": 3.0, "gamma": 0.5}
    config = build("dac", "default", settings)
    spec = make_spec(np.zeros((4, 2), np.float32))
    discriminator = make_discriminator(config.discriminator, spec)
    net = jax.tree.map(jnp.zeros_like, discriminator.init(jax.random.key(0)).net)
    net = net._replace(biases=(jnp.ones(1),))  # every reward is 1
    head = HEADS["linear"](1.0, 0.0)
    state = init_td3(config.td3, head, spec, jax.random.key(1))
    critic = jax.tree.map(jnp.zeros_like, state.critic_target)
    batch = make_batch(np.zeros((2, 2)), np.zeros((2, 1)), [False, True])
    # 1 + q/2 is -9, 3 and 11, to be cut at ±3 (1 + 1/2 + 1/4 + ...); an end is worth 1 + 1/2 + ...
    for q, want in ((-20.0, -6.0), (4.0, 3.0), (20.0, 6.0)):
        slow = critic._replace(biases=(*critic.biases[:-1], jnp.full((2, 1), q)))
        target, _ = make_target(config, head, discriminator, net)(
            state._replace(critic_target=slow), batch, batch.goal, jax.random.key(2)
        )
        np.testing.assert_allclose(target, [want, 2.0], rtol=1e-6)


@pytest.mark.parametrize("terminated", [False, True])
def test_dac_trains_the_absorbing_state_where_the_task_ends_episodes(terminated):
    """Episodes of one step: it counts as often as all they saw, or never after a time limit."""
    small = {"hidden": (), "discriminator_hidden": (), "batch": 16}
    spec = make_spec(np.zeros((4, 2), np.float32))
    agent = make_dac(build("dac", "default", small), spec)
    state = jax.jit(lambda key: agent.init(key, spec))(jax.random.key(0))
    none, no = jnp.zeros((5, 2, 0)), jnp.zeros(5, bool)
    played = Episode(
        jnp.zeros((5, 2, 2)), jnp.zeros((5, 1, 1)), none, none[:, 0], jnp.ones(5, int),
        jnp.full(5, terminated), no, jnp.zeros((5, 1)),
    )  # fmt: skip
    ring = insert_all(init_ring(20, 2, 1, 0), played)
    _, metrics = jax.jit(agent.update)(state, ring, jax.random.key(1), jnp.asarray(0))
    here, there = (float(logits(state.discriminator.net, jnp.array([0.0, 0.0, x]))) for x in (0, 1))
    soft = lambda x: np.log1p(np.exp(x))  # noqa: E731
    agents = (soft(here) + soft(there)) / 2 if terminated else soft(here)
    assert abs(here - there) > 0.01
    assert float(metrics["discriminator/loss"]) == pytest.approx(soft(-here) + agents, abs=1e-5)


def test_dac_comes_to_act_as_it_was_shown():
    """Random actions are remembered; the expert's is half of the first number it sees."""
    small = {"hidden": (32,), "batch": 128, "gamma": 0.5, "action_penalty": 0.0}
    config = build("dac", "default", {**small, "gradient_penalty": 0.1})
    rng, n = np.random.default_rng(0), 2000
    shown = rng.uniform(-1, 1, (200, 2)).astype(np.float32)
    spec = make_spec(shown, 0.5 * shown[:, :1])
    obs, action = rng.uniform(-1, 1, (n, 2, 2)), rng.uniform(-1, 1, (n, 1, 1))
    none, no = jnp.zeros((n, 2, 0)), jnp.zeros(n, bool)
    played = Episode(
        jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32), none, none[:, 0],
        jnp.ones(n, int), no, no, jnp.zeros((n, 1)),
    )  # fmt: skip
    ring = insert_all(init_ring(2 * n, 2, 1, 0), played)
    agent = make_dac(config, spec)

    @jax.jit
    def learn(state):
        keys = jax.random.split(jax.random.key(1), 1500)
        steps = jnp.arange(len(keys))
        return jax.lax.scan(lambda s, x: agent.update(s, ring, *x), state, (keys, steps))[0]

    state = learn(agent.init(jax.random.key(0), spec))
    action = act(agent.policy(state), jnp.asarray(shown), jnp.zeros((200, 0)))
    assert np.mean(abs(action - 0.5 * shown[:, :1])) < 0.12
