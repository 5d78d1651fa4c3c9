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
from uvd.core.episode import Episode
from uvd.core.errors import one_line
from uvd.core.policy import Policy, act
from uvd.tasks.goalenv import EnvTask, GoalTask, is_success, make_env
from uvd.tasks.rewardenv import RewardTask

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


_NO_GOAL = np.zeros(0, np.float32)


def split_observation(
    task: EnvTask, raw: Any, last_action: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observation, achieved goal and desired goal of what an environment returned."""
    if isinstance(task, RewardTask):
        return task.observation(raw, last_action), _NO_GOAL, _NO_GOAL
    obs, achieved, goal = (
        np.array(raw[key], np.float32) for key in ("observation", "achieved_goal", "desired_goal")
    )
    return obs, achieved, goal


def behave(
    task: EnvTask, policy: Policy | None, how: Exploration, rng: np.random.Generator,
    obs: np.ndarray, goal: np.ndarray, last: np.ndarray, is_random: bool,
) -> tuple[np.ndarray, bool]:  # fmt: skip
    """A Gaussian policy draws its action; any other explores, and so does none at all."""
    if policy is None:
        return explore(how, rng, np.zeros_like(last), last, is_random)
    # Only critics read the privileged numbers at the end.
    action = act(policy, obs[: task.obs_dim - task.privileged_dim], goal)
    if policy.log_std is None:
        return explore(how, rng, action, last, is_random)
    noise = rng.standard_normal(action.shape, np.float32)
    return action + np.exp(policy.log_std) * noise, is_random


def play(task: EnvTask, env: gym.Env, policy: Policy | None, job: Job) -> Episode:
    """Plays one episode; without a policy, exploration alone acts."""
    start, rng = randomness(job)
    raw, _ = env.reset(seed=start)
    obs: list[np.ndarray] = []
    achieved: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    desired: list[np.ndarray] = []
    reported: list[bool] = []
    rewards: list[float] = []
    action = clipped_action = np.zeros(task.action_dim, np.float32)
    is_random = terminated = truncated = False
    unbounded = job.how.store_unclipped or (policy is not None and policy.log_std is not None)

    def append_observation() -> None:
        for rows, x in zip(
            (obs, achieved, desired), split_observation(task, raw, clipped_action), strict=True
        ):
            rows.append(x)

    append_observation()
    goal = desired[0]
    while not (terminated or truncated or len(actions) == (job.max_steps or task.horizon)):
        action, is_random = behave(task, policy, job.how, rng, obs[-1], goal, action, is_random)
        clipped_action = np.clip(action, -1, 1) if unbounded else action
        # A copy: some environments write into the action that they are given.
        raw, reward, terminated, truncated, info = env.step(task.env_action(clipped_action).copy())
        actions.append(action)
        rewards.append(0.0 if task.goal_dim else float(reward))
        success = is_success(info)
        reported += [] if success is None else [success]
        append_observation()
    if (np.array(desired) != goal).any():
        raise ValueError("the desired goal changed within an episode")
    if not all(np.isfinite(x).all() for x in (np.array(obs), np.array(achieved), goal)):
        raise ValueError("an observation or a goal is not finite")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    all_achieved, successes = np.array(achieved), np.zeros(len(actions), bool)
    if isinstance(task, GoalTask):
        complete = np.array(reported, bool) if len(reported) == len(actions) else None
        successes = task.episode_success(all_achieved, goal, complete)
    return Episode(
        obs=np.array(obs),
        action=np.array(actions),
        achieved=all_achieved,
        goal=goal,
        length=np.int32(len(actions)),
        terminated=np.bool_(terminated),
        success=successes,
        reward=np.array(rewards, np.float32),
    )


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
                policies[job.policy] = pickle.loads(policy)
            answer: tuple[str, Episode | str]
            try:
                answer = ("played", play(task, env, policies.get(job.policy), job))
            except Exception as error:
                answer = ("error", one_line(error))
            connection.send(answer)
    except (EOFError, ConnectionError):
        sys.exit(0)
