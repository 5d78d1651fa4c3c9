"""Demonstrations written to files: each function checks first, and writes all or nothing."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.demos.files import checked, minari_root
from uvd.demos.memory import FIELDS, Demos, Trajectory, fit_demos
from uvd.tasks.env import EnvTask, make_env
from uvd.tasks.find import find_task


def write_npz(trajectories: Sequence[Trajectory], folder: str | os.PathLike[str]) -> Path:
    """Writes a folder of .npz files, one per trajectory."""
    demos = _checked(trajectories, str(folder), (0, 1))
    with _complete(Path(folder)) as path:
        path.mkdir()
        for i, t in enumerate(demos.trajectories):
            arrays: dict[str, Any] = dict(t.arrays())
            np.savez(path / f"{i:05d}.npz", **arrays)
    return Path(folder)


def write_gail(trajectories: Sequence[Trajectory], file: str | os.PathLike[str]) -> Path:
    """Writes an HDF5 file in GAIL's layout, shorter trajectories padded with zeros.

    The layout has no place for the observation after the last step.
    """
    import h5py

    demos = _checked(trajectories, str(file), (0, 1)).trajectories
    lengths = np.array([t.steps for t in demos], np.int32)
    with _complete(Path(file)) as path, h5py.File(path, "w") as out:
        out["len_B"] = lengths
        for field, x in demos[0].arrays().items():
            padded = np.zeros((len(demos), max(lengths), *x.shape[1:]), np.float32)
            for i, t in enumerate(demos):
                padded[i, : t.steps] = t.arrays()[field][: t.steps]
            name = FIELDS["gail"][field]
            out.create_dataset(name, data=padded, compression="gzip", shuffle=True)
    return Path(file)


def write_minari(
    trajectories: Sequence[Trajectory],
    dataset_id: str,
    env_id: str | None = None,
    terminated: Sequence[bool] | None = None,
    **metadata: Any,
) -> Path:
    """Writes a local Minari dataset.

    The dataset remembers `env_id`, the environment of its episodes. `terminated` says which
    trajectories ended in a terminal state (None: none did, all were truncated). `metadata` is
    Minari's own: algorithm_name, description, author (a set), ...
    """
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    final = check_minari_id(dataset_id)
    for i, t in enumerate(trajectories):
        require(
            t.action is not None and t.reward is not None,
            f"{dataset_id}: trajectory {i} has no actions or no rewards, a Minari dataset "
            "needs both; a folder of .npz files needs only observations",
        )
    ends = [False] * len(trajectories) if terminated is None else list(terminated)
    require(
        len(ends) == len(trajectories),
        f"{dataset_id}: terminated has {len(ends)} entries for {len(trajectories)} trajectories",
    )
    demos = _checked(trajectories, dataset_id, (1,))
    actions: gym.Space = Box(-np.inf, np.inf, (demos.action_dim or 0,), np.float32)
    spec = None
    if env_id is not None:
        task = find_task(env_id)
        if not isinstance(task, EnvTask) or task.goal_dim:
            raise UserError(f"{env_id} is not a Gymnasium environment without goals")
        demos = fit_demos(demos, task)
        with make_env(task) as env:
            actions, spec = env.action_space, env.spec
    buffers = []
    for t, ended in zip(demos.trajectories, ends):
        last = np.arange(t.steps) == t.steps - 1
        arrays = {"observations": t.obs, "actions": t.action, "rewards": t.reward}
        ending = {"terminations": last & bool(ended), "truncations": last & (not ended)}
        buffers.append(EpisodeBuffer(**arrays, **ending))
    with _complete(final) as path:
        path.mkdir()
        observations = Box(-np.inf, np.inf, (demos.obs_dim,), np.float32)
        storage = MinariStorage.new(path / "data", observations, actions, spec)
        own = {"dataset_id": dataset_id, "minari_version": minari.__version__}
        storage.update_metadata({**own, **metadata})
        storage.update_episodes(buffers)
    return final


def check_minari_id(dataset_id: str) -> Path:
    """The folder of a dataset of that id; refused if it cannot be one."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise UserError(
            f"Minari id '{dataset_id}' must read NAME-v0 or SPACE/NAME-v0 (files: .h5, .npz)"
        ) from None
    return minari_root() / dataset_id


def _checked(trajectories: Sequence[Trajectory], name: str, extra_rows: Sequence[int]) -> Demos:
    """The trajectories, checked by the rules for those that are read."""
    require(trajectories, f"{name}: there are no trajectories to write")
    raw = [(f"{name}: ", f" of trajectory {i}", t.arrays()) for i, t in enumerate(trajectories)]
    return checked(name, "npz", raw, extra_rows)


@contextmanager
def _complete(final: Path) -> Iterator[Path]:
    """A path to write a file or folder to; it is renamed to `final` when it is complete."""
    require(not os.path.exists(final), f"{final} exists: remove it, or choose another name")
    unfinished = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    try:
        with refused(f"cannot write {final}", OSError):
            unfinished.mkdir(parents=True)
            yield unfinished / final.name
            os.replace(unfinished / final.name, final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
