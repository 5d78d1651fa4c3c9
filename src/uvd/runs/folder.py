"""Run folders: a kill at any moment loses nothing that was saved.

    config.toml            everything needed to run it again, with the package version
    metrics.jsonl          one row per report; tensorboard/ has the same numbers
    episodes/seed<k>.bin   append-only log of the finished episodes
    checkpoints/           the newest two, <step>.safetensors
    demos.safetensors      the pairs that are imitated, if the algorithm imitates

Nothing is ever pickled.

To resume: `restore`, then `truncate_rows(step)` and `episodes().truncate(positions)`, with the
positions that `EpisodeLog.sync` gave before the checkpoint was saved (the caller keeps them in its
`meta`). If there is no checkpoint yet: `truncate_rows(-1)` and `truncate([])`.
"""

import json
import math
import os
import shutil
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from uvd import __version__
from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.runs.checkpoint import Checkpoint, restore_checkpoint, save_checkpoint
from uvd.runs.episodes import EpisodeLog
from uvd.runs.events import EventLog
from uvd.runs.files import Arrays, append_to_file, read_arrays, replace_file, sync, write_arrays


class Run:
    """A run's folder: its settings, metrics, episodes and checkpoints.

    Opening one changes nothing on disk, so a run can be read while it is training.
    """

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self._metrics = path / "metrics.jsonl"
        self._events = EventLog(path / "tensorboard")

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: dict[str, Any], overwrite: bool = False
    ) -> "Run":
        """Makes the folder and writes config.toml with `uvd_version` added.

        TOML has no null: a setting that is None is left out, and reads as its default.
        """
        run = cls(Path(path), _without_none(config) | {"uvd_version": __version__})
        cls.require_free(path, overwrite)
        with refused(f"cannot create the run {path}", OSError):
            if os.path.isfile(path) or _files_in(path):
                _remove_run(run.path)
        run.write_config()
        return cls.open(path)

    @staticmethod
    def require_free(path: str | os.PathLike[str], overwrite: bool) -> None:
        """Refuses the path of a new run where something is, unless it may be replaced."""
        with refused(f"cannot create the run {path}", OSError):
            files = _files_in(path)
        if overwrite:
            return
        require(
            "config.toml" not in files,
            f"{path} exists: go on with uvd train --resume {path}, or use --overwrite",
        )
        free = not files and not os.path.isfile(path)
        require(free, f"{path} exists and is not a run: choose another with --out")

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
        ours = "uvd_version" in config
        require(ours, f"{path} is not a run folder: uvd did not write its config.toml")
        return cls(path, config)

    def require_this_version(self) -> None:
        """Refuses a run of another version, whose settings and arrays may be different ones."""
        version = str(self.config["uvd_version"])
        require(
            version.split(".")[:2] == __version__.split(".")[:2],
            f"{self.path} was made by uvd {version}, and this is uvd {__version__}: "
            f"install uvd {version} to use the run, or train it again",
        )

    def require_whole(self) -> None:
        """Refuses a copy of a run's small files, without its episodes and checkpoints.

        To train there from the start would lose the metrics.
        """
        whole = not self.rows() or (self.path / "episodes").exists()
        require(whole, f"{self.path} holds the settings and metrics of a run, not what it learned")

    def write_config(self) -> None:
        """Writes `config` to config.toml: the next start of the run reads it there."""
        replace_file(self.path / "config.toml", tomli_w.dumps(self.config).encode())

    def report(self, row: dict[str, Any]) -> None:
        """Appends a row: step, updates, seconds, and for each metric a list of one float per seed.

        What is not finite becomes null in metrics.jsonl and is left out of TensorBoard.
        """
        if self._metrics.exists() and not self._metrics.read_bytes().endswith(b"\n"):
            self.truncate_rows(math.inf)  # removes an incomplete last line
        row = {name: _finite_or_none(value) for name, value in row.items()}
        append_to_file(self._metrics, json.dumps(row, allow_nan=False).encode() + b"\n")
        metrics = {name: values for name, values in row.items() if isinstance(values, list)}
        self._events.append(row["step"], metrics)

    def rows(self) -> list[dict[str, Any]]:
        """The rows reported so far, without an incomplete last line."""
        if not self._metrics.exists():
            return []
        with refused(f"cannot read {self._metrics}", OSError):
            lines = self._metrics.read_bytes().splitlines()
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    message = f"{self._metrics} is damaged: remove its line {number}"
                    raise UserError(message) from error
        return rows

    def truncate_rows(self, step: float) -> None:
        """Drops the rows after `step`, which a resumed run reports again."""
        lines = [json.dumps(row) + "\n" for row in self.rows() if row["step"] <= step]
        if self._metrics.exists():
            replace_file(self._metrics, "".join(lines).encode())

    def save(self, step: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Writes the checkpoint of a step; `meta` is anything that JSON can hold."""
        if self._metrics.exists():
            sync(self._metrics)
        save_checkpoint(self.path / "checkpoints", step, arrays, meta)

    def restore(self, warn: Callable[[str], object] = warnings.warn) -> Checkpoint | None:
        """The newest good checkpoint, None if none was saved; `warn` receives what is damaged."""
        return restore_checkpoint(self.path / "checkpoints", warn)

    def write_demos(self, arrays: Arrays) -> None:
        """Writes the pairs that are imitated: the run no longer needs their source."""
        write_arrays(self.path / "demos.safetensors", arrays)

    def read_demos(self) -> Arrays | None:
        """What `write_demos` wrote; None if it wrote nothing."""
        path = self.path / "demos.safetensors"
        if not path.exists():
            return None
        try:
            return read_arrays(path)[0]
        except ValueError as error:
            raise UserError(
                f"{path} is damaged ({error}): remove it, and the run reads its demonstrations "
                "from their source again"
            ) from error

    def episodes(self) -> EpisodeLog:
        """The log of this run's finished episodes."""
        return EpisodeLog(self.path / "episodes")


def _files_in(path: str | os.PathLike[str]) -> set[str]:
    """What a folder holds, but for the one file that a kill inside `create` leaves."""
    return set(os.listdir(path)) - {".tmp-config.toml"} if os.path.isdir(path) else set()


def _finite_or_none(value: Any) -> Any:
    """A value for JSON, which has no infinity and no NaN."""
    if isinstance(value, list):
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
    # First renamed: after a kill half-way, the rest of it must not stand in the way of a new run.
    old = path.resolve()
    removed = old.with_name(f".{old.name}.removed-{os.getpid()}")
    os.replace(old, removed)
    shutil.rmtree(removed)
