"""Behavioural cloning against least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents import Spec
from uvd.agents.agent import Demos
from uvd.agents.bc import make_bc
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.core.replay import init_ring
from uvd.core.errors import UserError
from uvd.settings import build

RNG = np.random.default_rng(0)
OBS = RNG.uniform(-1.4, 1.4, (60, 3)).astype(np.float32)  # within the features' range
NORM = Norm(
    np.array([0.5, 0.0, -1.0], np.float32), np.array([1.0, 2.0, 0.5], np.float32),
    np.zeros(0, np.float32), np.zeros(0, np.float32),
)  # fmt: skip


def spec(action):
    return Spec(3, 2, 0, lambda a, g: False, NORM, (), demos=Demos(OBS, action))


def test_a_linear_actor_is_that_of_least_squares():
    """With actions this small, tanh is the identity to a thousandth."""
    weights = RNG.uniform(-0.02, 0.02, (3, 2))
    action = OBS @ weights + 0.01 + 0.01 * RNG.normal(size=(60, 2))
    made = spec(action.astype(np.float32))
    config = build("bc", "default", {"hidden": (), "batch": 600})
    agent = make_bc(config, made)
    ring = init_ring(4, 3, 2, 0)

    @jax.jit
    def learn(state):
        keys, steps = jax.random.split(jax.random.key(1), 3000), jnp.arange(3000)
        return jax.lax.scan(lambda s, xs: agent.update(s, ring, *xs), state, (keys, steps))

    state, metrics = learn(agent.init(jax.random.key(0), made))
    solved, *_ = np.linalg.lstsq(np.c_[OBS, np.ones(60)], action, rcond=None)
    want = np.c_[OBS, np.ones(60)] @ solved
    found = act(agent.policy(state), jnp.asarray(OBS), jnp.zeros((60, 0)))
    np.testing.assert_allclose(found, want, atol=2e-3)
    assert np.abs(want - action).mean() > 5e-3  # it fits, it does not memorise
    residue = ((want - action) ** 2).mean()
    assert float(metrics["actor/loss"][-100:].mean()) == pytest.approx(residue, rel=0.1)


def test_actions_at_the_very_ends_are_wanted_at_a_thousandth_from_them():
    """tanh 3.8 = 0.999: an actor that leans further comes back, and would else lean for ever."""
    made = spec(np.tile(np.array([1.0, -1.0], np.float32), (60, 1)))
    agent = make_bc(build("bc", "default", {"hidden": (), "batch": 8}), made)
    state = agent.init(jax.random.key(0), made)
    ring = init_ring(4, 3, 2, 0)
    step = jax.jit(lambda s: agent.update(s, ring, jax.random.key(1), jnp.asarray(0)))
    zero = jnp.zeros((3, 2))
    for lean, way in ((3.7, 1), (3.9, -1)):
        actor = MLP((zero,), (jnp.array([lean, -lean]),))
        after, _ = step(state._replace(actor=actor))
        np.testing.assert_array_equal(np.sign(abs(after.actor.biases[0]) - lean), [way, way])
    _, metrics = step(state._replace(actor=MLP((zero,), (jnp.zeros(2),))))
    assert float(metrics["actor/loss"]) == pytest.approx(0.999**2, abs=1e-5)


def test_l2_draws_weights_towards_zero():
    """The actor does already what was shown: nothing else moves it."""
    config = build("bc", "default", {"hidden": (8,), "batch": 16, "l2": 0.5, "actor_lr": 1e-3})
    made = spec(np.zeros((60, 2), np.float32))
    state = make_bc(config, made).init(jax.random.key(0), made)
    shown = act(Policy(state.actor, state.norm), jnp.asarray(OBS), jnp.zeros((60, 0)))
    agent = make_bc(config, spec(shown))
    after, metrics = jax.jit(agent.update)(
        state, init_ring(4, 3, 2, 0), jax.random.key(1), jnp.asarray(0)
    )
    assert float(metrics["actor/loss"]) < 1e-12
    for old, new in zip(jax.tree.leaves(state.actor), jax.tree.leaves(after.actor)):
        # Adam's first step is as long as its learning rate.
        np.testing.assert_allclose(new, old - 1e-3 * np.sign(old), atol=1e-5)


def test_without_actions_it_is_refused():
    with pytest.raises(UserError, match="bc needs actions"):
        make_bc(build("bc", "default", {}), spec(None))
