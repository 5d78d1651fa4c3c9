"""A trained policy's episodes: as demonstrations, or as a film."""

import os
import re
from pathlib import Path

import jax
import numpy as np

from uvd.api import Trained
from uvd.collect.device import rollouts
from uvd.collect.exploration import Exploration
from uvd.collect.video import Film, write_video
from uvd.collect.worker import RECORD, Job
from uvd.collect.workers import Policies, Workers
from uvd.core.errors import UserError
from uvd.demos.memory import Trajectory
from uvd.demos.write import check_minari_id, write_gail, write_minari, write_npz
from uvd.tasks import TASKS
from uvd.tasks.find import find_task, with_previous_action
from uvd.tasks.goalenv import EnvTask
from uvd.tasks.task import Task

_rollouts = jax.jit(rollouts, static_argnums=(0, 4))  # compiled once for all seeds of a run


def film(trained: Trained, out: str | Path, episodes: int = 4, seed: int | None = None) -> None:
    """A video, mp4 or gif, of one seed's policy (the first's if not given) in fresh episodes."""
    config, task = trained.plan.config, trained.plan.task
    if isinstance(task, Task):
        task = find_task(f"uvd.tasks.gym:{config.task}", config.task_settings)
        task = with_previous_action(task) if config.demos.previous_action else task
    assert isinstance(task, EnvTask)
    write_video(Film(task, trained.policy(seed).policy, episodes, Path(out)))


def check_demos_out(out: str) -> None:
    """Refuses a name for demonstrations that is taken or cannot be one, before anything is played.

    A Minari dataset unless the name ends in .h5, .hdf5 or .npz.
    """
    path = Path(out)
    if path.suffix in (".h5", ".hdf5", ".npz"):
        path = path.with_suffix("") if path.suffix == ".npz" else path
    else:
        path = check_minari_id(minari_id(out))
    if os.path.exists(path):
        raise UserError(f"{path} exists: remove it, or choose another name")
    if os.path.isfile(path.parent):
        raise UserError(f"{path.parent} is a file: {path} cannot be in it")


def returns(trajectories: list[Trajectory]) -> np.ndarray:
    """The sum of each one's rewards."""
    rewards = [t.reward for t in trajectories if t.reward is not None]
    return np.array([np.sum(r, dtype=np.float64) for r in rewards])


def minari_id(name: str) -> str:
    """A dataset's id; a name without a version is its version 0."""
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def record_demos(
    trained: Trained, out: str, episodes: int = 20, seed: int | None = None, task: str | None = None
) -> tuple[Path, np.ndarray]:
    """Records and writes demonstrations; returns where they are, and their returns."""
    check_demos_out(out)
    trajectories, ended = record(trained, episodes, seed, task)
    if Path(out).suffix == ".npz":
        path = write_npz(trajectories, Path(out).with_suffix(""))
    elif Path(out).suffix in (".h5", ".hdf5"):
        path = write_gail(trajectories, out)
    else:
        config = trained.plan.config
        env_id: str | None = task or config.task
        env_id = f"uvd.tasks.gym:{env_id}" if env_id in TASKS else env_id
        if not task and trained.plan.task.privileged_dim:
            env_id = None  # its observations are longer than those that are recorded
        path = write_minari(
            trajectories,
            minari_id(out),
            env_id,
            ended,
            algorithm_name=config.algorithm,
            description=f"seed {trained.seeds[0] if seed is None else seed} of a run of "
            f"{trained.step:,} steps",
        )
    return path, returns(trajectories)


def record(
    trained: Trained,
    episodes: int,
    seed: int | None = None,
    task: str | None = None,
    purpose: int = RECORD,
) -> tuple[list[Trajectory], list[bool]]:
    """Episodes of one seed's policy as demonstrations, and which of them ended by themselves.

    In the task's own observations and actions, without exploration. `task` is another one of the
    same sizes to play in: one whose episodes do not end, say.
    """
    plan, config = trained.plan, trained.plan.config
    if plan.task.goal_dim:
        raise UserError(
            f"{plan.task.id} has goals: only runs without are recorded or played elsewhere"
        )
    own = find_task(task or config.task, {} if task else config.task_settings)
    played_task = with_previous_action(own) if config.demos.previous_action else own
    sizes = [
        (t.obs_dim - t.privileged_dim, t.action_dim, t.goal_dim) for t in (played_task, plan.task)
    ]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{own.id} has sizes (observation, action, goal) {sizes[0]}, the run's has {sizes[1]}"
        )
    policy = trained.policy(seed).policy
    if isinstance(played_task, EnvTask):
        workers = Workers(played_task, plan.run.workers, plan.run.episode_seconds)
        try:
            jobs = [Job(0, 0, purpose, i) for i in range(episodes)]
            played = workers.play(jobs, Policies([policy]))
        finally:
            workers.close()
    else:
        key = jax.random.key(purpose)
        stacked = jax.tree.map(
            np.asarray, _rollouts(played_task, Exploration(), policy, key, episodes)
        )
        played = [type(stacked)(*row) for row in zip(*stacked)]
    obs_dim = own.obs_dim - own.privileged_dim
    trajectories = [
        Trajectory(e.obs[:, :obs_dim], played_task.env_action(e.action), e.reward) for e in played
    ]
    return trajectories, [bool(e.terminated) for e in played]
