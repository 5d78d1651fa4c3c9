"""Tables of runs: success, differences, metrics over time, and whether the numbers are sound."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uvd.experiments import statistics
from uvd.experiments.curves import method_name, task_name
from uvd.runs import Run

HEALTH = ("max target", "finite")  # the columns of `health`


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
        """On the terminal."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows)]
        print(f"\n{self.title}\n")
        for cells in (self.header, *self.rows):
            padded = (
                c.rjust(w) if i > 1 else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths))
            )
            print("  ".join(padded))
        print()


def write_summary(title: str, out: Path, *parts: str) -> None:
    """summary.md: tables and what else there is to say."""
    (out / "summary.md").write_text("\n".join([f"# {title}\n", *parts]), encoding="utf-8")


def health(rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Over all reports: the largest target over its bound, and whether all numbers are finite."""
    lists = [(name, x) for row in rows for name, x in row.items() if isinstance(x, list)]
    targets = [y for name, x in lists if name == "critic/target_over_bound_max" for y in x]
    largest = max((math.inf if y is None else y for y in targets), default=None)
    finite = all(None not in x for _, x in lists)
    return "–" if largest is None else f"{largest:.3f}", "yes" if finite else "NO"


class Success(NamedTuple):
    """What runs with goals that differ only in their seeds came to, at their last reports."""

    task: str
    algorithm: str
    label: str
    rows: list[dict[str, Any]]
    final: np.ndarray  # success at the final step, a number a seed
    ever: np.ndarray  # success at any step
    seconds: float


def read_success(paths: Sequence[Path]) -> list[Success]:
    """The results of runs; those of one method on one task together."""
    found: dict[tuple[str, str], Success] = {}
    for run in map(Run.open, paths):
        rows, key = run.rows(), (task_name(run), method_name(run))
        seconds = rows[-1]["seconds"]
        both = [np.array(rows[-1][f"eval/success_{name}"], float) for name in ("final", "ever")]
        if other := found.get(key):
            rows, seconds = [*other.rows, *rows], other.seconds + seconds
            both = [np.append(a, b) for a, b in zip((other.final, other.ever), both)]
        final, ever = both
        found[key] = Success(key[0], run.config["algorithm"], key[1], rows, final, ever, seconds)
    return list(found.values())


def _percent(found: statistics.Interval, sign: str = "") -> str:
    value, low, high = (100 * x for x in found)
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def tabulate_success(found: Sequence[Success]) -> Sheet:
    """Success of every method on every task, and over all tasks where a method has run on all."""

    def row(task: str, group: Sequence[Success]) -> tuple[str, ...]:
        final, ever = [s.final for s in group], [s.ever for s in group]
        intervals = [_percent(statistics.interval(x)) for x in (final, ever)]
        seconds = sum(s.seconds for s in group)
        numbers = f"{100 * np.min(final):.0f}", f"{seconds:.0f}"
        return task, group[0].label, *intervals, *numbers, *health(r for s in group for r in s.rows)

    rows = [row(s.task, [s]) for s in found]
    tasks = {s.task for s in found}
    for label in dict.fromkeys(s.label for s in found):
        own = [s for s in found if s.label == label]
        if len(tasks) > 2 and len(own) == len(tasks) and len({len(s.final) for s in own}) == 1:
            rows.append(row("all tasks", own))
    header = ("task", "method", "final step [95 %]", "ever [95 %]", "worst", "time, s", *HEALTH)
    return Sheet("Success in %, interquartile mean over seeds", header, rows)


def tabulate_differences(found: Sequence[Success]) -> Sheet:
    """UVD less each HER, the best HER of a task first and marked."""
    rows = []
    her = [s for s in found if s.algorithm == "her"]
    her.sort(key=lambda s: -float(statistics.iqm(s.final)))
    for ours in (s for s in found if s.algorithm == "uvd"):
        here = [s for s in her if s.task == ours.task]
        for place, theirs in enumerate(here):
            best = " (the best HER)" if place == 0 and len(here) > 1 else ""
            final = _percent(statistics.difference(ours.final, theirs.final), "+")
            ever = _percent(statistics.difference(ours.ever, theirs.ever), "+")
            rows.append((ours.task, f"{ours.label} − {theirs.label}{best}", final, ever))
    header = ("task", "methods", "final step [95 %]", "ever [95 %]")
    return Sheet("UVD less HER: difference in success, points", header, rows)


NOTE = """\
Success at the last report, over fixed evaluation episodes without exploration: at the final step,
at any step, and of the worst seed at the final step. Intervals: 95 %, bootstrap over seeds, for
these episodes; they are too narrow with few seeds, of three or fewer hardly more than their spread.
Max target: the critic's largest target in the whole run, as a share of the bound that it must not
exceed. Finite: every metric of every report is a number.
"""
