"""Demonstrations in files: read from three formats, checked, written.

`load_demos` takes a local Minari dataset (its id or its folder; nothing is downloaded), an HDF5
file in GAIL's layout, a folder of .npz files, or the name of what is shipped with the package.
Minari keeps T + 1 observations of T steps, GAIL's layout T, .npz files either. What is written
appears whole or not at all.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from uvd.demos import FIELDS, Demos, Trajectory, fit_demos
from uvd.errors import UserError, nearest
from uvd.tasks.goalenv import one_line

SHIPPED = Path(__file__).parent / "data"  # NAME.h5, in GAIL's layout: part of the package


def load_demos(source: str | os.PathLike[str], env_id: str | None = None) -> Demos:
    """The demonstrations in a file, a folder, or a local Minari dataset of that id; or shipped.

    What the user has comes before what is shipped under the same name. With `env_id` their sizes
    must be the task's. Observations of upstream's HalfCheetah or Humanoid lose the entries that our
    variants of them hide (`ADAPTED`).
    """
    path = Path(source)
    if os.path.isfile(path):
        kind, trajectories = "gail", list(_read_gail(path))
    elif data := _minari_data(path, str(source)):
        kind, trajectories = "minari", list(_read_minari(data))
    elif os.path.isdir(path):
        kind, trajectories = "npz", list(_read_npz(path))
    elif str(source) in (ours := shipped()):
        kind, trajectories = "shipped", list(_read_gail(ours[str(source)]))
    else:
        near = get_close_matches(str(source), [*_local_minari(), *ours], 3)
        raise UserError(
            f"{source}: no such file or folder, no Minari dataset of that id in {_minari_root()}, "
            f"and not shipped ({', '.join(ours)} are)"
            + (f"; nearest: {', '.join(near)}" if near else "")
        )
    demos = Demos(str(source), kind, tuple(t for _, t in trajectories))
    _check_alike(demos, [where for where, _ in trajectories])
    return demos if env_id is None else _fit(demos, env_id)


def shipped() -> dict[str, Path]:
    """The demonstrations that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.h5"))}


def write_npz(trajectories: Sequence[Trajectory], folder: str | os.PathLike[str]) -> Path:
    """Writes a folder of .npz files, one a trajectory; it appears whole or not at all."""
    final = Path(folder)
    checked = _checked(trajectories, str(folder), (0, 1))
    with _beside(final) as made:
        for i, t in enumerate(checked.trajectories):
            found = {"obs": t.obs, "action": t.action, "reward": t.reward}
            arrays: dict[str, Any] = {key: x for key, x in found.items() if x is not None}
            np.savez(made / f"{i:05d}.npz", **arrays)
    return final


def write_gail(trajectories: Sequence[Trajectory], file: str | os.PathLike[str]) -> Path:
    """Writes an HDF5 file in GAIL's layout, shorter trajectories padded with zeros.

    The layout has no place for what the last step led to.
    """
    import h5py

    final = Path(file)
    demos = _checked(trajectories, str(file), (0, 1)).trajectories
    lengths = [t.steps for t in demos]

    def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
        out = np.zeros((len(rows), max(lengths), *rows[0].shape[1:]), np.float32)
        for i, x in enumerate(rows):
            out[i, : lengths[i]] = x[: lengths[i]]
        return out

    if os.path.exists(final):
        raise UserError(f"{final} exists: remove it, or choose another name")
    made = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(made, "w") as out:
            packed = {"compression": "gzip", "shuffle": True}
            out.create_dataset("obs_B_T_Do", data=padded([t.obs for t in demos]), **packed)
            out["len_B"] = np.array(lengths, np.int32)
            for name, rows in (
                ("a_B_T_Da", [t.action for t in demos if t.action is not None]),
                ("r_B_T", [t.reward for t in demos if t.reward is not None]),
            ):
                if rows:
                    out.create_dataset(name, data=padded(rows), **packed)
        os.replace(made, final)
    except OSError as error:
        raise UserError(f"cannot write {final}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            made.unlink()
    return final


def write_minari(
    trajectories: Sequence[Trajectory], dataset_id: str, env_id: str | None = None,
    terminated: Sequence[bool] | None = None, **metadata: Any,
) -> Path:  # fmt: skip
    """Writes a local Minari dataset; it appears whole or not at all.

    `env_id` is the environment that was played, kept in the dataset; `terminated` says which
    trajectories ended by themselves (none if not given: all were cut). `metadata` as Minari has it:
    algorithm_name, description, author (a set), ...
    """
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    final = check_minari_id(dataset_id)
    for i, t in enumerate(trajectories):
        if t.action is None or t.reward is None:
            raise UserError(
                f"{dataset_id}: trajectory {i} has no actions or no rewards, a Minari dataset "
                "needs both; a folder of .npz files needs only observations"
            )
    ends = [False] * len(trajectories) if terminated is None else list(terminated)
    if len(ends) != len(trajectories):
        raise UserError(
            f"{dataset_id}: terminated has {len(ends)} entries for {len(trajectories)} trajectories"
        )
    checked = _checked(trajectories, dataset_id, (1,))
    actions: gym.Space = Box(-np.inf, np.inf, (checked.action_dim or 0,), np.float32)
    spec = None
    if env_id is not None:
        checked = _fit(checked, env_id)
        with _made(env_id) as env:
            actions, spec = env.action_space, env.spec
    buffers = []
    for t, ended in zip(checked.trajectories, ends, strict=True):
        last = np.arange(t.steps) == t.steps - 1
        buffers.append(
            EpisodeBuffer(
                observations=t.obs, actions=t.action, rewards=t.reward,
                terminations=last & bool(ended), truncations=last & (not ended),
            )
        )  # fmt: skip
    with _beside(final) as made:
        storage = MinariStorage.new(
            made / "data", Box(-np.inf, np.inf, (checked.obs_dim,), np.float32), actions, spec
        )
        storage.update_metadata(
            {"dataset_id": dataset_id, "minari_version": minari.__version__, **metadata}
        )
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
    return _minari_root() / dataset_id


def _checked(trajectories: Sequence[Trajectory], name: str, more: tuple[int, ...]) -> Demos:
    """Trajectories that are to be written, held against the same rules as those that are read."""
    if not trajectories:
        raise UserError(f"{name}: there are no trajectories to write")
    fields = ("obs", "action", "reward")
    labels = [
        {f: f"{name}: {f} of trajectory {i}" for f in fields} for i in range(len(trajectories))
    ]
    given = [{f: x for f in fields if (x := getattr(t, f)) is not None} for t in trajectories]
    demos = Demos(name, "", tuple(_trajectory(w, g, more) for w, g in zip(labels, given)))
    _check_alike(demos, labels)
    return demos


@contextmanager
def _beside(final: Path) -> Iterator[Path]:
    """A new folder to fill, renamed to `final` when that is done."""
    made = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    if os.path.exists(final):
        raise UserError(f"{final} exists: remove it, or choose another name")
    try:
        made.mkdir(parents=True)
        yield made
        os.replace(made, final)
    except OSError as error:
        raise UserError(f"cannot write {final}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


_Where = dict[str, str]  # what errors call each field of a trajectory
_Found = Iterator[tuple[_Where, Trajectory]]


def _read_gail(path: Path) -> _Found:
    """GAIL's layout: padded arrays [B, T, ...], of which `len_B` rows each are real."""
    import h5py

    try:
        known = h5py.is_hdf5(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not known:
        raise UserError(f"{path} is not an HDF5 file (expected GAIL's layout, or a folder of .npz)")
    names = {**FIELDS["gail"], "length": "len_B"}
    try:
        with h5py.File(path, "r") as file:
            found = {
                key: np.asarray(file[name][()])  # nothing at all reads as an object
                for key, name in names.items()
                if isinstance(file.get(name), h5py.Dataset)
            }
            has = ", ".join(n for n in sorted(file) if isinstance(file.get(n), h5py.Dataset))
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {one_line(error)}") from error
    for key in ("obs", "length"):
        if key not in found:
            raise UserError(
                f"{path}: dataset {names[key]} is missing; the file has {has or 'none at all'}"
            )
    lengths, shape = found.pop("length"), found["obs"].shape
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise UserError(f"{path}: len_B is {_kind(lengths)}, expected integers of shape [B]")
    if not len(lengths):
        raise UserError(f"{path}: len_B is empty, expected at least one trajectory")
    for key, dims in {"obs": 3, "action": 3, "reward": 2}.items():
        if key in found:
            x = found[key]
            if x.ndim != dims or x.shape[:2] != (len(lengths), *shape[1:2]):
                expected = f"[{len(lengths)}, {'T' if key == 'obs' else shape[1]}"
                expected += ", D]" if dims == 3 else "]"
                raise UserError(f"{path}: {names[key]} is {_kind(x)}, expected shape {expected}")
    if not shape[1]:
        raise UserError(f"{path}: obs_B_T_Do has no steps, expected at least one")
    for i, length in enumerate(lengths):
        if not 1 <= length <= shape[1]:
            raise UserError(f"{path}: len_B[{i}] is {length}, expected 1 to {shape[1]}")
        where = {key: f"{path}: {name}[{i}]" for key, name in names.items()}
        yield where, _trajectory(where, {k: x[i, :length] for k, x in found.items()}, (0,))


def _read_minari(data: Path) -> _Found:
    from minari import MinariDataset

    try:
        dataset = MinariDataset(data)
        space = dataset.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise UserError(
                f"{data}: observations are {_space(space)}, expected a box of one dimension"
            )
        episodes = list(dataset.iterate_episodes())
    except UserError:
        raise
    except Exception as error:  # whatever the storage stumbles over
        raise UserError(f"{data} cannot be read as a Minari dataset: {one_line(error)}") from error
    if not episodes:
        raise UserError(f"{data}: the dataset has no episodes")
    for e in episodes:
        fields = FIELDS["minari"]
        where = {key: f"{data}: episode_{e.id}/{name}" for key, name in fields.items()}
        found = {key: np.asarray(getattr(e, name)) for key, name in fields.items()}
        yield where, _trajectory(where, found, (1,))


def _read_npz(folder: Path) -> _Found:
    try:
        files = sorted(folder / name for name in os.listdir(folder) if name.endswith(".npz"))
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror or error}") from error
    if not files:
        raise UserError(f"{folder} has no .npz files, nor is it a Minari dataset")
    for path in files:
        where = {key: f"{path}: {name}" for key, name in FIELDS["npz"].items()}
        try:
            with np.load(path, allow_pickle=False) as file:
                found = {key: file[key] for key in where if key in file}
                fields = file.files
        except Exception as error:  # a broken archive fails in many ways
            raise UserError(f"{path} cannot be read as .npz: {one_line(error)}") from error
        for key in where:
            # What is missing may go by a similar name: better not to learn without it unnoticed.
            if key not in found and (near := get_close_matches(key, fields, 1, 0.8)):
                raise UserError(f"{path}: no field {key}; rename {near[0]} if it is that")
        if "obs" not in found:
            has = ", ".join(fields) or "nothing"
            raise UserError(f"{path}: obs is missing; the file has {has}")
        yield where, _trajectory(where, found, (0, 1))


def _trajectory(where: _Where, found: dict[str, np.ndarray], more: tuple[int, ...]) -> Trajectory:
    """The arrays of one trajectory, checked; observations have T + `more` rows."""
    arrays = {}
    for key, x in found.items():
        dims = 1 if key == "reward" else 2
        if x.ndim != dims or 0 in x.shape[1:] or x.dtype.kind not in "fiub":
            expected = "[T]" if dims == 1 else "[T, D]"
            raise UserError(f"{where[key]} is {_kind(x)}, expected numbers of shape {expected}")
        if not len(x):
            raise UserError(f"{where[key]} has zero length, expected at least one step")
        with np.errstate(over="ignore"):
            arrays[key] = single = np.ascontiguousarray(x, np.float32)
        if not np.isfinite(single).all():
            step, *entry = np.argwhere(~np.isfinite(single))[0]
            at = f"step {step}" + (f", entry {entry[0]}" if entry else "")
            kind = "finite" if not np.isfinite(x[step, *entry]) else "single-precision"
            raise UserError(f"{where[key]} is {x[step, *entry]} at {at}, expected {kind} numbers")
    t = Trajectory(**arrays)
    for key, x in arrays.items():
        rows = [t.steps + n for n in (more if key == "obs" else (0,))]
        if len(x) not in rows:
            expected = " or ".join(map(str, rows))
            raise UserError(f"{where[key]} has {len(x)} rows, expected {expected}")
    return t


def _check_alike(demos: Demos, where: list[_Where]) -> None:
    """All trajectories have the same fields of the same sizes."""

    def sizes(t: Trajectory) -> dict[str, Any]:
        return {
            "obs": t.obs.shape[1],
            "action": None if t.action is None else t.action.shape[1],
            "reward": None if t.reward is None else 1,
        }

    first = sizes(demos.trajectories[0])
    for names, t in zip(where, demos.trajectories):
        for field, size in sizes(t).items():
            if size != first[field]:
                here, there = (
                    "missing" if n is None else f"of size {n}" for n in (size, first[field])
                )
                raise UserError(f"{names[field]} is {here}, but {there} in the first trajectory")


def _fit(demos: Demos, env_id: str) -> Demos:
    """The demonstrations as the environment sees them, or what does not fit."""
    with _made(env_id) as env:
        spaces = {"observations": env.observation_space, "actions": env.action_space}
    sizes = {}
    for what, space in spaces.items():
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise UserError(
                f"{env_id}: {what} are {_space(space)}, expected a box of one dimension"
            )
        sizes[what] = space.shape[0]
    return fit_demos(demos, env_id, sizes["observations"], sizes["actions"])


@contextmanager
def _made(env_id: str) -> Iterator[gym.Env]:
    if ":" not in env_id and env_id not in gym.registry:
        raise nearest(env_id, gym.registry, "task")
    try:
        env = gym.make(env_id)
    except Exception as error:
        raise UserError(f"{env_id} cannot be made: {one_line(error)}") from error
    try:
        yield env
    finally:
        env.close()


def _kind(x: np.ndarray) -> str:
    return f"{x.dtype} of shape {list(x.shape)}"


def _space(space: gym.Space) -> str:
    return f"a {type(space).__name__} of shape {space.shape}"  # its own text has many lines


def _minari_root() -> Path:
    """Where Minari keeps its datasets; asking Minari itself would make the folder."""
    told = os.environ.get("MINARI_DATASETS_PATH")
    return Path.home() / ".minari" / "datasets" if told is None else Path(told)


def _minari_data(path: Path, name: str) -> Path | None:
    """The data folder of a Minari dataset given by its folder or its id (`-v0` may be left out)."""
    root = _minari_root()
    for data in (path, path / "data", root / name / "data", root / f"{name}-v0" / "data"):
        if os.path.isfile(data / "metadata.json"):
            return data
    return None


def _local_minari() -> list[str]:
    root = _minari_root()
    return [str(p.parents[1].relative_to(root)) for p in root.rglob("data/metadata.json")]
