"""A worker process: plays whole episodes of one environment with a NumPy copy of the policy.

It must stay free of JAX, which would cost it seconds and a few hundred megabytes. Everything random
in an episode derives from (seed, purpose, number), so it does not matter which worker plays it.
"""

import os
import pickle
import sys
import threading
import warnings
from multiprocessing.connection import Connection
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from uvd.collect.exploration import Exploration, explore
from uvd.core.policy import Policy, act
from uvd.tasks.goalenv import GoalTask, is_success, make_env, one_line

TRAIN, EVAL, FRESH, PROBE = range(4)  # what an episode is played for


class Job(NamedTuple):
    """One episode to play."""

    who: int  # which of the policies plays it
    seed: int
    purpose: int
    number: int
    how: Exploration = Exploration()


class Played(NamedTuple):
    """One episode of L steps as it was played."""

    obs: np.ndarray  # [L + 1, obs]
    action: np.ndarray  # [L, action], in [-1, 1]
    achieved: np.ndarray  # [L + 1, goal]
    goal: np.ndarray
    terminated: bool
    success: np.ndarray | None  # [L], what the environment said after each step


def randomness(job: Job) -> tuple[int, np.random.Generator]:
    """The seed of an episode's start, and what its exploration draws from."""
    start, steps = np.random.SeedSequence((job.seed, job.purpose, job.number)).spawn(2)
    return int(start.generate_state(1)[0] >> 1), np.random.default_rng(steps)


def play(task: GoalTask, env: gym.Env, policy: Policy | None, job: Job) -> Played:
    """Plays one episode; without a policy, exploration alone acts."""
    start, rng = randomness(job)
    seen, _ = env.reset(seed=start)
    goal = np.array(seen["desired_goal"], np.float32)
    obs: list[np.ndarray] = []
    achieved: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    desired: list[np.ndarray] = []
    success: list[bool] = []
    action = still = np.zeros(task.action_dim, np.float32)
    wild = terminated = truncated = False

    def look() -> None:
        obs.append(np.array(seen["observation"], np.float32))
        achieved.append(np.array(seen["achieved_goal"], np.float32))
        desired.append(np.array(seen["desired_goal"], np.float32))

    look()
    while not (terminated or truncated or len(actions) == task.horizon):
        greedy = act(policy, obs[-1], goal) if policy else still
        action, wild = explore(job.how, rng, greedy, action, wild)
        # A copy: some environments write into what they are given.
        seen, _, terminated, truncated, info = env.step(task.own_action(action).copy())
        actions.append(action)
        said = is_success(info)
        success += [] if said is None else [said]
        look()
    if (np.array(desired) != goal).any():
        raise ValueError("the desired goal changed within an episode")
    rows = np.array(obs)
    if not all(np.isfinite(x).all() for x in (rows, np.array(achieved), goal)):
        raise ValueError("an observation or a goal is not finite")
    complete = len(success) == len(actions)
    return Played(
        rows, np.array(actions), np.array(achieved), goal, bool(terminated),
        np.array(success, bool) if complete else None,
    )  # fmt: skip


def _exit_with_parent() -> None:
    """Standard input is held open by the parent: when it ends, so does this process."""
    os.read(0, 1)
    os._exit(0)


def main(fd: int) -> None:
    """Answers jobs from the connection `fd` until it is closed."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")  # the parent made the same environment and showed them
    connection = Connection(fd)
    policies: dict[int, Policy] = {}
    current = -1
    try:
        task: GoalTask = pickle.loads(connection.recv_bytes())
        try:
            env = make_env(task)
            connection.send(("ready", None))
        except Exception as error:
            connection.send(("error", one_line(error)))
            return
        while True:
            version, policy, job = connection.recv()
            if version != current:
                current, policies = version, {}
            if policy is not None:
                policies[job.who] = pickle.loads(policy)
            answer: tuple[str, Played | str]
            try:
                answer = ("played", play(task, env, policies.get(job.who), job))
            except Exception as error:
                answer = ("error", one_line(error))
            connection.send(answer)
    except (EOFError, ConnectionError):
        sys.exit(0)
