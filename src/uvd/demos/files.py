"""Demonstrations read from files, and checked.

Three formats: an HDF5 file in GAIL's layout keeps T observations of T steps, a local Minari dataset
T + 1, and a folder of .npz files, one per trajectory, either.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import batch_space, iterate

from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.demos.memory import FIELDS, Demos, Trajectory
from uvd.tasks.examine import vector_space
from uvd.tasks.flatten import can_flatten

SHIPPED = Path(__file__).parent / "shipped"  # NAME.h5, in GAIL's layout: part of the package
Arrays = dict[str, np.ndarray]  # by the names of the fields of `Trajectory`
Raw = tuple[str, str, Arrays]  # error messages write an array's name between these two texts


def load_demos(source: str | os.PathLike[str]) -> Demos:
    """The demonstrations in a file, a folder or a local Minari dataset, or shipped ones by name.

    The user's own come before shipped ones of the same name. Nothing is downloaded.
    """
    name, path, packaged = str(source), Path(source), shipped()
    if os.path.isfile(path):
        return checked(name, "gail", _read_gail(path), (0,))
    if data := _minari_data(path, name):
        return checked(name, "minari", _read_minari(data), (1,))
    if os.path.isdir(path):
        return checked(name, "npz", _read_npz(path), (0, 1))
    if name in packaged:
        return checked(name, "shipped", _read_gail(packaged[name]), (0,))
    root = minari_root()
    ids = [str(p.parents[1].relative_to(root)) for p in root.rglob("data/metadata.json")]
    near = get_close_matches(name, [*ids, *packaged], 3)
    raise UserError(
        f"{name}: no such file or folder, no Minari dataset of that id in {root}, "
        f"and not shipped ({', '.join(packaged)} are)"
        + (f"; nearest: {', '.join(near)}" if near else "")
    )


def shipped() -> dict[str, Path]:
    """The demonstrations that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.h5"))}


def minari_root() -> Path:
    """The folder of all local Minari datasets. (Minari's own function would create it.)"""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return Path.home() / ".minari" / "datasets" if root is None else Path(root)


def checked(name: str, kind: str, raw: Iterable[Raw], extra_rows: Sequence[int]) -> Demos:
    """Demonstrations from raw arrays; observations have T rows and one of `extra_rows` more.

    All trajectories must have the same fields of the same sizes.
    """
    trajectories: list[Trajectory] = []
    for before, after, arrays in raw:
        labels = {field: f"{before}{array}{after}" for field, array in FIELDS[kind].items()}
        t = _trajectory(labels, arrays, extra_rows)
        trajectories.append(t)
        for field, label in labels.items():
            here, first = (_size(getattr(u, field)) for u in (t, trajectories[0]))
            require(here == first, f"{label} is {here}, but {first} in the first trajectory")
    return Demos(name, kind, tuple(trajectories))


def _size(x: np.ndarray | None) -> str:
    """The numbers per step, in words."""
    return "missing" if x is None else f"of size {x.shape[1] if x.ndim > 1 else 1}"


def _trajectory(labels: dict[str, str], raw: Arrays, extra_rows: Sequence[int]) -> Trajectory:
    """The arrays of one trajectory, checked; errors call them by their labels."""
    arrays = {}
    for field, x in raw.items():
        shape = "[T]" if field == "reward" else "[T, D]"
        fits = x.ndim == shape.count(",") + 1 and 0 not in x.shape[1:] and x.dtype.kind in "fiub"
        require(fits, f"{labels[field]} is {_kind(x)}, expected numbers of shape {shape}")
        require(len(x), f"{labels[field]} has zero length, expected at least one step")
        with np.errstate(over="ignore"):
            arrays[field] = single = np.ascontiguousarray(x, np.float32)
        if not np.isfinite(single).all():
            step, *entry = np.argwhere(~np.isfinite(single))[0]
            value, place = x[step, *entry], f"step {step}" + "".join(f", entry {i}" for i in entry)
            kind = "single-precision" if np.isfinite(value) else "finite"
            raise UserError(f"{labels[field]} is {value} at {place}, expected {kind} numbers")
    t = Trajectory(**arrays)
    for field, x in arrays.items():
        lengths = [t.steps + extra for extra in (extra_rows if field == "obs" else (0,))]
        expected = " or ".join(map(str, lengths))
        require(len(x) in lengths, f"{labels[field]} has {len(x)} rows, expected {expected}")
    return t


def _kind(x: np.ndarray) -> str:
    return f"{x.dtype} of shape {list(x.shape)}"


def _read_gail(path: Path) -> Iterator[Raw]:
    """GAIL's layout: padded arrays [B, T, ...], of which `len_B` rows each are real."""
    import h5py

    with refused(f"cannot read {path}", OSError):
        is_hdf5 = h5py.is_hdf5(path)
    require(is_hdf5, f"{path} is not an HDF5 file (expected GAIL's layout, or a folder of .npz)")
    names = {**FIELDS["gail"], "length": "len_B"}
    with refused(f"{path} is damaged"), h5py.File(path, "r") as file:
        present = [name for name in sorted(file) if isinstance(file.get(name), h5py.Dataset)]
        # An empty dataset is read as an object.
        arrays = {f: np.asarray(file[name][()]) for f, name in names.items() if name in present}
    for field in ("obs", "length"):
        has = ", ".join(present) or "none at all"
        require(field in arrays, f"{path}: dataset {names[field]} is missing; the file has {has}")
    lengths, shape = arrays.pop("length"), arrays["obs"].shape
    whole = lengths.ndim == 1 and lengths.dtype.kind in "iu"
    require(whole, f"{path}: len_B is {_kind(lengths)}, expected integers of shape [B]")
    require(len(lengths), f"{path}: len_B is empty, expected at least one trajectory")
    for field, x in arrays.items():
        sizes = [len(lengths), "T" if field == "obs" else shape[1], "D"][: 2 + (field != "reward")]
        fits = x.ndim == len(sizes) and x.shape[:2] == (len(lengths), *shape[1:2])
        expected = ", ".join(map(str, sizes))
        require(fits, f"{path}: {names[field]} is {_kind(x)}, expected shape [{expected}]")
    require(shape[1], f"{path}: obs_B_T_Do has no steps, expected at least one")
    for i, length in enumerate(lengths):
        fits = 1 <= length <= shape[1]
        require(fits, f"{path}: len_B[{i}] is {length}, expected 1 to {shape[1]}")
        yield f"{path}: ", f"[{i}]", {field: x[i, :length] for field, x in arrays.items()}


def _minari_data(path: Path, name: str) -> Path | None:
    """The data folder of a Minari dataset given by its folder or its id (`-v0` may be left out)."""
    root = minari_root()
    for data in (path, path / "data", root / name / "data", root / f"{name}-v0" / "data"):
        if os.path.isfile(data / "metadata.json"):
            return data
    return None


def _read_minari(data: Path) -> Iterator[Raw]:
    from minari import MinariDataset

    unreadable = f"{data} cannot be read as a Minari dataset"
    with refused(unreadable):
        dataset = MinariDataset(data)
        space = dataset.observation_space
    if not can_flatten(space):
        vector_space(space, f"{data}: observations are")
    with refused(unreadable):
        episodes = list(dataset.iterate_episodes())
    require(episodes, f"{data}: the dataset has no episodes")
    for e in episodes:
        arrays = {field: getattr(e, name) for field, name in FIELDS["minari"].items()}
        if not isinstance(space, Box):
            stacked = iterate(batch_space(space, len(e) + 1), arrays["obs"])
            arrays["obs"] = [flatten(space, obs) for obs in stacked]
        yield f"{data}: episode_{e.id}/", "", {f: np.asarray(x) for f, x in arrays.items()}


def _read_npz(folder: Path) -> Iterator[Raw]:
    with refused(f"cannot read {folder}", OSError):
        paths = sorted(folder / name for name in os.listdir(folder) if name.endswith(".npz"))
    require(paths, f"{folder} has no .npz files, nor is it a Minari dataset")
    for path in paths:
        with refused(f"{path} cannot be read as .npz"), np.load(path, allow_pickle=False) as file:
            arrays = {field: file[field] for field in FIELDS["npz"] if field in file}
            names = file.files
        for field in FIELDS["npz"]:
            # A similar name is probably a mistake: do not go on without the field unnoticed.
            if field not in arrays and (near := get_close_matches(field, names, 1, 0.8)):
                raise UserError(f"{path}: no field {field}; rename {near[0]} if it is that")
        has = ", ".join(names) or "nothing"
        require("obs" in arrays, f"{path}: obs is missing; the file has {has}")
        yield f"{path}: ", "", arrays
