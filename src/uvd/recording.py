"""A trained policy's episodes: as demonstrations, or as a film."""

import os
import re
from pathlib import Path

import numpy as np

from uvd.api import Trained, play
from uvd.collect.video import write_video
from uvd.collect.worker import RECORD
from uvd.core.config import require
from uvd.demos.memory import Trajectory
from uvd.demos.write import check_minari_id, write_gail, write_minari, write_npz
from uvd.tasks import TASKS
from uvd.tasks.env import EnvTask
from uvd.tasks.find import find_task, with_previous_action
from uvd.tasks.task import Task


def film(trained: Trained, out: str | Path, episodes: int = 4, seed: int | None = None) -> None:
    """A video, mp4 or gif, of one seed's policy (the first's if not given) in fresh episodes."""
    config, task = trained.plan.config, trained.plan.task
    if isinstance(task, Task):
        task = find_task(f"uvd.tasks.gym:{config.task}", config.task_settings)
        task = with_previous_action(task) if config.demos.previous_action else task
    assert isinstance(task, EnvTask)
    write_video(task, trained.policy(seed).policy, episodes, Path(out))


def check_demos_out(out: str) -> None:
    """Refuses a name for demonstrations that is taken or cannot be one, before anything is played.

    A Minari dataset unless the name ends in .h5, .hdf5 or .npz.
    """
    path = Path(out)
    if path.suffix in (".h5", ".hdf5", ".npz"):
        path = path.with_suffix("") if path.suffix == ".npz" else path
    else:
        path = check_minari_id(minari_id(out))
    require(not os.path.exists(path), f"{path} exists: remove it, or choose another name")
    require(not os.path.isfile(path.parent), f"{path.parent} is a file: {path} cannot be in it")


def minari_id(name: str) -> str:
    """A dataset's id; a name without a version is its version 0."""
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def record_demos(
    trained: Trained, out: str, episodes: int = 20, seed: int | None = None, task: str | None = None
) -> tuple[Path, np.ndarray]:
    """Writes episodes of one seed's policy as demonstrations; returns where, and their returns.

    They are in the task's own observations and actions: without privileged numbers and without the
    previous action.
    """
    check_demos_out(out)
    config = trained.plan.config
    played_task, played = play(trained, episodes, seed, task, RECORD)
    obs_dim = played_task.policy_obs_dim
    if config.demos.previous_action:
        obs_dim -= played_task.action_dim
    trajectories = [
        Trajectory(e.obs[:, :obs_dim], played_task.env_action(e.action), e.reward) for e in played
    ]
    if Path(out).suffix == ".npz":
        path = write_npz(trajectories, Path(out).with_suffix(""))
    elif Path(out).suffix in (".h5", ".hdf5"):
        path = write_gail(trajectories, out)
    else:
        env_id: str | None = task or config.task
        env_id = f"uvd.tasks.gym:{env_id}" if env_id in TASKS else env_id
        if not task and trained.plan.task.privileged_dim:
            env_id = None  # its observations are longer than those that are recorded
        path = write_minari(
            trajectories,
            minari_id(out),
            env_id,
            [bool(e.terminated) for e in played],
            algorithm_name=config.algorithm,
            description=f"seed {trained.seeds[0] if seed is None else seed} of a run of "
            f"{trained.step:,} steps",
        )
    return path, np.array([e.reward.sum(dtype=np.float64) for e in played])
