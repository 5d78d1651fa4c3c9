"""Run folders: a kill at any moment loses nothing that was saved.

    config.toml            everything needed to run it again, with the package version
    metrics.jsonl          one row a report; the same scalars as TensorBoard events in tensorboard/
    episodes/seed<k>.bin   append-only log of the finished episodes
    checkpoints/<step>/    state.safetensors and meta.json
    demos.safetensors      of an imitator: what it is shown

What only grows is written by whole pieces, and a torn last piece is ignored. What is replaced is
written beside, fsynced and renamed into place. Nothing is ever pickled.

To resume: `restore`, then `truncate_rows(step)` and `episodes().truncate(positions)`, with the
positions that `EpisodeLog.sync` gave before the checkpoint was saved (the caller keeps them in its
`meta`). Where there is no checkpoint yet: `truncate_rows(-1)` and `truncate([])`.
"""

import hashlib
import json
import math
import os
import shutil
import struct
import sys
import time
import tomllib
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tomli_w
from safetensors import SafetensorError, safe_open

from uvd import __version__
from uvd.errors import UserError

Arrays = dict[str, np.ndarray]


class Run:
    """A run's folder: its settings, metrics, episodes and checkpoints.

    Opening one changes nothing on disk, so a run can be read while it is training.
    """

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self._episodes = EpisodeLog(path / "episodes")
        self._metrics: _Appender | None = None
        self._events: dict[int, _Appender] = {}
        self._damaged: set[Path] = set()

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: dict[str, Any], overwrite: bool = False
    ) -> "Run":
        """Makes the folder and writes config.toml with `uvd_version` added.

        TOML has no null: a setting that is None is left out, and reads as its default.
        """
        path = Path(path)
        settings = _without_none(config) | {"uvd_version": __version__}
        with _blamed(f"create the run {path}"):
            # The one name let through is what a kill inside `create` leaves.
            files = set(os.listdir(path)) - {".tmp-config.toml"} if path.is_dir() else set()
            if files or path.is_file():
                if not overwrite and "config.toml" not in files:
                    raise UserError(f"{path} exists and is not a run: choose another with --out")
                if not overwrite:
                    raise UserError(
                        f"{path} exists: go on with uvd train --resume {path}, or use --overwrite"
                    )
                _remove_run(path)
            path.mkdir(parents=True, exist_ok=True)
            _replace_file(path / "config.toml", tomli_w.dumps(settings).encode())
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """The run in an existing folder."""
        path = Path(path)
        try:
            config = tomllib.loads((path / "config.toml").read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(f"{path} is not a run folder: it has no config.toml") from error
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the run {path}: config.toml: {error}") from error
        if "uvd_version" not in config:
            raise UserError(f"{path} is not a run folder: uvd did not write its config.toml")
        return cls(path, config)

    def write_config(self) -> None:
        """Writes `config` back: what a resumed run was told must outlive its next kill."""
        with _blamed(f"write {self.path / 'config.toml'}"):
            _replace_file(self.path / "config.toml", tomli_w.dumps(self.config).encode())

    def report(self, row: dict[str, Any]) -> None:
        """Appends a row: step, updates, seconds, and for each metric a list of one float a seed.

        What is not finite becomes null in metrics.jsonl and is left out of TensorBoard.
        """
        if self._metrics is None:
            self.truncate_rows(sys.maxsize)  # a torn last line must not end up inside the file
            self._metrics = _Appender(self.path / "metrics.jsonl")
        row = {name: _finite_or_none(value) for name, value in row.items()}
        self._metrics.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._report_events(row)

    def rows(self) -> list[dict[str, Any]]:
        """The rows reported so far, without a torn last line."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        with _blamed(f"read {path}"):
            lines = path.read_bytes().splitlines()
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    raise UserError(f"{path} is damaged: remove its line {number}") from error
        return rows

    def require_whole(self) -> None:
        """Refuses a copy of a run's small files: what was trained is not there, nor its episodes.

        To begin anew there would lose the metrics.
        """
        if self.rows() and not (self.path / "episodes").exists():
            raise UserError(
                f"{self.path} holds the settings and metrics of a run, not what it learned"
            )

    def truncate_rows(self, step: int) -> None:
        """Drops the rows after `step`, which a resumed run reports again."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = [json.dumps(row) + "\n" for row in self.rows() if row["step"] <= step]
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        with _blamed(f"rewrite {path}"):
            _replace_file(path, "".join(kept).encode())

    def save(self, step: int, arrays: Arrays, meta: dict[str, Any], keep: int = 2) -> Path:
        """Writes checkpoints/<step>/, then removes all but the last `keep` good ones.

        `meta` is anything JSON can hold. A checkpoint of the same step is replaced.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        folder = self.path / "checkpoints"
        final, beside = folder / str(step), folder / f".tmp-{step}"
        state = _to_bytes(arrays)
        body = {"step": step, "sha256": hashlib.sha256(state).hexdigest(), "meta": meta}
        body = json.loads(json.dumps(body, default=methodcaller("tolist")))
        try:
            for stale in folder.glob(".tmp-*"):
                shutil.rmtree(stale)
            beside.mkdir(parents=True)
            _write_file(beside / "state.safetensors", state)
            sealed = json.dumps(body | {"seal": _seal(body)}, indent=1)
            _write_file(beside / "meta.json", sealed.encode())
            _sync_folder(beside)
            if self._metrics is not None:
                self._metrics.sync()
            if final.exists():  # a full folder cannot be renamed over; `restore` finds it here
                shutil.rmtree(folder / f"{step}.replaced", ignore_errors=True)
                os.replace(final, folder / f"{step}.replaced")
            os.replace(beside, final)
            _sync_folder(folder)
            _sync_folder(self.path)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            good = [s for s, path in self._checkpoints() if path not in self._damaged]
            left = f"the checkpoint of step {good[0]} survives" if good else "there is none before"
            raise UserError(
                f"cannot save the checkpoint {final}: {error.strerror or error}; {left}"
            ) from error
        self._prune(final, keep)
        return final

    def restore(
        self, warn: Callable[[str], object] = warnings.warn
    ) -> tuple[int, Arrays, dict[str, Any]] | None:
        """Step, arrays and meta of the newest good checkpoint; None where none was saved.

        Each damaged one that is passed over is reported to `warn` in one line.
        """
        problems = []
        for step, path in self._checkpoints():
            try:
                arrays, meta = _read_checkpoint(path, step)
            except (OSError, ValueError, TypeError, LookupError, SafetensorError) as error:
                self._damaged.add(path)
                problems.append(f"checkpoint {path} is damaged ({error})")
                continue
            for problem in problems:
                warn(f"{problem}: the one of step {step} is used")
            return step, arrays, meta
        if problems:
            raise UserError(f"{problems[0]} and there is no good one: start again with --overwrite")
        return None

    def keep_demos(self, arrays: Arrays) -> None:
        """Writes what an imitator is shown: the run no longer needs where it came from."""
        path = self.path / "demos.safetensors"
        with _blamed(f"write {path}"):
            data = safetensors.numpy.save(arrays, {"sha256": _digest(arrays)})
            _replace_file(path, data)

    def demos(self) -> Arrays | None:
        """What `keep_demos` wrote; None where nothing was."""
        path = self.path / "demos.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                if file.metadata() != {"sha256": _digest(arrays)}:
                    raise ValueError("it is not as it was written")
                return arrays
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(
                f"{path} is damaged ({error}): remove it, and the run reads its demonstrations "
                "from their source again"
            ) from error

    def episodes(self) -> "EpisodeLog":
        """The log of this run's finished episodes."""
        return self._episodes

    def close(self) -> None:
        """Closes the files; to report or append again reopens them."""
        for appender in (self._metrics, *self._events.values()):
            if appender is not None:
                appender.close()
        self._metrics, self._events = None, {}
        self._episodes.close()

    def _report_events(self, row: dict[str, Any]) -> None:
        """Writes the row's metrics as TensorBoard scalars, one folder a seed.

        The records go straight to our file: TensorBoard's own writer starts a thread a file.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # slow to import
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        metrics = {tag: values for tag, values in row.items() if isinstance(values, list)}
        for seed in range(max(map(len, metrics.values()), default=0)):
            scalars = [
                Summary.Value(tag=tag, simple_value=values[seed])
                for tag, values in metrics.items()
                if seed < len(values) and values[seed] is not None
            ]
            at = {"step": row["step"], "wall_time": time.time()}
            events = [Event(**at, summary=Summary(value=scalars))]
            if seed not in self._events:
                # A file a process, read in the order of their names. START drops what an earlier
                # one holds from this step on: a resumed run reports it again.
                path = self.path / f"tensorboard/seed{seed}/events.out.tfevents.{time.time_ns()}"
                self._events[seed] = _Appender(path)
                version = Event(wall_time=at["wall_time"], file_version="brain.Event:2")
                start = Event(**at, session_log=SessionLog(status=SessionLog.START))
                events = [version, start, *events]
            for event in events:
                RecordWriter(self._events[seed]).write(event.SerializeToString())

    def _checkpoints(self) -> list[tuple[int, Path]]:
        """Step and folder of every checkpoint, newest first, a replaced one after its successor."""
        paths = (self.path / "checkpoints").glob("*")
        steps = {p: p.name.removesuffix(".replaced") for p in paths}
        found = [(int(step), path) for path, step in steps.items() if step.isdigit()]
        return sorted(found, key=lambda pair: (-pair[0], pair[1].name))

    def _prune(self, newest: Path, keep: int) -> None:
        """Removes the oldest, and what is neither: damaged, replaced, or later than the newest."""
        self._damaged.discard(newest)
        good = 0
        for step, path in self._checkpoints():
            bad = path in self._damaged or path.suffix == ".replaced" or step > int(newest.name)
            if bad or good == keep:
                shutil.rmtree(path, ignore_errors=True)
            else:
                good += 1


class EpisodeLog:
    """Append-only log of finished episodes, one file a seed (episodes/seed<k>.bin).

    A record is a batch of E episodes: arrays with a leading axis E, among them `length` int32[E],
    so that episodes of different lengths can be padded. On disk it is a header (magic, size and
    crc32 of the payload, crc32 of the header before it) and the arrays as safetensors.
    """

    _magic = b"UVD1"
    _header = struct.Struct("<4sQII")

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[int, _Appender] = {}

    def append(self, seed: int, episode: Arrays) -> None:
        """Appends one episode, its `length` a scalar: a batch of one."""
        self.append_batch(seed, {name: np.asarray(x)[None] for name, x in episode.items()})

    def append_batch(self, seed: int, episodes: Arrays) -> None:
        """Appends E stacked episodes as one record."""
        shapes = {name: np.shape(x) for name, x in episodes.items()}
        if len(shapes.get("length", ())) != 1 or len({s[:1] for s in shapes.values()}) != 1:
            raise ValueError(f"need length of shape (E,) and a leading axis E, got {shapes}")
        payload = _to_bytes(episodes | {"length": np.asarray(episodes["length"], np.int32)})
        head = struct.pack("<4sQI", self._magic, len(payload), zlib.crc32(payload))
        if seed not in self._files:
            self._files[seed] = _Appender(self._path(seed))
        self._files[seed].write(head + struct.pack("<I", zlib.crc32(head)) + payload)

    def sync(self) -> list[int]:
        """Makes what was appended durable; returns the size of each seed's file, by seed."""
        with _blamed(f"write {self._folder}"):
            for file in self._files.values():
                file.sync()
            if self._files:
                _sync_folder(self._folder)
        sizes = self._sizes()
        return [sizes.get(seed, 0) for seed in range(max(sizes, default=-1) + 1)]

    def truncate(self, positions: list[int]) -> None:
        """Cuts what was appended after `sync` returned `positions`."""
        self.close()
        wanted = dict(enumerate(positions))
        sizes = self._sizes()
        for seed in wanted.keys() | sizes.keys():
            path, size, position = self._path(seed), sizes.get(seed, 0), wanted.get(seed, 0)
            if size < position:
                raise _damaged_log(path, size, f"it ends there, the checkpoint needs {position}")
            if size > position:
                with _blamed(f"cut {path}"):
                    os.truncate(path, position)

    def read(self, seed: int, position: int | None = None) -> Iterator[Arrays]:
        """The records of a seed as written, up to a position that `sync` returned.

        Without a position: all of them, except a torn last one.
        """
        path, size = self._path(seed), self._sizes().get(seed, 0)
        end = size if position is None else position
        if size < end:
            raise _damaged_log(path, size, f"it ends there, the checkpoint needs {end}")
        if end == 0:
            return
        with path.open("rb") as file:
            while (start := file.tell()) < end:
                head = file.read(self._header.size)
                whole = start + self._header.size <= end
                if whole:
                    magic, length, payload_crc, head_crc = self._header.unpack(head)
                    if magic != self._magic or zlib.crc32(head[:-4]) != head_crc:
                        raise _damaged_log(path, start, "not the header of a record")
                    whole = file.tell() + length <= end
                if not whole:
                    if position is None:
                        return
                    raise _damaged_log(path, start, "the record is cut short")
                payload = file.read(length)
                if zlib.crc32(payload) != payload_crc:
                    raise _damaged_log(path, start, "the checksum differs")
                yield safetensors.numpy.load(payload)

    def close(self) -> None:
        """Closes the files; to append again reopens them."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _path(self, seed: int) -> Path:
        return self._folder / f"seed{seed}.bin"

    def _sizes(self) -> dict[int, int]:
        """Size in bytes of each seed's file that exists."""
        files = self._folder.glob("seed*.bin")
        return {int(p.stem.removeprefix("seed")): p.stat().st_size for p in files}


class _Appender:
    """A file that grows by whole pieces: one that does not fit (disk full) is cut off again."""

    def __init__(self, path: Path):
        self._path = path
        with _blamed(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def write(self, piece: bytes) -> None:
        fd = self._file.fileno()
        start = os.fstat(fd).st_size
        rest = memoryview(piece)
        with _blamed(f"write {self._path}"):
            try:
                while rest:
                    rest = rest[os.write(fd, rest) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, start)
                raise

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextmanager
def _blamed(doing: str) -> Iterator[None]:
    """Turns what the file system refuses into one line for the user."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {doing}: {error.strerror or error}") from error


def _damaged_log(path: Path, offset: int, reason: str) -> UserError:
    return UserError(f"{path} is damaged at byte {offset} ({reason}): start again with --overwrite")


def _read_checkpoint(path: Path, step: int) -> tuple[Arrays, dict[str, Any]]:
    body = dict(json.loads((path / "meta.json").read_bytes()))
    if body.pop("seal") != _seal(body) or body["step"] != step:
        raise ValueError("meta.json is not as it was written")
    state = (path / "state.safetensors").read_bytes()
    if hashlib.sha256(state).hexdigest() != body["sha256"]:
        raise ValueError("state.safetensors is not as it was written")
    return safetensors.numpy.load(state), body["meta"]


def _seal(body: dict[str, Any]) -> str:
    """A digest of meta.json's content: a changed counter would otherwise still parse."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _digest(arrays: Arrays) -> str:
    return hashlib.sha256(_to_bytes(arrays)).hexdigest()


def _to_bytes(arrays: Arrays) -> bytes:
    # safetensors reads the memory as it lies, without a look at the strides.
    return safetensors.numpy.save({k: np.asarray(x, order="C") for k, x in arrays.items()})


def _finite_or_none(value: Any) -> Any:
    """The value of NumPy, JAX or Python as JSON has it."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [_finite_or_none(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_none(config: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value is not None
    }


def _remove_run(path: Path) -> None:
    try:
        Run.open(path)
    except UserError as error:
        raise UserError(f"--overwrite replaces only runs: {error}") from error
    # Renamed first: killed half-way, it would be a folder that is neither a run nor empty.
    old = path.resolve()
    aside = old.with_name(f".{old.name}.removed-{os.getpid()}")
    os.replace(old, aside)
    shutil.rmtree(aside)


def _replace_file(path: Path, data: bytes) -> None:
    beside = path.with_name(f".tmp-{path.name}")
    _write_file(beside, data)
    os.replace(beside, path)
    _sync_folder(path.parent)


def _write_file(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
