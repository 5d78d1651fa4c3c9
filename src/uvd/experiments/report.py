"""A page of runs: one HTML file that opens without a network (docs/report.md says what it shows).

Every number on it is computed here; report.html only shows them.
"""

import base64
import json
import math
import mimetypes
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from plotly.offline import get_plotlyjs

from uvd import __version__
from uvd.core.errors import UserError, one_line
from uvd.experiments import pools, statistics
from uvd.experiments.curves import AXIS_NAMES, LOG_RATIO, label_styles
from uvd.experiments.pools import Curve
from uvd.runs import Run
from uvd.runs.files import replace_file
from uvd.study.runner import read_plan

POINTS = 200  # of a curve, at most
RESAMPLES = 1000  # of a curve
REACH = 0.9  # of the way from the worst first report of a task to its best last one
PROFILE = np.linspace(0, 1, 51)  # success rates of the performance profile
MEDIA = ("*.png", "*.jpg", "*.gif", "*.svg", "*.webp", "*.mp4", "*.webm")
MEDIA_BYTES = 6_000_000  # embedded at most, in all; what is more is named


class Read(NamedTuple):
    """A run's curve, and what it is compared with."""

    run: Run
    curve: Curve
    metric: str
    seeds: range

    @property
    def finished(self) -> bool:
        return self.curve.steps[-1] >= self.run.config["run"]["steps"]


def read_run(path: Path) -> Read:
    """A run's returns, or its success at the final step. UserError if there is nothing to draw."""
    try:
        run = Run.open(path)
        rows, seeds = run.rows(), pools.seeds_of(run)
        rewarded = any("eval/return" in row for row in rows)
        metric = "eval/return" if rewarded else "eval/success_final"
        curve = pools.read_curve(run, metric, rows)
        pools.settings_of(run.config), pools.task_name(run), run.config["algorithm"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    if len(curve.values) != len(seeds) or not np.all(np.diff(curve.steps) > 0):
        raise UserError(f"{path} cannot be read: its metrics do not fit its config.toml")
    return Read(run, curve, metric, seeds)


def study_notes(folder: Path) -> list[str]:
    """If the folder is a study's: what failed of it, and how much is still to begin."""
    if not (folder / "study.json").exists():
        return []
    try:
        trials = [folder / name for name in read_plan(folder)]
    except UserError as error:
        return [str(error)]
    errors = [path / "error.txt" for path in trials if (path / "error.txt").exists()]
    waiting = sum(not (path / "config.toml").exists() for path in trials)
    notes = [f"failed: {error.parent}: {error.read_text('utf-8').strip()}" for error in errors]
    return notes + [f"{waiting} of {len(trials)} trials of {folder} wait"] * bool(waiting)


def write_report(folders: Sequence[Path], out: Path) -> list[str]:
    """Writes the page of all runs in some folders; returns what was left out, a line each."""
    found: list[Read] = []
    notes = [note for folder in folders for note in study_notes(folder)]
    for path in pools.find_runs(folders):
        try:
            found.append(read_run(path))
        except UserError as error:
            notes.append(f"left out: {error}")
    if not found:
        raise UserError(f"no run can be drawn; the first: {notes[0].removeprefix('left out: ')}")
    data = make_data(found, notes)
    data["title"] = ", ".join(folder.resolve().name for folder in folders)
    data["media"] = read_media([*folders, *(r.run.path for r in found)])
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    page = (files("uvd.experiments") / "report.html").read_text("utf-8")
    # In a script, only "<" could end it.
    page = page.replace("{{data}}", text.replace("<", "\\u003c"))
    replace_file(out, page.replace("{{plotly}}", get_plotlyjs()).encode())
    return notes


def make_data(found: Sequence[Read], notes: list[str]) -> dict[str, Any]:
    """Everything that the page shows but pictures; adds to `notes` what it does not."""
    labels = pools.label_runs(r.run for r in found)
    groups: dict[tuple[str, str], dict[str, list[Read]]] = {}  # by task and metric, then by method
    for read in found:
        task = groups.setdefault((pools.task_name(read.run), read.metric), {})
        task.setdefault(labels[read.run.path], []).append(read)
    styles = label_styles({labels[r.run.path]: r.run.config["algorithm"] for r in found})
    tasks = [_task(name, metric, group, notes) for (name, metric), group in groups.items()]
    return {
        "version": __version__,
        "runs": len(found),
        "notes": notes,
        "methods": {label: list(styles[label]) for label in sorted(styles)},
        "tasks": tasks,
        **_over_tasks([task for task in tasks if task["percent"]]),
    }


def _task(
    name: str, metric: str, groups: Mapping[str, list[Read]], notes: list[str]
) -> dict[str, Any]:
    """A task's methods, and what they are compared by."""
    chosen = {label: _choose(label, name, group, notes) for label, group in groups.items()}
    curves = {label: pools.pool([r.curve for r in group]) for label, group in chosen.items()}
    finals = {label: curve.values[:, -1] for label, curve in curves.items()}
    centres = {label: float(statistics.iqm(x)) for label, x in finals.items()}
    # Of equal scores the one whose worst seed is best.
    finite = [label for label in sorted(centres) if math.isfinite(centres[label])] or [*centres]
    best = max(finite, key=lambda label: (round(centres[label], 6), finals[label].min()))
    firsts = [float(statistics.iqm(curve.values[:, 0])) for curve in curves.values()]
    low = min((x for x in firsts if math.isfinite(x)), default=0.0)
    threshold = low + REACH * (centres[best] - low)
    ends = [int(curve.steps[-1]) for curve in curves.values()]
    common, equal = min(ends), min(ends) == max(ends)
    rows = []
    for label in sorted(chosen):
        group, curve, final = chosen[label], curves[label], finals[label]
        row = _row(label, group, curve, threshold)
        if not equal and curve.steps[0] <= common:
            place = np.searchsorted(curve.steps, common, "right") - 1
            row["common"] = _interval(statistics.interval(curve.values[:, place]))
        if label != best:
            row["beaten"] = _interval(statistics.improvement(finals[best], final))
        row["best"] = len(chosen) > 1 and math.isclose(centres[label], centres[best], rel_tol=1e-6)
        rows.append(row)
    return {
        "name": name,
        "metric": AXIS_NAMES[metric],
        "percent": metric != "eval/return",
        "threshold": _number(threshold),
        "common": None if equal else common,
        "log": max(ends) >= LOG_RATIO * common,
        "rows": rows,
    }


def _choose(label: str, task: str, group: Sequence[Read], notes: list[str]) -> list[Read]:
    """Of a method's runs those that are finished, if any are; each seed once."""
    finished = [r for r in group if r.finished]
    left = [r.run.path for r in group if finished and not r.finished]
    notes += [f"left out: {path} is not finished, other seeds of {label} are" for path in left]
    if not finished:
        notes.append(f"not finished: {label} on {task}, drawn as far as it is")
        begin = max(r.curve.steps[0] for r in group)  # a run that ends before it has nothing shared
        finished = [r for r in group if r.curve.steps[-1] >= begin]
    chosen: list[Read] = []
    taken: dict[int, Path] = {}
    for read in finished:
        if twice := [seed for seed in read.seeds if seed in taken]:
            first = taken[twice[0]]
            notes.append(f"left out: {read.run.path} has seed {twice[0]}, as {first} has")
        else:
            taken |= dict.fromkeys(read.seeds, read.run.path)
            chosen.append(read)
    return chosen


def _row(label: str, group: Sequence[Read], curve: Curve, threshold: float) -> dict[str, Any]:
    """A method on a task: its score, its curve, its seeds, how it was trained."""
    shown = np.unique(np.linspace(0, len(curve.steps) - 1, POINTS).round().astype(int))
    middle, low, high = statistics.curve(curve.values[:, shown], RESAMPLES)
    reach = {kind: _times(group, kind, threshold) for kind in ("steps", "seconds")}
    names = [(seed, str(r.run.path)) for r in group for seed in r.seeds]
    final, config = curve.values[:, -1], group[0].run.config
    usual = pools.usual(config["algorithm"], config["task"], config["preset"])
    own = pools.settings_of(config)
    del own["steps"], own["uvd"]  # they are shown by themselves
    return {
        "label": label,
        "final": _interval(statistics.interval(final)),
        "steps": int(curve.steps[-1]),
        "seconds": _number(curve.seconds[-1]),
        "seeds": [[*n, _number(x), _number(t)] for n, x, t in zip(names, final, reach["steps"])],
        "reached": int(np.isfinite(reach["steps"]).sum()),
        "reach": {kind: _interval(statistics.interval(x)) for kind, x in reach.items()},
        "x": curve.steps[shown].tolist(),
        "t": _numbers(curve.seconds[shown]),
        "y": _numbers(middle),
        "low": _numbers(low),
        "high": _numbers(high),
        "each": [_numbers(values) for values in curve.values[:, shown]],
        "settings": [[n, x, usual.get(n)] for n, x in own.items() if x != usual.get(n)],
        "preset": config["preset"],
        "version": config["uvd_version"],
        "commands": pools.commands(group[0].run, (seed for seed, _ in names)),
    }


def _times(group: Sequence[Read], kind: str, threshold: float) -> np.ndarray:
    """When each seed first reaches the threshold, in steps or seconds."""
    curves = [(getattr(r.curve, kind), r.curve.values, threshold) for r in group]
    return np.concatenate([statistics.time_to_threshold(*curve) for curve in curves])


def _over_tasks(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Success over all tasks, of the methods that ran on each of them."""
    scores: dict[str, list[np.ndarray]] = {}
    for task in tasks:
        for row in task["rows"]:
            final = np.array([seed[2] for seed in row["seeds"]], float)
            scores.setdefault(row["label"], []).append(final)
    whole = {label: each for label, each in sorted(scores.items()) if len(each) == len(tasks)}
    equal = {label: each for label, each in whole.items() if len({*map(len, each)}) == 1}
    profiles = {label: statistics.profile(x, PROFILE, RESAMPLES) for label, x in whole.items()}
    return {
        "over": {label: _interval(statistics.interval(x)) for label, x in equal.items()},
        "grid": _numbers(PROFILE),
        "profile": {k: [_numbers(x) for x in p] for k, p in profiles.items()},
    }


def read_media(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Pictures and films in the folders, the small ones embedded."""
    paths = {
        p.resolve(): p for folder in folders for kind in MEDIA for p in sorted(folder.glob(kind))
    }
    media, left = [], MEDIA_BYTES
    for path in sorted(paths.values(), key=lambda p: p.stat().st_size):
        content = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0]
        item: dict[str, Any] = {"name": str(path), "kind": kind, "bytes": len(content)}
        if len(content) <= left:
            left -= len(content)
            item["src"] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        media.append(item)
    return sorted(media, key=lambda item: item["name"])


def _number(x: float) -> float | None:
    """For JSON, which has no infinity and no NaN; six digits."""
    return float(f"{x:.6g}") if math.isfinite(x) else None


def _numbers(values: ArrayLike) -> list[float | None]:
    """The same of a curve; four digits, as a picture needs."""
    return [float(f"{x:.4g}") if math.isfinite(x) else None for x in np.asarray(values)]


def _interval(found: statistics.Interval) -> list[float | None]:
    return [_number(float(x)) for x in found]
