"""Workers against the bare environment: what the policy, the transfer and the parent cost.

    python bench/workers.py [FetchPush-v4] [workers]

The ratio is steps/s of the workers over steps/s of as many bare environments, each alone on a core.
The parent's share is its processor time for each second of play: near 1 it would be the bottleneck.
"""

import itertools
import sys
import time

import numpy as np

from uvd.collect.exploration import Exploration
from uvd.collect.worker import TRAIN, Job
from uvd.collect.workers import Policies, Workers
from uvd.core.policy import MLP, Norm, Policy
from uvd.tasks.env import EnvTask, make_env
from uvd.tasks.find import find_task

EPISODES = 40  # for each worker


def policy(task: EnvTask, width: int = 256) -> Policy:
    """Two hidden layers of random weights."""
    rng = np.random.default_rng(0)
    sizes = (task.obs_dim + task.goal_dim, width, width, task.action_dim)
    weights = [0.05 * rng.standard_normal(s) for s in itertools.pairwise(sizes)]
    net = MLP(
        tuple(w.astype(np.float32) for w in weights),
        tuple(np.zeros(n, np.float32) for n in sizes[1:]),
    )
    obs, goal = (np.zeros(n, np.float32) for n in (task.obs_dim, task.goal_dim))
    return Policy(net, Norm(obs, obs + 1, goal, goal + 1))


def bare(task: EnvTask) -> float:
    """Steps/s of one environment under random actions."""
    env, rng = make_env(task), np.random.default_rng(0)
    begun, steps = time.perf_counter(), 0
    for episode in range(EPISODES // 4):
        env.reset(seed=episode)
        over = False
        while not over:
            action = rng.uniform(-1, 1, task.action_dim).astype(np.float32)
            _, _, terminated, truncated, _ = env.step(task.env_action(action))
            steps, over = steps + 1, terminated or truncated
    return steps / (time.perf_counter() - begun)


def main(name: str = "FetchPush-v4", number: str = "0") -> None:
    task = find_task(name)
    if not isinstance(task, EnvTask):
        sys.exit(f"{name} is not an environment with goals")
    alone = bare(task)
    workers = Workers(task, int(number))
    jobs = [Job(0, 0, TRAIN, i, Exploration(0.2, 0.3, 3)) for i in range(EPISODES * workers.number)]
    workers.play(jobs[: workers.number], Policies([policy(task)]))  # starts them all
    begun, spent = time.perf_counter(), time.process_time()
    played = workers.play(jobs, Policies([policy(task)]))
    seconds, spent = time.perf_counter() - begun, time.process_time() - spent
    rate = sum(len(p.action) for p in played) / seconds
    workers.close()
    print(f"{name}: {workers.number} workers {rate:,.0f} steps/s, one bare {alone:,.0f} steps/s")
    print(f"ratio {rate / alone / workers.number:.2f}, the parent's share {spent / seconds:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
