"""Demonstrations of PointLoop by its scripted expert."""

import jax
import jax.numpy as jnp
import numpy as np

from uvd.demos.memory import Trajectory
from uvd.tasks import make_task
from uvd.tasks.pointloop import Runner, expert


def make_demos(trajectories: int = 4, seed: int = 0) -> list[Trajectory]:
    """The scripted expert's episodes, as `uvd.demos.write` writes them."""
    task = make_task("PointLoop-v0")
    reward = task.reward
    assert reward is not None

    def play(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        key_reset, key_steps = jax.random.split(key)

        def step(state: Runner, key: jax.Array):
            action = expert(task.observe(state))
            after = task.step(state, action, key)
            return after, (task.observe(state), action, reward(state, action, after))

        end, (obs, action, earned) = jax.lax.scan(
            step, task.reset(key_reset), jax.random.split(key_steps, task.horizon)
        )
        return jnp.concatenate([obs, task.observe(end)[None]]), action, earned

    keys = jax.random.split(jax.random.key(seed), trajectories)
    return [Trajectory(*rows) for rows in zip(*map(np.asarray, jax.jit(jax.vmap(play))(keys)))]


def visited(trajectories: list[Trajectory]) -> np.ndarray:
    """All states of some episodes, `[N, obs]`."""
    return np.concatenate([t.obs for t in trajectories])
