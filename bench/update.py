"""What an update costs against the least it could: ratios measured in one run.

    python bench/update.py            # or: make bench

For TD3 and UVD at the paper's sizes (batch 512, 400-400, 6 bijectors of 300-300) it prints the time
of an update over the time of its bare matrix products at the best product rate that this machine
shows; how often the update was traced; the share of replay sampling; and the memory of a ring.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from uvd.agents import get_algorithm
from uvd.agents.agent import Spec
from uvd.core.episode import Episode
from uvd.core.policy import Norm
from uvd.core.replay import Ring, fetch, future, init_ring, insert_all, sample, uniform_offset
from uvd.settings import build

OBS, ACTION, GOAL, HORIZON = 25, 4, 3, 50  # FetchPush's shapes

# The paper's sizes, goals from the density (which costs more than the paper's intended ones).
CASES: dict[str, dict[str, Any]] = {
    "td3": {},
    "uvd": {
        "td_goals": "density", "actor_goals": "future", "combine": "sum",
        "lookahead": 1, "smoothing": 0.1,
    },
}  # fmt: skip


def spec_of() -> Spec:
    """A task of Fetch's shape."""
    sizes = (OBS, OBS, GOAL, GOAL)
    norm = Norm(*(np.full(n, i % 2, np.float32) for i, n in enumerate(sizes)))
    return Spec(
        OBS, ACTION, GOAL, lambda a, g: ((a - g) ** 2).sum(-1) < 0.01, norm, tuple(range(GOAL))
    )


def filled_ring(transitions: int, spec: Spec) -> Ring:
    """A ring of random episodes."""
    n = transitions // HORIZON
    k = jax.random.split(jax.random.key(0), 4)
    sizes = spec.obs_dim, spec.action_dim, spec.goal_dim
    episodes = Episode(
        jax.random.normal(k[0], (n, HORIZON + 1, spec.obs_dim)),
        jax.random.uniform(k[1], (n, HORIZON, spec.action_dim), minval=-1),
        jax.random.normal(k[2], (n, HORIZON + 1, spec.goal_dim)),
        jax.random.normal(k[3], (n, spec.goal_dim)),
        jnp.full(n, HORIZON, jnp.int32),
        jnp.zeros(n, bool),
        jnp.zeros((n, HORIZON), bool),
        jnp.zeros((n, HORIZON)),
    )
    return jax.jit(insert_all)(init_ring(n * (HORIZON + 1), *sizes), episodes)


def seconds(run: Callable[[], Any], repeats: int = 7) -> float:
    """The median time of a call, after one to warm up."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def best_product_rate() -> float:
    """The highest rate of float32 matrix products over several sizes, in FLOP/s."""
    best = 0.0
    for n in (512, 1024, 2048):
        a = jax.random.normal(jax.random.key(n), (n, n))
        many = jax.jit(lambda a: jax.lax.fori_loop(0, 4, lambda i, x: x @ a * 1e-3, a))
        best = max(best, 4 * 2 * n**3 / seconds(lambda f=many, a=a: f(a)))
    return best


def product_flops(jaxpr: Jaxpr, policy_delay: int) -> float:
    """Floating-point operations of all matrix products in a program, branches of a `cond` weighed
    by how often they are taken (the actor's branch: once in `policy_delay` updates)."""
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            total += 2 * np.prod(eqn.outvars[0].aval.shape) * np.prod([shape[i] for i in contract])
        inner = [b for v in eqn.params.values() for b in (v if isinstance(v, tuple) else (v,))]
        inner = [b.jaxpr if isinstance(b, ClosedJaxpr) else b for b in inner]
        parts = [product_flops(b, policy_delay) for b in inner if isinstance(b, Jaxpr)]
        if eqn.primitive.name == "cond" and parts:
            total += max(parts) / (policy_delay if min(parts) == 0 else 1)
        else:
            total += sum(parts) * eqn.params.get("length", 1)  # a scan's
    return float(total)


def bench(name: str, rate: float, ring: Ring, updates: int = 20) -> dict[str, float]:
    """Time of an update against its bare matrix products."""
    config = build(name, "FetchPush-v4", "paper", CASES[name]).settings
    td3 = config.td3
    spec, key = spec_of(), jax.random.key(0)
    agent = get_algorithm(name).make(config, spec)
    state, traces = agent.init(key), 0

    def many(state: Any, key: jax.Array) -> Any:
        nonlocal traces
        traces += 1

        def one(s: Any, i: jax.Array) -> tuple[Any, None]:
            return agent.update(s, ring, jax.random.fold_in(key, i), i)[0], None

        return jax.lax.scan(one, state, jnp.arange(updates))[0]

    run = jax.jit(many)
    spent = seconds(lambda: run(state, key)) / updates
    run(state, jax.random.key(1))
    jaxpr = jax.make_jaxpr(agent.update)(state, ring, key, jnp.zeros((), jnp.int32)).jaxpr
    flops = product_flops(jaxpr, td3.policy_delay)

    def draw(key: jax.Array) -> Any:
        rows = sample(ring, key, td3.batch)
        goal = future(ring, rows, uniform_offset(key, ring.steps_left[rows]))
        return fetch(ring, rows), goal

    draws = jax.jit(
        lambda k: jax.lax.scan(
            lambda c, i: (c, draw(jax.random.fold_in(k, i))[0].obs.sum()), 0, jnp.arange(updates)
        )
    )
    batches = 2 if name == "uvd" else 1  # UVD also draws one for its density
    replay = batches * seconds(lambda: draws(key)) / updates
    return {
        "ms": 1e3 * spent, "gflop": flops / 1e9, "floor_ms": 1e3 * flops / rate,
        "ratio": spent * rate / flops, "replay_share": replay / spent, "traces": traces,
    }  # fmt: skip


def main() -> None:
    """Prints the table."""
    rate = best_product_rate()
    print(f"best float32 product rate: {rate / 1e9:.0f} GFLOP/s on {jax.devices()[0].device_kind}")
    print("algorithm  ms/update  products GFLOP  floor ms  ratio  replay share  traces")
    ring = filled_ring(100_000, spec_of())
    for name in CASES:
        r = bench(name, rate, ring)
        print(
            f"{name:9s}  {r['ms']:9.2f}  {r['gflop']:14.2f}  {r['floor_ms']:8.2f}  "
            f"{r['ratio']:5.2f}  {r['replay_share']:12.1%}  {r['traces']:6.0f}"
        )
    rows = 1_500_000 // HORIZON * (HORIZON + 1)
    shapes = jax.eval_shape(lambda: init_ring(rows, OBS, ACTION, GOAL))
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    print(f"ring of 1,500,000 transitions ({OBS}-D obs): {size / 1e6:.0f} MB a seed")


if __name__ == "__main__":
    main()
