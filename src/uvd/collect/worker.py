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
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from uvd.collect.exploration import Exploration, explore
from uvd.core.policy import Policy, act
from uvd.tasks.goalenv import EnvTask, is_success, make_env, one_line
from uvd.tasks.rewardenv import RewardTask

TRAIN, EVAL, FRESH, PROBE, RECORD = range(5)  # what an episode is played for


class Job(NamedTuple):
    """One episode to play."""

    who: int  # which of the policies plays it
    seed: int
    purpose: int
    number: int
    how: Exploration = Exploration()
    steps: int = 0  # after which it is cut (0: at the task's own end)


class Played(NamedTuple):
    """One episode of L steps as it was played."""

    obs: np.ndarray  # [L + 1, obs]
    action: np.ndarray  # [L, action], in [-1, 1] unless the policy draws beyond
    achieved: np.ndarray  # [L + 1, goal]
    goal: np.ndarray
    terminated: bool
    success: np.ndarray | None  # [L], what the environment said after each step
    reward: np.ndarray  # [L]; zeros where the goal decides


def randomness(job: Job) -> tuple[int, np.random.Generator]:
    """The seed of an episode's start, and what its exploration draws from."""
    start, steps = np.random.SeedSequence((job.seed, job.purpose, job.number)).spawn(2)
    return int(start.generate_state(1)[0] >> 1), np.random.default_rng(steps)


_NONE = np.zeros(0, np.float32)  # the goal of a task without goals


def view(task: EnvTask, seen: Any, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observation, achieved goal and desired one in what an environment shows."""
    if isinstance(task, RewardTask):
        return task.observation(seen, last), _NONE, _NONE
    obs, achieved, goal = (
        np.array(seen[key], np.float32) for key in ("observation", "achieved_goal", "desired_goal")
    )
    return obs, achieved, goal


def behave(
    policy: Policy | None, job: Job, rng: np.random.Generator, obs: np.ndarray, goal: np.ndarray,
    last: np.ndarray, wild: bool,
) -> tuple[np.ndarray, bool]:  # fmt: skip
    """What is done: drawn by a policy that has a spread of its own, else the policy explores."""
    action = act(policy, obs, goal) if policy else np.zeros_like(last)
    if policy and policy.log_std is not None:
        noise = rng.standard_normal(action.shape, np.float32)
        return action + np.exp(policy.log_std) * noise, wild
    how = job.how
    if policy and policy.noise is not None:
        how = how._replace(noise=float(policy.noise))
    return explore(how, rng, action, last, wild)


def play(task: EnvTask, env: gym.Env, policy: Policy | None, job: Job) -> Played:
    """Plays one episode; without a policy, exploration alone acts."""
    start, rng = randomness(job)
    seen, _ = env.reset(seed=start)
    obs: list[np.ndarray] = []
    achieved: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    desired: list[np.ndarray] = []
    success: list[bool] = []
    rewards: list[float] = []
    action = felt = np.zeros(task.action_dim, np.float32)
    wild = terminated = truncated = False
    drawn = job.how.beyond or (policy is not None and policy.log_std is not None)

    def look() -> None:
        for rows, x in zip((obs, achieved, desired), view(task, seen, felt)):
            rows.append(x)

    look()
    goal = desired[0]
    while not (terminated or truncated or len(actions) == (job.steps or task.horizon)):
        action, wild = behave(policy, job, rng, obs[-1], goal, action, wild)
        felt = np.clip(action, -1, 1) if drawn else action
        # A copy: some environments write into what they are given.
        seen, reward, terminated, truncated, info = env.step(task.own_action(felt).copy())
        actions.append(action)
        rewards.append(0.0 if task.goal_dim else float(reward))
        said = is_success(info)
        success += [] if said is None else [said]
        look()
    if (np.array(desired) != goal).any():
        raise ValueError("the desired goal changed within an episode")
    rows = np.array(obs)
    if not all(np.isfinite(x).all() for x in (rows, np.array(achieved), goal)):
        raise ValueError("an observation or a goal is not finite")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    complete = len(success) == len(actions)
    return Played(
        rows, np.array(actions), np.array(achieved), goal, bool(terminated),
        np.array(success, bool) if complete else None, np.array(rewards, np.float32),
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
        task: EnvTask = pickle.loads(connection.recv_bytes())
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
