"""How much longer n seeds take than one: time of an update of all seeds, at the paper's sizes.

python bench/seeds.py 1 16        # on a GPU; prints milliseconds an update and the ratio
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from update import CASES, filled_ring, spec_of
from uvd.agents import get_algorithm
from uvd.settings import build


def time_update(name: str, seeds: int, updates: int = 200) -> float:
    """Seconds an update of all seeds, many in one compiled call."""
    spec = spec_of()
    agent = get_algorithm(name).make(build(name, "paper", CASES[name]), spec)
    ring = filled_ring(20_000)
    init = jax.jit(jax.vmap(lambda k: agent.init(k, spec)))  # jitted: no two leaves share a buffer
    state = init(jax.random.split(jax.random.key(0), seeds))
    rings = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), ring)

    def many(state, key):
        def one(s, i):
            keys = jax.random.split(jax.random.fold_in(key, i), seeds)
            return jax.vmap(agent.update, (0, 0, 0, None))(s, rings, keys, i)[0], None

        return jax.lax.scan(one, state, jnp.arange(updates))[0]

    run = jax.jit(many, donate_argnums=0)
    state = jax.block_until_ready(run(state, jax.random.key(1)))
    times = []
    for i in range(5):
        begun = time.perf_counter()
        state = jax.block_until_ready(run(state, jax.random.key(i)))
        times.append(time.perf_counter() - begun)
    return float(np.median(times)) / updates


def main() -> None:
    """Prints a row for each number of seeds."""
    counts = [int(a) for a in sys.argv[1:]] or [1, 16]
    base = None
    for n in counts:
        seconds = time_update("uvd", n)
        base = base or seconds
        row = {"seeds": n, "ms_per_update": 1e3 * seconds, "ratio_to_first": seconds / base}
        print(json.dumps({**row, "device": jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    main()
