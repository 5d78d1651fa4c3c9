"""A worker process: plays whole episodes of one environment with a NumPy copy of the policy.

It must stay free of JAX, which would cost it seconds and a few hundred megabytes. Everything random
in an episode derives from (seed, purpose, number), so it does not matter which worker plays it.
"""

import os
import pickle
import threading
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from uvd.collect.exploration import Exploration, explore
from uvd.core.episode import Episode
from uvd.core.errors import one_line
from uvd.core.policy import Policy, act
from uvd.tasks.env import EnvTask, is_success, make_env

TRAIN, EVAL, FRESH, PROBE, RECORD = range(5)  # what an episode is played for


class Job(NamedTuple):
    """One episode to play."""

    policy: int  # the number of the policy that plays it
    seed: int
    purpose: int
    number: int
    how: Exploration = Exploration()
    max_steps: int = 0  # the episode is cut after so many (0: at the task's own end)


def randomness(job: Job) -> tuple[int, np.random.Generator]:
    """The seed of an episode's start, and what its exploration draws from."""
    start, steps = np.random.SeedSequence((job.seed, job.purpose, job.number)).spawn(2)
    return int(start.generate_state(1)[0] >> 1), np.random.default_rng(steps)


def behave(
    task: EnvTask, policy: Policy | None, how: Exploration, rng: np.random.Generator,
    obs: np.ndarray, goal: np.ndarray, last: np.ndarray, is_random: bool,
) -> tuple[np.ndarray, bool]:  # fmt: skip
    """A Gaussian policy draws its action; any other explores, and so does none at all."""
    if policy is None:
        return explore(how, rng, np.zeros_like(last), last, is_random)
    action = act(policy, obs[: task.policy_obs_dim], goal)
    if policy.log_std is None:
        return explore(how, rng, action, last, is_random)
    noise = rng.standard_normal(action.shape, np.float32)
    return action + np.exp(policy.log_std) * noise, is_random


def play(task: EnvTask, env: gym.Env, policy: Policy | None, job: Job) -> Episode:
    """Plays one episode; without a policy, exploration alone acts."""
    start, rng = randomness(job)
    raw, _ = env.reset(seed=start)
    action = np.zeros(task.action_dim, np.float32)
    rows = [task.split(raw, action)]  # observation, achieved goal, desired goal
    goal = rows[0][2]
    steps: list[tuple[np.ndarray, float, bool | None]] = []  # action, reward, success
    is_random = terminated = truncated = False
    while not (terminated or truncated or len(steps) == (job.max_steps or task.horizon)):
        action, is_random = behave(task, policy, job.how, rng, rows[-1][0], goal, action, is_random)
        clipped_action = np.minimum(np.maximum(action, -1), 1)
        # A copy: some environments write into the action that they are given.
        raw, reward, terminated, truncated, info = env.step(task.env_action(clipped_action).copy())
        steps.append((action, 0.0 if task.goal_dim else float(reward), is_success(info)))
        rows.append(task.split(raw, clipped_action))
    obs, achieved, desired = (np.array(x) for x in zip(*rows))
    actions, rewards, reported = zip(*steps)
    if (desired != goal).any():
        raise ValueError("the desired goal changed within an episode")
    if not all(np.isfinite(x).all() for x in (obs, achieved, goal)):
        raise ValueError("an observation or a goal is not finite")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    return Episode(
        obs=obs,
        action=np.array(actions),
        achieved=achieved,
        goal=goal,
        length=np.int32(len(actions)),
        terminated=np.bool_(terminated),
        success=task.episode_success(achieved, goal, None if None in reported else reported),
        reward=np.array(rewards, np.float32),
    )


def _exit_with_parent() -> None:
    """Standard input is held open by the parent: when it ends, so does this process."""
    os.read(0, 1)
    os._exit(0)


def main(fd: int) -> None:
    """Answers jobs from the connection `fd` until it is closed.

    An answer is an episode (None when it is ready to play), or what went wrong.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")  # the parent made the same environment and showed them
    connection = Connection(fd)
    policy: Policy | None = None
    with suppress(EOFError, ConnectionError):
        task: EnvTask = pickle.loads(connection.recv_bytes())
        try:
            env = make_env(task)
        except Exception as error:
            connection.send(one_line(error))
            return
        connection.send(None)
        while True:
            packed, job = connection.recv()  # nothing is packed: the policy stays
            if packed is not None:
                policy = pickle.loads(packed)
            answer: Episode | str
            try:
                answer = play(task, env, policy, job)
            except Exception as error:
                answer = one_line(error)
            connection.send(answer)
