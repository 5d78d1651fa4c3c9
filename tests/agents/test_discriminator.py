"""The discriminator against the known ratio of two densities; its loss and penalty by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, compiled, demo_spec, filled, make_batch, put, unit_norm, zeros
from uvd.agents import Spec
from uvd.agents.agent import DemoSteps
from uvd.agents.discriminator import Discriminator, DiscriminatorConfig, logits
from uvd.core.errors import UserError
from uvd.core.policy import MLP

NORM = unit_norm(2, 0)
CONFIG = DiscriminatorConfig(discriminator_hidden=(16, 16))


def spec_of(obs, action=None, next_obs=None):
    return Spec(2, 1, 0, lambda a, g: False, NORM, (), demos=DemoSteps(obs, action, next_obs))


FOUR = spec_of(np.zeros((4, 2), np.float32))


def soft(x):
    return np.log1p(np.exp(x))


def trained(config, spec, draw_obs, steps, n=256):
    """A discriminator after some steps on observations that `draw_obs` gives as the agent's."""
    discriminator = Discriminator(config, spec)
    batch, no_end = make_batch(n, spec), jnp.zeros(n)

    @compiled
    def fit(state):
        def body(state, key):
            key_draw, key_step = jax.random.split(key)
            agent_batch = batch._replace(obs=draw_obs(key_draw, (n, 2)))
            return discriminator.step(state, NORM, agent_batch, no_end, key_step)

        return jax.lax.scan(body, state, jax.random.split(KEY, steps))

    return discriminator, *fit(discriminator.init(KEY))


def test_logits_tend_to_the_log_ratio_of_two_gaussians():
    rng, centre = np.random.default_rng(0), np.array([0.8, -0.4])
    expert = (centre + rng.normal(size=(20_000, 2))).astype(np.float32)
    config = replace(CONFIG, gradient_penalty=0.0, discriminator_lr=1e-2)
    found = trained(config, spec_of(expert), jax.random.normal, 700)
    discriminator, state, metrics = found
    x = rng.normal(size=(200, 2)).astype(np.float32)
    read = discriminator.read(NORM, jnp.asarray(x), None, None)
    ratio = -0.5 * ((x - centre) ** 2).sum(-1) + 0.5 * (x**2).sum(-1)
    assert np.mean(abs(logits(state.net, read) - ratio)) < 0.2
    assert float(metrics["discriminator/right"][-200:].mean()) == pytest.approx(0.67, abs=0.03)


def test_the_absorbing_state_is_the_agents_as_often_as_its_episodes_end():
    discriminator = Discriminator(replace(CONFIG, gradient_penalty=0.0), FOUR)
    state = filled(jax.eval_shape(discriminator.init, KEY))
    batch = make_batch(8, FOUR, obs=np.zeros((8, 2), np.float32))
    step = compiled(lambda ends: discriminator.step(state, NORM, batch, ends, KEY))
    here = float(logits(state.net, jnp.zeros(3)))
    there = float(logits(state.net, discriminator.absorbing))
    for ends in (np.zeros(8), np.arange(8) < 2):
        _, metrics = step(jnp.asarray(ends, jnp.float32))
        n = ends.sum()
        expected = soft(-here) + (8 * soft(here) + n * soft(there)) / (8 + n)
        assert float(metrics["discriminator/loss"]) == pytest.approx(expected, abs=1e-5)
    assert abs(here - there) > 0.01


def test_a_step_goes_down_the_log_loss():
    """Of a linear logit w x + b, where all of the expert's are at one place and the agent's at
    another: both gradients in closed form, read off Adam's first moment."""
    config = replace(CONFIG, gradient_penalty=0.5, discriminator_hidden=())
    spec = spec_of(np.full((4, 2), [1.0, 2.0], np.float32))
    discriminator = Discriminator(config, spec)
    batch = make_batch(8, spec, obs=np.full((8, 2), [-1.0, 0.5], np.float32))
    w, b = np.array([0.3, -0.2, 0.0]), 0.25
    state = filled(jax.eval_shape(discriminator.init, KEY))
    net = MLP((jnp.asarray(w[:, None], jnp.float32),), (jnp.array([b], jnp.float32),))
    opt = jax.tree.map(lambda x: 0 * x, state.net_opt)
    step = compiled(lambda s: discriminator.step(s, NORM, batch, jnp.zeros(8), KEY))
    after, metrics = step(state._replace(net=net, net_opt=opt))
    expert, agent = np.array([1.0, 2.0, 0.0]), np.array([-1.0, 0.5, 0.0])
    on_expert, on_agent = w @ expert + b, w @ agent + b
    size = np.linalg.norm(w)
    assert float(metrics["discriminator/penalty"]) == pytest.approx((size - 1) ** 2, rel=1e-4)
    loss = soft(-on_expert) + soft(on_agent)
    assert float(metrics["discriminator/loss"]) == pytest.approx(loss, rel=1e-5)
    up, down = 1 / (1 + np.exp(on_expert)), 1 / (1 + np.exp(-on_agent))
    gradient = -up * expert + down * agent + 0.5 * 2 * (size - 1) * w / size
    moment = after.net_opt[0].mu
    np.testing.assert_allclose(moment.weights[0][:, 0] / 0.1, gradient, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(moment.biases[0] / 0.1, down - up, rtol=1e-3)
    assert [float(metrics[f"discriminator/logit_{who}"]) for who in ("expert", "agent")] == (
        pytest.approx([on_expert, on_agent], rel=1e-4)
    )


def test_slopes_are_penalised_everywhere_between_expert_and_agent():
    """The logit 1.5 leaky(x) has slope 1.5 above 0 and 0.015 below; the expert is at 3 and the
    agent at -1, so a quarter of the way between them is below 0."""
    n, spec = 4000, spec_of(np.full((4, 2), [3.0, 0.0], np.float32))
    discriminator = Discriminator(replace(CONFIG, discriminator_hidden=(1,)), spec)
    state = zeros(jax.eval_shape(discriminator.init, KEY))
    first, last = state.net.weights
    net = state.net._replace(weights=(put(first, (0, 1)), last + 1.5))
    batch = make_batch(n, spec, obs=np.full((n, 2), [-1.0, 0.0], np.float32))
    step = compiled(lambda s: discriminator.step(s, NORM, batch, jnp.zeros(n), KEY))
    _, metrics = step(state._replace(net=net))
    expected = 0.75 * (1.5 - 1) ** 2 + 0.25 * (0.015 - 1) ** 2
    assert float(metrics["discriminator/penalty"]) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ({}, [-10, -2, 2, 10]),
        ({"reward_of": jax.nn.softplus}, [6.1e-6, 0.1269280, 2.1269280, 10]),  # log(1 + e^x)
    ],
)
def test_rewards_are_clipped_to_their_bound(reward, expected):
    discriminator = Discriminator(DiscriminatorConfig(), FOUR, **reward)
    net = MLP((jnp.array([[4.0], [0.0], [0.0]]),), (jnp.zeros(1),))
    obs = jnp.array([[-3.0, 0.0], [-0.5, 0.0], [0.5, 0.0], [3.0, 0.0]])
    x = discriminator.read(NORM, obs, None, None)
    np.testing.assert_allclose(logits(net, x), [-12, -2, 2, 12])  # some of them exceed it
    np.testing.assert_allclose(discriminator.reward(net, x), expected, rtol=1e-2)


@pytest.mark.parametrize(
    ("reads", "offered", "width"),
    [("auto", "action", 4), ("auto", "obs", 3), ("state", "action", 3), ("next", "next", 5)],
)
def test_what_is_read(reads, offered, width):
    obs, action = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
    demos = {"obs": (obs,), "action": (obs, action), "next": (obs, None, obs)}[offered]
    discriminator = Discriminator(DiscriminatorConfig(reads=reads), spec_of(*demos))
    x = discriminator.read(NORM, jnp.ones((3, 2)), jnp.full((3, 1), 2.0), jnp.full((3, 2), 4.0))
    more = {4: [1.0], 3: [], 5: [4.0, 4.0]}[width]  # an action is read as the task clips it
    np.testing.assert_array_equal(x[0], [1.0, 1.0, *more, 0.0])
    np.testing.assert_array_equal(discriminator.absorbing, [0] * (width - 1) + [1])


@pytest.mark.parametrize("reads", ["action", "next"])
def test_what_demonstrations_lack_is_refused(reads):
    with pytest.raises(UserError, match=f"which reads = {reads} needs"):
        Discriminator(DiscriminatorConfig(reads=reads), FOUR)
    with pytest.raises(UserError, match="nothing to imitate"):
        Discriminator(DiscriminatorConfig(), replace(demo_spec(), demos=None))
    with pytest.raises(UserError, match="unknown reads 'actions'; nearest: action"):
        DiscriminatorConfig(reads="actions")


def test_the_experts_pairs_belong_together():
    """The logit s + a of an expert that does a = s = ±1 is ±2, and never 0."""
    x = np.array([[1.0], [-1.0]], np.float32)
    spec = Spec(1, 1, 0, lambda a, g: False, unit_norm(1, 0), (), demos=DemoSteps(x, x, x))
    for reads in ("action", "next"):
        discriminator = Discriminator(
            DiscriminatorConfig(reads=reads, discriminator_hidden=()), spec
        )
        state = zeros(jax.eval_shape(discriminator.init, KEY))
        net = state.net._replace(weights=(np.float32([[1], [1], [0]]),))
        batch = make_batch(
            500,
            spec,
            obs=np.zeros((500, 1), np.float32),
            action=np.zeros((500, 1), np.float32),
            next_obs=np.zeros((500, 1), np.float32),
        )
        step = compiled(
            lambda s, d=discriminator, b=batch: d.step(s, spec.norm, b, jnp.zeros(500), KEY)
        )
        _, metrics = step(state._replace(net=net))
        expected = (np.log1p(np.exp(2)) + np.log1p(np.exp(-2))) / 2 + np.log(2)
        assert float(metrics["discriminator/loss"]) == pytest.approx(expected, abs=0.15)
