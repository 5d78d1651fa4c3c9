"""Behavioural cloning against least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_tasks import KEY, compiled, filled, unit_norm, zeros
from uvd.agents import Spec, get_algorithm
from uvd.agents.agent import DemoSteps
from uvd.agents.bc import BCConfig, make_bc
from uvd.core.errors import UserError
from uvd.core.policy import MLP, act
from uvd.core.replay import init_ring

RNG = np.random.default_rng(0)
OBS = RNG.uniform(-1.4, 1.4, (60, 3)).astype(np.float32)  # within the features' range
NORM = unit_norm(3, 0)._replace(
    obs_shift=np.array([0.5, 0.0, -1.0], np.float32),
    obs_scale=np.array([1.0, 2.0, 0.5], np.float32),
)
NO_GOAL = np.zeros((60, 0), np.float32)


def make(action, **settings):
    action = None if action is None else np.asarray(action, np.float32)
    spec = Spec(3, 2, 0, lambda a, g: False, NORM, (), demos=DemoSteps(OBS, action))
    return make_bc(BCConfig(**settings), spec)


def updating(agent):
    """One update, which reads no experience, and a random state."""
    shapes = jax.eval_shape(agent.init, KEY)
    state = zeros(shapes)._replace(actor=filled(shapes.actor), norm=jax.tree.map(jnp.asarray, NORM))
    ring = init_ring(4, 3, 2, 0)
    return compiled(lambda s: agent.update(s, ring, jax.random.key(1), jnp.asarray(0))), state


def test_a_linear_actor_is_that_of_least_squares():
    """With actions this small, tanh is the identity to a thousandth."""
    weights = RNG.uniform(-0.02, 0.02, (3, 2))
    action = OBS @ weights + 0.01 + 0.01 * RNG.normal(size=(60, 2))
    agent, ring = make(action, hidden=(), batch=600), init_ring(4, 3, 2, 0)

    @compiled
    def learn(state):
        keys, steps = jax.random.split(jax.random.key(1), 2500), jnp.arange(2500)
        body = lambda s, xs: agent.update(s, ring, *xs)  # noqa: E731
        return jax.lax.scan(body, state, (keys, steps))

    state, metrics = learn(agent.init(KEY))
    inputs = np.c_[OBS, np.ones(60)]
    expected = inputs @ np.linalg.lstsq(inputs, action, rcond=None)[0]
    found = act(jax.tree.map(np.asarray, agent.policy(state)), OBS, NO_GOAL)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.abs(expected - action).mean() > 5e-3  # it fits, it does not memorise
    residue = ((expected - action) ** 2).mean()
    assert float(metrics["actor/loss"][-100:].mean()) == pytest.approx(residue, rel=0.1)


def test_actions_at_the_very_ends_are_wanted_at_a_thousandth_from_them():
    """tanh 3.8 = 0.999: an actor beyond comes back, and would else go on for ever."""
    step, state = updating(make(np.tile([1.0, -1.0], (60, 1)), hidden=(), batch=8))
    zero = jnp.zeros((3, 2))
    for output, way in ((3.7, 1), (3.9, -1)):
        after, _ = step(state._replace(actor=MLP((zero,), (jnp.array([output, -output]),))))
        np.testing.assert_array_equal(np.sign(abs(after.actor.biases[0]) - output), [way, way])
    _, metrics = step(state._replace(actor=MLP((zero,), (jnp.zeros(2),))))
    assert float(metrics["actor/loss"]) == pytest.approx(0.999**2, abs=1e-5)


def test_l2_draws_weights_towards_zero():
    """The actor acts as demonstrated already: nothing else moves it."""
    settings = {"hidden": (8,), "batch": 16, "l2": 0.5, "actor_lr": 1e-3}
    agent = make(np.zeros((60, 2)), **settings)
    _, state = updating(agent)
    action = act(jax.tree.map(np.asarray, agent.policy(state)), OBS, NO_GOAL)
    step, _ = updating(make(action, **settings))
    after, metrics = step(state)
    assert float(metrics["actor/loss"]) < 1e-12
    for old, new in zip(jax.tree.leaves(state.actor), jax.tree.leaves(after.actor)):
        # Adam's first step is as long as its learning rate.
        np.testing.assert_allclose(new, old - 1e-3 * np.sign(old), atol=1e-5)


def test_without_actions_it_is_refused():
    with pytest.raises(UserError, match="bc needs actions"):
        make(None)
    with pytest.raises(UserError, match="l2 = -1 must not be negative"):
        BCConfig(l2=-1)


def test_it_collects_nothing_to_learn_from():
    collect = get_algorithm("bc").collect(BCConfig(updates_per_step=0.1))
    assert (collect.noise, collect.random, collect.warmup, collect.capacity) == (0, 0, 0, 0)
    assert collect.updates_per_step == 0.1
