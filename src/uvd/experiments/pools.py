"""Runs that differ only in their seeds, taken together; what such a method is called, and the
command that repeats it."""

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uvd import __version__
from uvd.core.config import flatten, require
from uvd.core.errors import UserError, nearest
from uvd.demos.select import DemoSettings
from uvd.runs import Run
from uvd.settings import RunSettings, build, presets, to_file
from uvd.tasks import TASKS

# Settings that change neither what is learned nor how it is scored.
NEUTRAL = ("seeds", "first_seed", "eval_every", "workers", "save_seconds", "episode_seconds")


class Curve(NamedTuple):
    """A metric over a run."""

    steps: np.ndarray
    values: np.ndarray  # [seeds, reports]
    seconds: np.ndarray


def read_curve(run: Run, metric: str, rows: Sequence[Mapping[str, Any]] | None = None) -> Curve:
    """The reports that have the metric; `rows` are the run's, if they are read already."""
    rows = run.rows() if rows is None else rows
    require(rows, f"{run.path} has no reports yet; go on with: uvd train --resume {run.path}")
    having = [row for row in rows if isinstance(row.get(metric), list)]
    if not having:
        known = {name for row in rows for name, value in row.items() if isinstance(value, list)}
        raise nearest(metric, known, f"metric of {run.path}")
    # A value that was not finite is None in the file and NaN here.
    values = np.array([row[metric] for row in having], float).T
    steps, seconds = (np.array([row[name] for row in having]) for name in ("step", "seconds"))
    return Curve(steps, values, seconds)


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """All run folders in some folders; the small files beside `runs/` count once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: name a run, or a folder that holds runs")
        for config in sorted(folder.rglob("config.toml")):
            path = config.parent
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            small = path.parents[1] / path.name / config.name
            copied = path.parent.name == "runs" and small.exists()
            if not hidden and not copied:
                found.setdefault(path.resolve(), path)
    names = ", ".join(map(str, folders))
    require(found, f"{names} holds no runs: a run's folder has a config.toml")
    return list(found.values())


def pool(curves: Sequence[Curve]) -> Curve:
    """All seeds of some runs over their common range, at the reports of the run with the fewest."""
    steps = min((curve.steps for curve in curves), key=len)
    first, last = (f(c.steps[end] for c in curves) for f, end in ((max, 0), (min, -1)))
    require(first <= last, f"runs of one method end at step {last} and begin at step {first}")
    inside = (first <= steps) & (steps <= last)
    steps = steps[inside] if inside.any() else np.array([last])
    values = [np.interp(steps, c.steps, seed) for c in curves for seed in c.values]
    seconds = np.mean([np.interp(steps, c.steps, c.seconds) for c in curves], 0)
    return Curve(steps, np.array(values), seconds)


def task_name(run: Run) -> str:
    """A run's task, with those of its settings that are not its defaults."""
    settings = run.config.get("task_settings", {})
    changed = ", ".join(f"{name} {value}" for name, value in settings.items())
    return run.config["task"] + (f" ({changed})" if changed else "")


def seeds_of(run: Run) -> range:
    """A run's seeds."""
    first = run.config["run"].get("first_seed", 0)
    return range(first, first + run.config["run"]["seeds"])


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the task and the seeds that a run's result depends on, by flat names."""
    flat = {**config["run"], **config["settings"], **config.get("demos", {})}
    if digest := flat.pop("sha256", ""):  # files of one name may hold different demonstrations
        flat["demos"] = f"{Path(flat['demos']).name} ({digest[:6]})"
    flat["uvd"] = ".".join(config.get("uvd_version", __version__).split(".")[:2])
    return {name: value for name, value in flat.items() if name not in NEUTRAL}


@lru_cache
def usual(algorithm: str, task: str, preset: str) -> Mapping[str, Any]:
    """The same of a run to which no settings are given; empty if this version does not know it."""
    try:
        config = build(algorithm, task, preset)
    except UserError:
        return {}
    demos = {name: x for name, x in asdict(DemoSettings()).items() if x is not None}
    return settings_of({**json.loads(json.dumps(to_file(config))), "demos": demos})


def label_runs(runs: Iterable[Run]) -> dict[Path, str]:
    """Each run's algorithm, and as few of its settings as tell it from others of it on a task.

    Two runs on a task have the same label if they differ only in their seeds.
    """
    groups: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        groups[run.config["algorithm"]][task_name(run)].append(run)
    labels = {}
    for algorithm, tasks in groups.items():
        telling = _telling([[settings_of(run.config) for run in own] for own in tasks.values()])
        for own in tasks.values():
            # Beside several presets, the first in the algorithm's list is the usual one.
            named = {run.config["preset"] for run in own}
            preset = next((p for p in presets(algorithm) if p in named), "")
            normal = usual(algorithm, own[0].config["task"], preset)
            for run in own:
                settings = settings_of(run.config)
                unusual = [name for name in telling if settings.get(name) != normal.get(name)]
                text = ", ".join(f"{name}={_text(settings.get(name))}" for name in unusual)
                labels[run.path] = f"{algorithm.upper()} {text}".strip()
    return labels


def _telling(groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Names of settings that tell all different settings of each group apart."""

    def kinds(names: Iterable[str]) -> list[int]:
        return [len({repr([s.get(name) for name in names]) for s in group}) for group in groups]

    everything = list(dict.fromkeys(name for group in groups for s in group for name in s))
    wanted = kinds(everything)
    names = [name for name in everything if kinds([name]) != [1] * len(groups)]
    # Budgets and numbers go first: a choice says more of a method.
    budget = flatten(RunSettings())
    values = {name: next(s[name] for g in groups for s in g if name in s) for name in names}
    for name in sorted(names, key=lambda n: (n not in budget, isinstance(values[n], str))):
        if kinds(rest := [n for n in names if n != name]) == wanted:
            names = rest
    return names


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def commands(run: Run, seeds: Iterable[int]) -> list[str]:
    """What trains these seeds again: a command for each range of seeds without gaps."""
    config = run.config
    have = {**config["run"], **config["settings"], **config.get("demos", {})}
    normal = usual(config["algorithm"], config["task"], config["preset"])
    if have.get("eval_every") == have["steps"] / 20:
        del have["eval_every"]
    known = {*normal, "eval_every", "demos", "trajectories", "offset"}
    given = {n: x for n, x in have.items() if n in known and x != normal.get(n) and n != "steps"}
    words = ["uvd", "train", config["algorithm"], config["task"]]
    if config["preset"] != "default" or config["task"] not in TASKS:
        words += ["--preset", config["preset"]]
    for name, value in {"steps": have["steps"], **given}.items():
        flag = ("no-" if value is False else "") + name.replace("_", "-")
        values = value if isinstance(value, list) else [] if isinstance(value, bool) else [value]
        words += [f"--{flag}", *map(str, values)]
    if task_settings := config.get("task_settings"):
        words += ["--task-settings", *(f"{name}={value}" for name, value in task_settings.items())]
    ordered = np.array(sorted(seeds))
    ranges = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return [
        shlex.join([*words, "--seeds", str(len(r))] + ["--first-seed", str(r[0])] * bool(r[0]))
        for r in ranges
    ]
