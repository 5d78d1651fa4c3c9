"""File operations after which a kill or a full disk leaves the old content or the new, whole."""

import hashlib
import json
import os
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from uvd.core.errors import refused

Arrays = dict[str, np.ndarray]
Files = dict[str, bytes]  # by their paths in a folder


def append_to_file(path: Path, piece: bytes) -> None:
    """Appends the whole piece; one that does not fit (disk full) is cut off again."""
    with refused(f"cannot write {path}", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            start = os.fstat(file.fileno()).st_size
            rest = memoryview(piece)
            try:
                while rest:
                    rest = rest[os.write(file.fileno(), rest) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), start)
                raise


def replace_file(path: Path, data: bytes) -> None:
    """Writes another file beside it, syncs it to disk, and renames it."""
    unfinished = path.with_name(f".tmp-{path.name}")
    with refused(f"cannot write {path}", OSError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(data)
            sync(unfinished)
            os.replace(unfinished, path)
            sync(path.parent)
        finally:
            with suppress(OSError):  # it was renamed, or was never there
                unfinished.unlink()


def sync(path: Path) -> None:
    """Makes a file, or the names in a folder, durable."""
    with refused(f"cannot write {path}", OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def arrays_to_bytes(arrays: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """Named arrays in the safetensors format."""
    # safetensors copies the memory of an array and does not look at its strides.
    ordered = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    return safetensors.numpy.save(ordered, metadata)


def write_arrays(path: Path, arrays: Arrays, meta: Any = None) -> None:
    """Replaces a safetensors file. It also holds `meta` as JSON, and a digest of everything."""
    text = json.dumps(meta, default=methodcaller("tolist"))
    metadata = {"meta": text, "sha256": _digest(arrays, text)}
    replace_file(path, arrays_to_bytes(arrays, metadata))


def read_arrays(path: Path) -> tuple[Arrays, Any]:
    """The arrays and the meta of a file that `write_arrays` wrote; ValueError if it is damaged."""
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        if metadata["sha256"] != _digest(arrays, metadata["meta"]):
            raise ValueError("it is not as it was written")
        return arrays, json.loads(metadata["meta"])
    except (OSError, TypeError, LookupError, SafetensorError) as error:
        raise ValueError(error) from error


def _digest(arrays: Arrays, text: str) -> str:
    return hashlib.sha256(arrays_to_bytes(arrays, {"meta": text})).hexdigest()


def read_folder(path: Path) -> Files:
    """All files of a run's folder but hidden ones."""
    found = (file for file in path.rglob("*") if file.is_file() and file.name[0] != ".")
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def write_folder(path: Path, files: Files) -> None:
    """Makes a run's folder as `read_folder` found another; after a kill it is good to resume.

    Checkpoints come last, because one needs the episodes up to its place in their log.
    """
    for name in sorted(files, key=lambda name: name.startswith("checkpoints/")):
        replace_file(path / name, files[name])
    for name in read_folder(path).keys() - files.keys():
        (path / name).unlink()
