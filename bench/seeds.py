"""How much longer n seeds take than one: time of an update of all seeds, on a GPU.

    python bench/seeds.py uvd 1 16        # UVD at the paper's sizes, FetchPush's shapes
    python bench/seeds.py vdi 1 5         # VDI, preset environment

Prints milliseconds an update and the ratio to the first number of seeds.
"""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from update import CASES, filled_ring, spec_of
from uvd.agents import get_algorithm
from uvd.agents.agent import DemoSteps, Spec
from uvd.core.policy import Norm
from uvd.settings import build
from uvd.training.spec import never

LATE = 10_000  # by this update everything learns


def cheetah() -> Spec:
    """A task of the cheetah's shape and 50 states to imitate."""
    sizes = (16, 16, 0, 0)
    norm = Norm(*(np.full(n, i % 2, np.float32) for i, n in enumerate(sizes)))
    demos = DemoSteps(np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32))
    return Spec(16, 6, 0, never, norm, (), has_rewards=True, demos=demos)


def case(name: str) -> tuple[Spec, Any]:
    """The task and the settings that an algorithm is timed with."""
    if name == "vdi":
        return cheetah(), build("vdi", "HalfCheetahNonExploitable-v0", "cheetah").settings
    return spec_of(), build(name, "FetchPush-v4", "paper", CASES[name]).settings


def time_update(name: str, seeds: int, updates: int = 200) -> float:
    """Seconds an update of all seeds, many in one compiled call."""
    spec, config = case(name)
    agent = get_algorithm(name).make(config, spec)
    ring = filled_ring(20_000, spec)
    init = jax.jit(jax.vmap(agent.init))  # jitted: no two leaves share a buffer
    state = init(jax.random.split(jax.random.key(0), seeds))
    rings = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), ring)

    def many(state, key):
        def one(s, i):
            keys = jax.random.split(jax.random.fold_in(key, i), seeds)
            return jax.vmap(agent.update, (0, 0, 0, None))(s, rings, keys, i)[0], None

        return jax.lax.scan(one, state, LATE + jnp.arange(updates))[0]

    run = jax.jit(many, donate_argnums=0)
    state = jax.block_until_ready(run(state, jax.random.key(1)))
    times = []
    for i in range(5):
        begun = time.perf_counter()
        state = jax.block_until_ready(run(state, jax.random.key(i)))
        times.append(time.perf_counter() - begun)
    return float(np.median(times)) / updates


def main(name: str, counts: list[int]) -> None:
    """Prints a row for each number of seeds."""
    base = None
    for n in counts:
        seconds = time_update(name, n)
        base = base or seconds
        row = {"seeds": n, "ms_per_update": 1e3 * seconds, "ratio_to_first": seconds / base}
        print(json.dumps({"of": name, **row, "device": jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0] if words else "uvd", [int(w) for w in words[1:]] or [1, 16])
