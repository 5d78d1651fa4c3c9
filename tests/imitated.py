"""A small task for VDI's tests: three columns, of which one is dead, and noise to learn from."""

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents import Spec
from uvd.agents.agent import Demos
from uvd.agents.vdi import make_vdi
from uvd.core.policy import Norm
from uvd.core.replay import Batch, Episode, init_ring, insert_all
from uvd.settings import build

OBS, ACTION, N = 3, 2, 40
SMALL = {
    "hidden": (16, 16), "flow_hidden": (8, 8), "batch": 32, "short": 1000, "capacity": 1000,
    "bijectors": 4, "density_only": 0, "actor_start": 0,
}  # fmt: skip


def make_spec(live=(0, 2), demos=12, seed=0):
    rng = np.random.default_rng(seed)
    norm = Norm(
        rng.normal(size=OBS), rng.uniform(0.5, 2, OBS), np.zeros(0), np.ones(0), np.zeros(0, int)
    )
    norm = jax.tree.map(lambda x: x.astype(np.int32 if x.dtype == int else np.float32), norm)
    sizes = (OBS, ACTION, OBS)
    shown = Demos(*(rng.normal(size=(demos, n)).astype(np.float32) for n in sizes))
    return Spec(OBS, ACTION, 0, lambda a, g: False, norm, (), demos=shown, live_obs=live)


def make_batch(rng, n=N):
    x = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    none = jnp.zeros((n, 0))
    return Batch(
        jnp.arange(n), x(n, OBS), jnp.tanh(x(n, ACTION)), x(n, OBS), none, none, none,
        jnp.arange(n) % 5 == 0,
    )  # fmt: skip


def make_ring(obs, action, terminated=False, rows=None):
    """Episodes `[E, T + 1, obs]` and `[E, T, action]` in a ring, of so many rows or just theirs."""
    e, t, _ = action.shape
    ring = init_ring(rows or e * (t + 1), obs.shape[-1], action.shape[-1], 0)
    none = jnp.zeros((e, t + 1, 0))
    return insert_all(
        ring,
        Episode(
            jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32), none, none[:, 0],
            jnp.full(e, t), jnp.full(e, terminated), jnp.zeros(e, bool), jnp.zeros((e, t)),
        ),
    )  # fmt: skip


def fresh(config, spec):
    """A fresh agent's state."""
    return jax.jit(lambda key: make_vdi(config, spec).init(key, spec))(jax.random.key(0))


def history(settings, updates):
    """States after each update of a small agent on noise, from update 0 on."""
    spec = make_spec()
    config = build("vdi", "default", {**SMALL, **settings})
    agent = make_vdi(config, spec)
    rng = np.random.default_rng(0)
    ring = make_ring(rng.normal(size=(6, 5, OBS)), np.tanh(rng.normal(size=(6, 4, ACTION))))
    update = jax.jit(agent.update)
    states = [fresh(config, spec)]
    logged = []
    for step in range(updates):
        state, metrics = update(states[-1], ring, jax.random.key(step), jnp.asarray(step))
        states.append(state)
        logged.append(metrics)
    return agent, states, logged
