"""Batches of runs: trained where they are not yet, set in tables, their small files kept.

A run that is complete is used again, a partial one is resumed, so a command that trains a batch can
be stopped and repeated at will.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from uvd import __version__
from uvd.api import file_name
from uvd.core.errors import Stopped, UserError, nearest
from uvd.experiments import curves, statistics
from uvd.training.loop import make_config
from uvd.runs import Run

COMPILE = 20.0  # seconds to compile a run: only to announce the time
AT_ONCE = 2 if (os.cpu_count() or 1) > 1 else 1


@dataclass(frozen=True)
class Job:
    """A run to be trained."""

    name: str
    """Its folder."""
    algorithm: str
    task: str
    run: dict[str, Any]
    """Seeds, steps and the like."""
    pace: float
    """Seconds for 1000 steps of a seed on a CPU core: a guess, for the order and to announce."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The algorithm's settings that are not its preset's."""
    preset: str = "default"
    demos: dict[str, Any] = field(default_factory=dict)
    """What an imitator is shown: `DemoSettings` by name."""

    def config(self) -> dict[str, Any]:
        """The configuration that its folder must have."""
        return make_config(
            self.algorithm, self.task, self.preset, self.run, self.settings, {}, self.demos
        )


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as one list of names, as a run's folder gives it back."""
    flat = json.loads(json.dumps(config))
    return {**flat.pop("run"), **flat.pop("settings"), **flat}


def _require_same(run: Run, config: dict[str, Any]) -> None:
    """Refuses a run of other settings or of another version: results must not be mixed."""
    have, want = _flat(run.config), _flat(config | {"uvd_version": __version__})
    # A setting that came later is the least telling difference.
    for name in sorted(want.keys() | have.keys(), key=lambda name: (name not in have, name)):
        if have.get(name) != want.get(name):
            raise UserError(
                f"{run.path} was trained with {name} = {have.get(name)}, not {want.get(name)}: "
                "remove it, or choose another folder with --out"
            )


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the place of its demonstrations, which says nothing elsewhere."""
    if not Path(shown := config.get("demos", {}).get("demos", "")).is_absolute():
        return config
    return {**config, "demos": {**config["demos"], "demos": Path(shown).name}}


def reported(run: Run) -> bool:
    """Whether the run's last report is there: enough to draw it."""
    rows = run.rows()
    return bool(rows) and rows[-1]["step"] >= run.config["run"]["steps"]


def complete(run: Run) -> bool:
    """Whether the run need not be trained: its last report is there, and the checkpoint of it."""
    checkpoints = run.path / "checkpoints"
    return reported(run) and (checkpoints / f"{run.rows()[-1]['step']}.safetensors").exists()


def train_all(jobs: Sequence[Job], folder: Path, at_once: int = 1) -> list[Path]:
    """Trains what is not yet trained, `at_once` runs side by side; returns the runs' folders.

    On a CPU a run of small networks keeps about one core busy, so two at once take little longer
    than one. Each is a process of its own that does `uvd train --resume`.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # runs may share a GPU
    configs = [job.config() for job in jobs]
    paths = [folder / job.name for job in jobs]
    for path, config in zip(paths, configs):
        if (path / "config.toml").exists():
            _require_same(Run.open(path), config)  # refused before hours are spent on the others
        else:
            Run.create(path, config)
    todo = [path for path in paths if not complete(Run.open(path))]
    costs = {path: job.pace * job.run["steps"] for path, job in zip(paths, jobs)}
    todo.sort(key=lambda path: -costs[path])  # the longest first, so that none is left over alone
    cores: SimpleQueue[int | None] = SimpleQueue()
    pin = at_once > 1 and jax.default_backend() == "cpu" and hasattr(os, "sched_getaffinity")
    usable = sorted(os.sched_getaffinity(0)) if pin else [None]
    for i in range(at_once):
        cores.put(usable[i % len(usable)])
    with ThreadPoolExecutor(at_once) as pool:
        ends = list(pool.map(lambda path: _train_process(path, cores), todo))
    for path, code in zip(todo, ends):
        if code == 130:
            raise Stopped(f"stopped in {path.name}; repeat the command to go on")
        if code:
            raise UserError(f"{path.name} failed; see above, then: uvd train --resume {path}")
    return paths


def _train_process(path: Path, cores: "SimpleQueue[int | None]") -> int:
    """Trains one run in a process of its own, on a core of its own; its exit code."""
    core = cores.get()
    code = "import sys; from uvd.cli import main; "
    if core is not None:
        # Threads of two runs on the same cores would wait for each other.
        code = f"import os; os.sched_setaffinity(0, {{{core}}}); " + code
    command = [sys.executable, "-c", code + "sys.exit(main())"]
    command += ["train", "--resume", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
        end = process.wait()
    cores.put(core)
    return end


def seconds_left(jobs: Sequence[Job], folder: Path, at_once: int = AT_ONCE) -> float:
    """A rough guess of what `train_all` will take."""
    total = 0.0
    for job in jobs:
        path, steps = folder / job.name, job.run["steps"]
        if (path / "config.toml").exists():
            rows = Run.open(path).rows()
            steps -= rows[-1]["step"] if rows else 0
        if steps > 0:
            total += COMPILE + job.pace * job.run["seeds"] * steps / 1000
    return total / at_once


class Health(NamedTuple):
    """Whether a run's numbers stayed within their bounds, from its first report to its last."""

    target: float | None
    """Largest target over its bound, where the algorithm reports it."""
    finite: bool
    """No metric of any report was anything but a number."""

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> "Health":
        lists = [value for row in rows for value in row.values() if isinstance(value, list)]
        targets = [x for row in rows for x in row.get("critic/target_over_bound_max", ())]
        return cls(
            max((math.inf if x is None else x for x in targets), default=None),
            all(x is not None for values in lists for x in values),
        )

    def cells(self) -> tuple[str, str]:
        """As a table has them."""
        target = "–" if self.target is None else f"{self.target:.3f}"
        return target, "yes" if self.finite else "NO"


class Score(NamedTuple):
    """What a run came to, at its last report."""

    task: str
    algorithm: str
    method: str  # the job's name without its task
    label: str
    final: np.ndarray
    """Success at the final step, a number a seed."""
    ever: np.ndarray
    """Success at any step."""
    seconds: float
    health: Health


def scores(paths: Sequence[Path]) -> list[Score]:
    """The results of runs."""
    runs = [Run.open(path) for path in paths]
    labels = curves.run_labels([run.config for run in runs])
    found = []
    for run, label in zip(runs, labels):
        rows = run.rows()
        last = {
            name: np.array(rows[-1][f"eval/success_{name}"], float) for name in ("final", "ever")
        }
        found.append(
            Score(
                curves.task_name(run.config),
                run.config["algorithm"],
                run.path.name.removeprefix(f"{file_name(run.config['task'])}-"),
                label,
                last["final"],
                last["ever"],
                rows[-1]["seconds"],
                Health.of(rows),
            )
        )
    return found


class Sheet(NamedTuple):
    """A table to print and to write."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """As Markdown, under its title."""
        rule = ("--",) * 2 + ("--:",) * (len(self.header) - 2)
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.header, rule, *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, ""])

    def show(self) -> None:
        """On the terminal; in a pipe as wide as it needs to be."""
        table = Table(box=None, padding=(0, 1, 0, 0))
        for i, name in enumerate(self.header):
            table.add_column(name, justify="right" if i > 1 else "left", no_wrap=i < 3)
        for row in self.rows:
            table.add_row(*row)
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=150)
        console.print(f"\n[bold]{self.title}[/bold]\n", table, "", sep="\n")


def _percent(found: statistics.Interval, sign: str = "") -> str:
    value, low, high = (100 * x for x in found)
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def tabulate(found: Sequence[Score]) -> Sheet:
    """Success of every method on every task, and over all tasks where a method has run on all."""
    header = (
        "task", "method", "final step [95 %]", "ever [95 %]", "worst", "time, s", "max target",
        "finite",
    )  # fmt: skip

    def row(task: str, label: str, group: Sequence[Score]) -> tuple[str, ...]:
        final, ever = [s.final for s in group], [s.ever for s in group]
        targets = [s.health.target for s in group if s.health.target is not None]
        health = Health(max(targets, default=None), all(s.health.finite for s in group))
        return (
            task,
            label,
            _percent(statistics.interval(final)),
            _percent(statistics.interval(ever)),
            f"{100 * np.min(final):.0f}",
            f"{sum(s.seconds for s in group):.0f}",
            *health.cells(),
        )

    rows = [row(s.task, s.label, [s]) for s in found]
    tasks = {s.task for s in found}
    for method in dict.fromkeys(s.method for s in found):
        own = [s for s in found if s.method == method]
        alike = len({len(s.final) for s in own}) == 1
        if len(tasks) > 2 and len(own) == len(tasks) and alike:
            rows.append(row("all tasks", min((s.label for s in own), key=len), own))
    return Sheet("Success in %, interquartile mean over seeds", header, rows)


def differences(found: Sequence[Score]) -> Sheet:
    """UVD less each HER, the best HER of a task first and marked."""
    rows = []
    for task in dict.fromkeys(s.task for s in found):
        here = [s for s in found if s.task == task]
        rivals = sorted(
            (s for s in here if s.algorithm == "her"), key=lambda s: -float(statistics.iqm(s.final))
        )
        for ours in (s for s in here if s.algorithm == "uvd"):
            for place, rival in enumerate(rivals):
                final, ever = (
                    _percent(statistics.difference(*pair), "+")
                    for pair in ((ours.final, rival.final), (ours.ever, rival.ever))
                )
                best = " (the best HER)" if place == 0 and len(rivals) > 1 else ""
                rows.append((task, f"{ours.label} − {rival.label}{best}", final, ever))
    return Sheet(
        "UVD less HER: difference in success, points",
        ("task", "methods", "final step [95 %]", "ever [95 %]"),
        rows,
    )


def tabulate_watched(
    paths: Sequence[Path], metrics: Sequence[str], name: curves.Name = curves.task_name,
    label: curves.Labels | None = None,
) -> Sheet:  # fmt: skip
    """Some metrics along each run: at its first report, its quarters and its end."""
    runs = [Run.open(path) for path in paths]
    labels = (label or curves.run_labels)([run.config for run in runs])
    rows = []
    for run, of_run in zip(runs, labels):
        for metric in metrics:
            having = [row for row in run.rows() if isinstance(row.get(metric), list)]
            if having:
                places = np.linspace(0, len(having) - 1, 5).round().astype(int)
                values = [np.array(having[i][metric], float) for i in places]
                over_seeds = np.max if metric.endswith("_max") else statistics.iqm
                cells = (f"{over_seeds(x):.3f}" for x in values)
                rows.append((name(run.config), of_run, metric, *cells))
    header = ("task", "method", "metric", "first report", "1/4", "1/2", "3/4", "end")
    return Sheet("Watched: interquartile mean over seeds (`_max`: the largest)", header, rows)


NOTE = """\
Success at the last report, over fixed evaluation episodes without exploration: at the final step,
at any step, and of the worst seed at the final step. Intervals: 95 %, bootstrap over seeds, for
these episodes; they are too narrow with few seeds, of three or fewer hardly more than their spread.
Max target: the critic's largest target in the whole run, as a share of the bound that it must not
exceed. Finite: every metric of every report is a number.
"""


def write_summary(title: str, out: Path, paths: Sequence[Path], *more: str) -> None:
    """summary.md with both tables and what else there is to say; the first table is printed."""
    found = scores(paths)
    write_tables(title, out, tabulate(found), NOTE, differences(found).markdown(), *more)


def write_tables(title: str, out: Path, table: Sheet, *more: str) -> None:
    """summary.md with a table and what else there is to say; the table is printed."""
    text = "\n".join([f"# {title}\n", table.markdown(), *more])
    (out / "summary.md").write_text(text, encoding="utf-8")
    table.show()
    print(f"tables and figures: {out}", flush=True)


def minutes(seconds: float) -> str:
    """A guess of a time, in words."""
    return f"about {max(1, round(seconds / 60)):,} min on 2 CPU cores"


def make_folder(out: Path) -> None:
    """The folder of a batch."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from error


def require_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuses a name that is not among the known ones."""
    known = list(known)
    for name in names:
        if name not in known:
            raise nearest(name, known, what)


def check(jobs: Sequence[Job], at_once: int) -> None:
    """Refuses nonsense before any folder is made."""
    if at_once < 1:
        raise UserError(f"jobs = {at_once} must be at least 1")
    for job in jobs:
        job.config()


def train_and_keep(jobs: Sequence[Job], out: Path, at_once: int) -> list[Path]:
    """Trains into `out/runs` and returns the runs' folders; their small files are kept in `out`."""
    check(jobs, at_once)
    for job in jobs:
        # Results without their run came from elsewhere: what is trained here must not replace them.
        if (out / job.name / "config.toml").exists() and not (out / "runs" / job.name).exists():
            _require_same(Run.open(out / job.name), portable(job.config()))
    make_folder(out)
    tasks, seeds = ", ".join(dict.fromkeys(job.task for job in jobs)), jobs[0].run["seeds"]
    print(
        f"{len(jobs)} runs of {seeds} seed{'s' if seeds > 1 else ''} on {tasks}, into {out}: "
        f"{minutes(seconds_left(jobs, out / 'runs', at_once))}",
        flush=True,
    )
    try:
        return train_all(jobs, out / "runs", at_once)
    finally:
        kept(out, [job.name for job in jobs])


def kept(out: Path, names: Iterable[str] | None = None) -> list[Path]:
    """The small files of the runs in `out` that reached their last step: enough to draw them.

    They are a run's configuration and its metrics of every seed, in a folder of its name. What is
    finished in `out/runs` is copied first; checkpoints and episodes stay there.
    """
    found = [path.parent.name for path in sorted(out.glob("*/config.toml"))]
    found += [path.parent.name for path in sorted(out.glob("runs/*/config.toml"))]
    paths = []
    for name in dict.fromkeys(found if names is None else names):
        small, whole = out / name, out / "runs" / name
        if (whole / "config.toml").exists() and reported(run := Run.open(whole)):
            small.mkdir(exist_ok=True)
            shutil.copyfile(whole / "metrics.jsonl", small / "metrics.jsonl")
            Run(small, portable(run.config)).write_config()
        if (small / "config.toml").exists() and reported(Run.open(small)):
            paths.append(small)
    return paths
