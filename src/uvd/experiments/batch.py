"""Batches of runs: those that are not trained yet are trained, and their small files are collected.

A complete run is used again and a partial one is resumed, so a command that trains a batch can be
stopped and repeated at will.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax

from uvd.core.config import require
from uvd.core.errors import Stopped, nearest, refused
from uvd.runs import Run
from uvd.settings import RunConfig, to_file
from uvd.training.plan import configure

COMPILE = 20.0  # seconds to compile a run: only to announce the time
AT_ONCE = 2 if (os.cpu_count() or 1) > 1 else 1


@dataclass(frozen=True)
class Job:
    """A run to be trained."""

    name: str
    """Its folder."""
    algorithm: str
    task: str
    given: Mapping[str, Any]
    """Settings beside the preset's, of the algorithm, the run and the demonstrations."""
    pace: float
    """Seconds for 1000 steps of a seed on a CPU core: a guess, for the order and to announce."""
    preset: str | None = None
    """The preset (if not given, what suits the task)."""

    @cached_property
    def config(self) -> RunConfig:
        """Complete settings. What cannot work is refused here."""
        return configure(self.algorithm, self.task, self.preset, self.given)[0]

    def seconds(self, done: int = 0) -> float:
        """A rough guess of the time that the steps after the first `done` take."""
        run = self.config.run
        left = run.steps - done
        return COMPILE + self.pace * run.seeds * left / 1000 if left > 0 else 0.0


def check(jobs: Sequence[Job], at_once: int) -> None:
    """Refuses jobs that cannot work, before any folder is made."""
    require(at_once >= 1, f"jobs = {at_once} must be at least 1")
    for job in jobs:
        _ = job.config


def require_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuses a name that is not among the known ones."""
    known = list(known)
    for name in names:
        if name not in known:
            raise nearest(name, known, what)


def make_folder(out: Path) -> None:
    """Makes the folder of a batch."""
    with refused(f"cannot make the folder {out}", OSError):
        out.mkdir(parents=True, exist_ok=True)


def _require_same(run: Run, config: RunConfig) -> None:
    """Refuses a run of other settings or of another version: results must not be mixed."""

    def flat(rows: Mapping[str, Any]) -> dict[str, Any]:
        """All settings by name. A hash identifies demonstrations, wherever they are."""
        groups = {**rows["run"], **rows["settings"], **rows.get("demos", {}), "demos": None}
        return {**groups, **{k: rows[k] for k in ("algorithm", "task", "preset", "task_settings")}}

    run.require_this_version()
    have, want = flat(run.config), flat(json.loads(json.dumps(to_file(config))))
    for name in sorted(want.keys() | have.keys()):
        require(
            have.get(name) == want.get(name),
            f"{run.path} was trained with {name} = {have.get(name)}, not {want.get(name)}: "
            "remove it, or choose another folder with --out",
        )


def has_last_report(run: Run) -> bool:
    """Whether the run's metrics reach its last step: enough to draw it."""
    rows = run.rows()
    return bool(rows) and rows[-1]["step"] >= run.config["run"]["steps"]


def complete(run: Run) -> bool:
    """Whether the run need not be trained: its last report and the checkpoint of it are there."""
    if not has_last_report(run):
        return False
    return (run.path / "checkpoints" / f"{run.rows()[-1]['step']}.safetensors").is_file()


def train_into(out: Path, jobs: Sequence[Job], at_once: int = AT_ONCE) -> list[Path]:
    """Trains in `out/runs` what is not trained yet; returns the runs' folders.

    Their small files are copied to `out`. On a CPU a run of small networks keeps about one core
    busy, so two at once take little longer than one. Each is a process of its own that does
    `uvd train --resume`.
    """
    check(jobs, at_once)
    runs = out / "runs"
    for job in jobs:
        # Results without their run came from elsewhere: what is trained here must not replace them.
        places = (runs / job.name, out / job.name)
        if there := [path for path in places if (path / "config.toml").exists()]:
            _require_same(Run.open(there[0]), job.config)  # before hours are spent on the others
    make_folder(out)
    for job in jobs:
        if not (runs / job.name / "config.toml").exists():
            Run.create(runs / job.name, to_file(job.config))
    announce(jobs, out, at_once)
    todo = [job for job in jobs if not complete(Run.open(runs / job.name))]
    todo.sort(key=lambda job: -job.seconds())  # the longest first, so that none is left over alone
    try:
        codes = _train_processes([runs / job.name for job in todo], at_once)
    finally:
        finished(out, [job.name for job in jobs])
    for job, code in zip(todo, codes):
        if code == 130:
            raise Stopped(f"stopped in {job.name}; repeat the command to go on")
        path = runs / job.name
        require(not code, f"{job.name} failed; see above, then: uvd train --resume {path}")
    return [runs / job.name for job in jobs]


def _train_processes(paths: Sequence[Path], at_once: int) -> list[int]:
    """Trains runs, so many at a time; returns their exit codes."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # runs may share a GPU
    cores: SimpleQueue[int | None] = SimpleQueue()
    pin = at_once > 1 and jax.default_backend() == "cpu" and hasattr(os, "sched_getaffinity")
    usable = sorted(os.sched_getaffinity(0)) if pin else [None]
    for i in range(at_once):
        cores.put(usable[i % len(usable)])

    def train(path: Path) -> int:
        core = cores.get()
        try:
            return train_process(path, core)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(train, paths))


def train_process(path: Path, core: int | None) -> int:
    """Trains one run in a process of its own; returns its exit code."""
    command = [sys.executable, "-m", "uvd.cli", "train", "--resume", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if core is not None:
            with suppress(OSError):  # it has ended already
                # Threads of two runs on the same cores would wait for each other.
                os.sched_setaffinity(process.pid, {core})
        for line in process.stdout or ():
            print(line, end="", flush=True)
    return process.returncode


def announce(jobs: Sequence[Job], out: Path, at_once: int) -> None:
    """Says what is trained, and a rough guess of the time that it takes."""
    seconds = 0.0
    for job in jobs:
        rows = Run.open(out / "runs" / job.name).rows()
        seconds += job.seconds(rows[-1]["step"] if rows else 0) / at_once
    tasks, seeds = ", ".join(dict.fromkeys(job.task for job in jobs)), jobs[0].config.run.seeds
    print(
        f"{len(jobs)} runs of {seeds} seed{'s' if seeds > 1 else ''} on {tasks}, into {out}: about "
        f"{max(1, round(seconds / 60)):,} min on 2 CPU cores",
        flush=True,
    )


def finished(out: Path, names: Iterable[str] | None = None) -> list[Path]:
    """Folders in `out` with the small files of runs that reached their last step.

    They are a run's configuration and its metrics of every seed: enough to draw it. What is
    finished in `out/runs` is copied first; checkpoints and episodes stay there.
    """
    if names is None:
        found = [*sorted(out.glob("*/config.toml")), *sorted(out.glob("runs/*/config.toml"))]
        names = [path.parent.name for path in found]
    paths = []
    for name in dict.fromkeys(names):
        small, whole = out / name, out / "runs" / name
        if (whole / "config.toml").exists() and has_last_report(run := Run.open(whole)):
            small.mkdir(exist_ok=True)
            shutil.copyfile(whole / "metrics.jsonl", small / "metrics.jsonl")
            Run(small, _without_place(run.config)).write_config()
        if (small / "config.toml").exists() and has_last_report(Run.open(small)):
            paths.append(small)
    return paths


def _without_place(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the folder of its demonstrations, which other machines lack."""
    demos = dict(config.get("demos", {}))
    if not Path(demos.get("demos", "")).is_absolute():
        return config
    return {**config, "demos": {**demos, "demos": Path(demos["demos"]).name}}
