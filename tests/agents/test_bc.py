"""Behavioural cloning against least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.agents import Spec
from uvd.agents.agent import Demos
from uvd.agents.bc import make_bc
from uvd.core.policy import Norm, act
from uvd.core.replay import init_ring
from uvd.errors import UserError
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


def test_without_actions_it_is_refused():
    with pytest.raises(UserError, match="bc needs actions"):
        make_bc(build("bc", "default", {}), spec(None))
