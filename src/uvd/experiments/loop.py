"""Demonstrations of PointLoop, and how far what an agent visits is from them."""

import jax
import jax.numpy as jnp
import numpy as np

from uvd import api
from uvd.demos import Trajectory
from uvd.experiments.statistics import energy_distance
from uvd.tasks import make_task
from uvd.tasks.loop import Runner, expert


def make_demos(trajectories: int = 4, seed: int = 0) -> list[Trajectory]:
    """The scripted expert's episodes, as `uvd.demos` writes them."""
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


def gap(trained: api.Trained, episodes: int = 20) -> list[float]:
    """Per seed: the distance between the states that the agent visits and those of the expert.

    Both over episodes of their own; two sets of 20 of the expert's are about 0.02 apart, random
    play and the expert about 0.44 (tests/tasks/test_loop.py).
    """
    shown = visited(make_demos(episodes, seed=1))
    own = [visited(api.record(trained, episodes, seed)[0]) for seed in trained.seeds]
    return [energy_distance(x, shown) for x in own]
