"""Time of an update over the time of its bare matrix products; retraces; replay's share; memory."""

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents.agent import Spec
from uvd.core.policy import Norm
from uvd.core.replay import Episode, Ring, init_ring, insert_all

OBS, ACTION, GOAL, HORIZON = 25, 4, 3, 50  # FetchPush's shapes

# The paper's sizes; the goals that cost most: drawn from the density.
CASES = {
    "td3": {},
    "uvd": {
        "td_goals": "density",
        "combine": "sum",
        "horizon": 1,
        "smoothing": 0.1,
        "intended": 0.2,
    },
}


def spec_of() -> Spec:
    """A task of Fetch's shape."""
    norm = Norm(np.zeros(OBS), np.ones(OBS), np.zeros(GOAL), np.ones(GOAL))
    norm = jax.tree.map(lambda x: x.astype(np.float32), norm)
    near = lambda a, g: ((a - g) ** 2).sum(-1) < 0.01  # noqa: E731
    return Spec(OBS, ACTION, GOAL, near, norm, tuple(range(GOAL)))


def filled_ring(spec: Spec, transitions: int) -> Ring:
    """A ring of random episodes."""
    n = transitions // HORIZON
    k = jax.random.split(jax.random.key(0), 4)
    episodes = Episode(
        jax.random.normal(k[0], (n, HORIZON + 1, OBS)),
        jax.random.uniform(k[1], (n, HORIZON, ACTION), minval=-1),
        jax.random.normal(k[2], (n, HORIZON + 1, GOAL)),
        jax.random.normal(k[3], (n, GOAL)),
        jnp.full(n, HORIZON, jnp.int32),
        jnp.zeros(n, bool),
        jnp.zeros(n, bool),
    )
    ring = init_ring(n * (HORIZON + 1), OBS, ACTION, GOAL)
    return jax.jit(insert_all)(ring, episodes)
