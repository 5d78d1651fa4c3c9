"""The paper's argument in miniature: the demo, and Figure 2 on the point tasks.

Both train a list of runs and set the results in one table. A run that is complete is used again, a
partial one is resumed, so either command can be stopped and repeated at will.
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
from uvd.errors import Stopped, UserError, nearest
from uvd.experiments import cliffwalk, figures, statistics
from uvd.loop import make_config
from uvd.runs import Run

CLIFF = figures.CLIFF
DEMO_STEPS = {"PointPush-v0": 60_000, CLIFF: 36_000}
DEMO_SEEDS = 4
DEMO_METHODS = ("td3", "her-future", "her-paper", "uvd")
CLIFFWALK_SEEDS = 3

STEPS = {
    "PointReach-v0": 40_000,
    CLIFF: 60_000,
    "PointPush-v0": 80_000,
    "PointPushSparse-v0": 120_000,
    "PointSlide-v0": 120_000,
    "PointSlideNoise-v0": 200_000,
}

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "td3": ("td3", {}),
    "her-future": ("her", {"strategy": "future"}),
    "her-final": ("her", {"strategy": "final"}),
    "her-episode": ("her", {"strategy": "episode"}),
    "her-paper": ("her", {"strategy": "paper"}),
    "uvd": ("uvd", {}),
    "uvd-balanced": ("uvd", {"td_goals": "balanced"}),
    "her-calm": ("her", {"action_penalty": 1.0}),
}
PRESET = {("uvd", "PointPushSparse-v0"): "precise"}  # where it is not the default
EXTRA = ("uvd-balanced", "her-calm")  # trained only where they are named
ONLY_CLIFF = ("her-paper",)  # the paper words it so for its Figure 1

# Seconds for 1000 steps of a seed on 2 CPU cores, and to compile a run: only to announce the time.
PACE = {"td3": 0.45, "her": 0.5, "uvd": 1.2}
COMPILE = 20.0
CLIFFWALK_SECONDS = 35.0
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
    settings: dict[str, Any] = field(default_factory=dict)
    """The algorithm's settings that are not its preset's."""
    preset: str = "default"

    def config(self) -> dict[str, Any]:
        """The configuration that its folder must have."""
        return make_config(self.algorithm, self.task, self.preset, self.run, self.settings, {})


def make_jobs(steps: dict[str, int], seeds: int, methods: Iterable[str]) -> list[Job]:
    """Every method on every task."""
    methods = list(methods)
    return [
        Job(
            f"{task}-{name}",
            METHODS[name][0],
            task,
            {"seeds": seeds, "steps": n},
            METHODS[name][1],
            PRESET.get((METHODS[name][0], task), "default"),
        )
        for task, n in steps.items()
        for name in methods
        if task == CLIFF or name not in ONLY_CLIFF
    ]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as one list of names, as a run's folder gives it back."""
    flat = json.loads(json.dumps(config))
    return {**flat.pop("run"), **flat.pop("settings"), **flat}


def _require_same(run: Run, config: dict[str, Any]) -> None:
    """Refuses a run of other settings or of another version: results must not be mixed."""
    have, want = _flat(run.config), _flat(config | {"uvd_version": __version__})
    for name in sorted(want.keys() | have.keys()):
        if have.get(name) != want.get(name):
            raise UserError(
                f"{run.path} was trained with {name} = {have.get(name)}, not {want.get(name)}: "
                "remove it, or choose another folder with --out"
            )


def complete(run: Run) -> bool:
    """Whether the run has come to its end: its last report is there, and the checkpoint of it."""
    rows = run.rows()
    if not rows or rows[-1]["step"] < run.config["run"]["steps"]:
        return False
    return (run.path / "checkpoints" / str(rows[-1]["step"])).is_dir()


def train_all(jobs: Sequence[Job], folder: Path, at_once: int = 1) -> list[Path]:
    """Trains what is not yet trained, `at_once` runs side by side; returns the runs' folders.

    On a CPU a run of small networks keeps about one core busy, so two at once take little longer
    than one. Each is a process of its own that does `uvd train --resume`.
    """
    configs = [job.config() for job in jobs]
    paths = [folder / job.name for job in jobs]
    for path, config in zip(paths, configs):
        if (path / "config.toml").exists():
            _require_same(Run.open(path), config)  # refused before hours are spent on the others
        else:
            Run.create(path, config)
    todo = [path for path in paths if not complete(Run.open(path))]
    costs = {p: PACE[j.algorithm] * j.run["steps"] for p, j in zip(paths, jobs)}
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
    command = [sys.executable, "-c", code + "sys.exit(main(sys.argv[1:]))"]
    command += ["train", "--resume", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
        end = process.wait()
    cores.put(core)
    return end


def seconds_left(jobs: Sequence[Job], folder: Path) -> float:
    """A rough guess of what `train_all` will take, `AT_ONCE` runs side by side."""
    total = 0.0
    for job in jobs:
        path, steps = folder / job.name, job.run["steps"]
        if (path / "config.toml").exists():
            rows = Run.open(path).rows()
            steps -= rows[-1]["step"] if rows else 0
        if steps > 0:
            total += COMPILE + PACE[job.algorithm] * job.run["seeds"] * steps / 1000
    return total / AT_ONCE


class Score(NamedTuple):
    """What a run came to, at its last report."""

    task: str
    algorithm: str
    label: str
    final: np.ndarray
    """Success at the final step, a number a seed."""
    ever: np.ndarray
    """Success at any step."""
    seconds: float
    target: float | None
    """Largest target over its bound in the whole run, where the algorithm reports it."""
    finite: bool
    """No metric of any report was anything but a number."""


def scores(paths: Sequence[Path]) -> list[Score]:
    """The results of runs."""
    runs = [Run.open(path) for path in paths]
    labels = figures.run_labels([run.config for run in runs])
    found = []
    for run, label in zip(runs, labels):
        rows = run.rows()
        lists = [value for row in rows for value in row.values() if isinstance(value, list)]
        targets = [x for row in rows for x in row.get("critic/target_over_bound_max", ())]
        last = {
            name: np.array(rows[-1][f"eval/success_{name}"], float) for name in ("final", "ever")
        }
        found.append(
            Score(
                figures.task_name(run.config),
                run.config["algorithm"],
                label,
                last["final"],
                last["ever"],
                rows[-1]["seconds"],
                max((math.inf if x is None else x for x in targets), default=None),
                all(x is not None for values in lists for x in values),
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
        console = console if console.is_terminal else Console(highlight=False, width=110)
        console.print(f"\n[bold]{self.title}[/bold]\n", table, "", sep="\n")


def _percent(found: statistics.Interval, sign: str = "") -> str:
    value, low, high = (100 * x for x in found)
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def tabulate(found: Sequence[Score]) -> Sheet:
    """Success of every method on every task, and over all tasks where a method has run on all."""
    header = (
        "task", "method", "final step [95 %]", "ever", "worst", "time, s", "max target", "finite",
    )  # fmt: skip

    def row(task: str, label: str, group: Sequence[Score]) -> tuple[str, ...]:
        final, ever = [s.final for s in group], [s.ever for s in group]
        targets = [s.target for s in group if s.target is not None]
        return (
            task,
            label,
            _percent(statistics.interval(final)),
            f"{100 * statistics.interval(ever).value:.1f}",
            f"{100 * np.min(final):.0f}",
            f"{sum(s.seconds for s in group):.0f}",
            f"{max(targets):.3f}" if targets else "–",
            "yes" if all(s.finite for s in group) else "NO",
        )

    rows = [row(s.task, s.label, [s]) for s in found]
    tasks = {s.task for s in found}
    for label in dict.fromkeys(s.label for s in found):
        own = [s for s in found if s.label == label]
        if len(tasks) > 2 and len(own) == len(tasks):
            rows.append(row("all tasks", label, own))
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
                gap = _percent(statistics.difference(ours.final, rival.final), "+")
                best = " (the best HER)" if place == 0 and len(rivals) > 1 else ""
                rows.append((task, f"{ours.label} − {rival.label}{best}", gap))
    return Sheet(
        "UVD less HER: success at the final step",
        ("task", "methods", "difference, points [95 %]"),
        rows,
    )


NOTE = """\
Success at the last report, over fixed evaluation episodes without exploration: at the final step,
at any step, and of the worst seed at the final step. Intervals: 95 %, bootstrap over seeds; with
few seeds they are somewhat too narrow. HER (paper): goals altered on every unsuccessful roll-out,
as the paper's section 3.1 words it. Max target: the critic's largest target in the whole run, as a
share of the bound that it must not exceed. Finite: every metric of every report is a number.
"""


def _write_summary(title: str, out: Path, paths: Sequence[Path], *more: str) -> None:
    """summary.md with both tables and what else there is to say; the first table is printed."""
    found = scores(paths)
    table = tabulate(found)
    parts = [f"# {title}\n", table.markdown(), NOTE, differences(found).markdown(), *more]
    (out / "summary.md").write_text("\n".join(parts), encoding="utf-8")
    table.show()
    print(f"tables and figures: {out}", flush=True)


def _minutes(seconds: float) -> str:
    return f"about {max(1, round(seconds / 60)):,} min on 2 CPU cores"


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}") from error


def demo(out: Path) -> None:
    """The cliff walk's bias in numbers, then TD3, HER and UVD on two point tasks."""
    _make_folder(out)
    jobs = make_jobs(DEMO_STEPS, DEMO_SEEDS, DEMO_METHODS)
    left = CLIFFWALK_SECONDS + seconds_left(jobs, out / "runs")
    print(
        f"The cliff walk against exact values, then {len(jobs)} runs of {DEMO_SEEDS} seeds on "
        f"{' and '.join(DEMO_STEPS)}, into {out}: {_minutes(left)}",
        flush=True,
    )
    rows = cliffwalk.measure(range(CLIFFWALK_SEEDS))
    cliffwalk.write_table(rows, out / "cliffwalk.md")
    cliffwalk.draw_bias(rows, out / "bias.png")
    cliffwalk.draw_figure1(out / "figure1.png")
    print(f"cliff walk: {out / 'cliffwalk.md'}, figure1.png, bias.png", flush=True)

    paths = train_all(jobs, out / "runs", AT_ONCE)
    on_cliff = [path for job, path in zip(jobs, paths) if job.task == CLIFF]
    figures.draw_curves(paths, out / "curves.png")
    figures.draw_paths(on_cliff, out / "paths.png")
    figures.draw_density(on_cliff[-1], out / "density.png")
    _write_summary(
        "The demo", out, paths,
        "## Figures\n",
        "- curves.png: learning curves, interquartile mean and 95 % bands",
        "- paths.png: the evaluation episodes of PointCliff, over the pit",
        "- density.png: from one state, what was reached, the learned density and value over goals",
        "- figure1.png, bias.png: the cliff walk, where exact values are known\n",
        "## The cliff walk: bias against exact values\n",
        (out / "cliffwalk.md").read_text(encoding="utf-8"),
    )  # fmt: skip


def reproduce(
    out: Path,
    seeds: int,
    tasks: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    at_once: int = AT_ONCE,
) -> None:
    """All methods on the point tasks (or those named): the paper's Figure 2 in miniature.

    Beside the figures lies, for each run, its configuration and its metrics of every seed;
    checkpoints and episodes stay in `runs/`.
    """
    for task in tasks:
        if task not in STEPS:
            raise nearest(task, STEPS, "point task")
    for method in methods:
        if method not in METHODS:
            raise nearest(method, METHODS, "method")
    steps = {task: n for task, n in STEPS.items() if not tasks or task in tasks}
    if at_once < 1:
        raise UserError(f"jobs = {at_once} must be at least 1")
    jobs = make_jobs(steps, seeds, methods or [m for m in METHODS if m not in EXTRA])
    _make_folder(out)
    print(
        f"{len(jobs)} runs of {seeds} seeds on {', '.join(steps)}, into {out}: "
        f"{_minutes(seconds_left(jobs, out / 'runs'))}",
        flush=True,
    )
    paths = train_all(jobs, out / "runs", at_once)
    for path in paths:
        (out / path.name).mkdir(exist_ok=True)
        for name in ("config.toml", "metrics.jsonl"):
            shutil.copyfile(path / name, out / path.name / name)
    figures.draw_curves(paths, out / "curves.png")
    if CLIFF in steps:
        figures.draw_paths(
            [path for job, path in zip(jobs, paths) if job.task == CLIFF], out / "paths.png"
        )
    _write_summary("Figure 2 in miniature", out, paths)
