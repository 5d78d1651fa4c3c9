"""Makes the shipped demonstrations of scripted experts: PointLoop and InvertedDoublePendulum-v5.

    python bench/scripted_experts.py FOLDER

PointLoop's expert stands in its task. The pendulum's is a linear-quadratic regulator. Noise pushes
it, or all its states would be the same after a second; its own actions are recorded, without noise.
"""

import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_are

from uvd.demos.memory import Trajectory
from uvd.demos.write import write_gail
from uvd.tasks import make_task
from uvd.tasks.pointloop import expert

PUSHES = 0.05  # standard deviation, in full actions


def point_loop(trajectories: int) -> list[Trajectory]:
    """Episodes of the task's scripted expert."""
    task = make_task("PointLoop-v0")

    def play(key):
        key_reset, key_steps = jax.random.split(key)

        def step(state, key):
            action = expert(task.observe(state))
            after = task.step(state, action, key)
            return after, (task.observe(state), action, task.reward(state, action, after))

        keys = jax.random.split(key_steps, task.horizon)
        end, (obs, action, reward) = jax.lax.scan(step, task.reset(key_reset), keys)
        return jnp.concatenate([obs, task.observe(end)[None]]), action, reward

    keys = jax.random.split(jax.random.key(0), trajectories)
    return [Trajectory(*rows) for rows in zip(*map(np.asarray, jax.jit(jax.vmap(play))(keys)))]


def pendulum(trajectories: int) -> list[Trajectory]:
    """Episodes of the regulator."""
    env = gymnasium.make("InvertedDoublePendulum-v5")
    sim = env.unwrapped
    env.reset(seed=0)

    def after(state, action):
        sim.set_state(state[:3], state[3:])
        sim.do_simulation(np.array([action]), sim.frame_skip)
        return np.concatenate([sim.data.qpos, sim.data.qvel])

    eps, unit = 1e-5, np.eye(6)
    ahead = np.stack([after(eps * e, 0.0) - after(-eps * e, 0.0) for e in unit], 1) / (2 * eps)
    push = (after(0 * unit[0], eps) - after(0 * unit[0], -eps))[:, None] / (2 * eps)
    cost = np.diag([1, 10, 10, 0.1, 0.1, 0.1]), np.eye(1)
    p = solve_discrete_are(ahead, push, *cost)
    gain = np.linalg.solve(cost[1] + push.T @ p @ push, push.T @ p @ ahead)
    rng, found = np.random.default_rng(0), []
    for seed in range(trajectories):
        obs, _ = env.reset(seed=seed)
        rows = []
        for _ in range(1000):
            state = np.concatenate([sim.data.qpos, sim.data.qvel])
            action = np.clip(-gain @ state, -1, 1)
            pushed = np.clip(action + PUSHES * rng.normal(size=1), -1, 1)
            then, reward, ended, *_ = env.step(pushed)
            assert not ended
            rows.append((obs, action, reward))
            obs = then
        found.append(Trajectory(*(np.array(x, np.float32) for x in zip(*rows))))
    return found


if __name__ == "__main__":
    for name, demos in (("pointloop", point_loop(20)), ("pendulum", pendulum(5))):
        returns = [t.reward.sum() for t in demos]
        path = write_gail(demos, Path(sys.argv[1]) / f"{name}-expert.h5")
        print(
            path,
            f"mean return {np.mean(returns):,.1f} ({min(returns):,.1f} to {max(returns):,.1f})",
        )
