"""Figures of numbers: learning curves, metrics over time, returns of demonstrations."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.demos.memory import Demos
from uvd.experiments import statistics
from uvd.experiments.pools import Curve, label_runs, pool, read_curve, task_name
from uvd.runs import Run
from uvd.study.file import task_folder

# Okabe and Ito's palette, which colour-blind readers tell apart. An algorithm keeps its colours in
# every figure: the first is its own, the others are for variants.
COLORS: dict[str, tuple[str, ...]] = {
    "td3": ("#777777", "#aaaaaa", "#444444", "#c4c4c4"),
    "her": ("#e69f00", "#d55e00", "#cc79a7", "#8c6d1f"),
    "usher": ("#7b8e1c", "#b5c45a", "#4b570f", "#98a06e"),
    "uvd": ("#0072b2", "#56b4e9", "#003f66", "#5e7fa8"),
    "vdi": ("#009e73", "#66c2a5", "#00523b", "#8fb8a8"),
    "kdi": ("#d63f94", "#7a1f52", "#eb9fc8", "#a0527f"),
    "gail": ("#d55e00", "#f0a36b", "#8a3d00", "#c48a64"),
    "dac": ("#8a5fbf", "#bfa3de", "#553a78", "#9c8ab0"),
    "bc": ("#000000", "#555555", "#888888", "#b0b0b0"),
}
OTHERS = ("#cc79a7", "#b3a000", "#a0522d", "#4682b4")  # algorithms without colours of their own
DASHES = ("-", "--", "-.", ":")
# The place of a method among the colours of its algorithm, where it is not by count.
PLACES = {
    **dict.fromkeys(COLORS, 0), "her-future": 0, "her-paper": 1, "her-final": 2, "her-episode": 3,
    "kdi-changes": 1,
}  # fmt: skip
COLUMNS = 2  # panels beside each other: readable at the width of a page
LOG_RATIO = 10  # steps are drawn by their logarithm where one run has so many times another's
AXIS_NAMES = {
    "eval/success_final": "success at the final step",
    "eval/success_ever": "success at any step",
    "eval/return": "return",
}


def method_name(run: Run) -> str:
    """The method of a trial: its folder is TASK-METHOD, and perhaps its first seed or an amount."""
    start = task_folder(run.config["task"], run.config.get("task_settings", {}))
    name = run.path.name.removeprefix(f"{start}-")
    return re.sub(r"(-first_seed\d+)?(-\d+x\d+)?$", "", name).upper()


class Style(NamedTuple):
    """How a run is drawn."""

    color: str
    dashes: str


def label_styles(algorithms: Mapping[str, str]) -> dict[str, Style]:
    """A colour and a line for each label, by its algorithm; a method looks the same everywhere."""
    styles: dict[str, Style] = {}
    # "HER strategy=paper" and "HER-PAPER" are one method.
    keys = {label: re.sub(r" (strategy|match)=", "-", label.lower()) for label in algorithms}
    for label in sorted(algorithms, key=lambda label: (keys[label] not in PLACES, label)):
        palette = COLORS.get(algorithms[label], OTHERS)
        place = sum(style.color in palette for style in styles.values())
        place = PLACES.get(keys[label], place)
        color = palette[place % len(palette)]
        # The first line that no other label of this colour has.
        choices = [Style(color, DASHES[(place + i) % len(DASHES)]) for i in range(len(DASHES))]
        styles[label] = next((s for s in choices if s not in styles.values()), choices[0])
    return styles


def _reports(run: Run, metric: str) -> bool:
    return any(isinstance(row.get(metric), list) for row in run.rows())


def main_metric(runs: Sequence[Path]) -> str:
    """What to draw of runs if nothing is asked for: the return where none of them has goals."""
    rewarded = [_reports(Run.open(path), "eval/return") for path in runs]
    if len(set(rewarded)) > 1:
        goals, rewards = (runs[rewarded.index(which)] for which in (False, True))
        raise UserError(
            f"{goals} has goals and {rewards} has rewards: draw them apart, or --metric"
        )
    return "eval/return" if all(rewarded) else "eval/success_final"


def draw_curves(
    runs: Sequence[Path],
    out: Path,
    *metrics: str,
    panel: Callable[[Run], str] = task_name,
    label: Callable[[Run], str] | None = None,
) -> None:
    """Learning curves: interquartile mean over seeds, bootstrap 95 % bands.

    Runs of one `panel` share it, and those of one `label` in it share a curve: runs that differ
    only in their seeds, if no label is given. A cross marks a curve that ends before others. Of
    several metrics each has a row of panels; those that no run reports are left out.
    """
    opened, alone = [Run.open(path) for path in dict.fromkeys(runs)], len(metrics) < 2
    metrics = metrics or ("eval/success_final",)
    if not alone:
        metrics = tuple(m for m in metrics if any(_reports(run, m) for run in opened))
        opened = [run for run in opened if any(_reports(run, m) for m in metrics)]
    require(opened, "there are no runs to draw")
    labels = {run.path: label(run) for run in opened} if label else label_runs(opened)
    styles = label_styles({labels[run.path]: run.config["algorithm"] for run in opened})
    titles = list(dict.fromkeys(map(panel, opened)))
    panels = [(metric, title) for metric in metrics for title in titles]
    columns = min(len(titles), COLUMNS if alone else len(titles))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(0.6 + 4.2 * columns, 0.8 + 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for place, (ax, (metric, title)) in enumerate(zip(axes.flat, panels)):
        labelled: dict[str, list[Curve]] = defaultdict(list)
        for run in opened:
            if panel(run) == title and (alone or _reports(run, metric)):
                labelled[labels[run.path]].append(read_curve(run, metric))
        curves = {name: pool(own) for name, own in labelled.items()}
        draw_panel(ax, title if place < columns or alone else "", curves, styles)
        if metric.startswith("eval/success"):
            ax.set(ylim=(-0.02, 1.02))
        if place % columns == 0:
            ax.set_ylabel(AXIS_NAMES.get(metric, metric))
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    lines = {name: Line2D([], [], color=s.color, ls=s.dashes) for name, s in styles.items()}
    legend_below(figure, lines, max(1, 50 * columns // (max(map(len, lines)) + 8)))
    save(figure, out)


def draw_panel(
    ax: Axes, title: str, curves: Mapping[str, Curve], styles: Mapping[str, Style]
) -> None:
    """Draws curves by label; the title names how many seeds they have."""
    plain(ax)
    if not curves:
        ax.set(title=title, xticks=[], yticks=[])
        ax.text(0.5, 0.5, "not reported", transform=ax.transAxes, ha="center", color="0.5")
        return
    ends, seeds = zip(*((steps[-1], len(values)) for steps, values, _ in curves.values()))
    for label, (steps, values, _) in curves.items():
        middle, low, high = statistics.curve(values)
        color, dashes = styles[label]
        ax.fill_between(steps / 1000, low, high, color=color, alpha=0.18, lw=0)
        ax.plot(steps / 1000, middle, dashes, color=color, lw=1.8)
        if steps[-1] < max(ends):  # its end is not that of the figure
            ax.plot(steps[-1] / 1000, np.atleast_1d(middle)[-1], "X", color=color, ms=6)
    ax.set_xlabel("environment steps, thousands")
    if max(ends) >= LOG_RATIO * min(ends):  # short runs are to be seen, too
        ax.set_xscale("log")
    else:
        ax.set_xlim(0, None)
    if title:
        many = "–".join(str(n) for n in sorted({min(seeds), max(seeds)}))
        ax.set_title(f"{title}, {many} seed{'' if many == '1' else 's'}", fontsize=11)


def scores_over(
    runs: Sequence[Run], setting: str, usual: float, metric: str
) -> dict[str, dict[float, list[float]]]:
    """Last reports of all seeds by method and by the value of a setting of the task.

    Of a task that some runs have with that setting, those without it stand at its usual value.
    Methods with one value have no line and are left out.
    """
    tasks = {run.config["task"] for run in runs if setting in run.config["task_settings"]}
    found: dict[str, dict[float, list[float]]] = {}
    for run in (run for run in runs if run.config["task"] in tasks):
        value = float(run.config["task_settings"].get(setting, usual))
        found.setdefault(method_name(run), {}).setdefault(value, []).extend(run.rows()[-1][metric])
    return {name: dict(sorted(at.items())) for name, at in found.items() if len(at) > 1}


def draw_over(runs: Sequence[Path], out: Path, setting: str, usual: float) -> None:
    """Success at the last report over a setting of the task, a line a method."""
    opened = [Run.open(path) for path in runs]
    metrics = ("eval/success_final", "eval/success_ever")
    scores = [scores_over(opened, setting, usual, metric) for metric in metrics]
    if not scores[0]:
        return
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    styles = label_styles({method_name(r): r.config["algorithm"] for r in opened})
    for ax, metric, by_method in zip(figure.subplots(1, 2), metrics, scores):
        plain(ax)
        lines = {}
        for label, at in by_method.items():
            middle, low, high = np.array([statistics.interval(own) for own in at.values()], float).T
            color, dashes = styles[label]
            (lines[label],) = ax.plot([*at], middle, dashes, marker="o", ms=4, color=color)
            ax.vlines([*at], low, high, color=color, lw=4, alpha=0.25)
        levels = sorted({level for at in by_method.values() for level in at})
        ax.set(xticks=levels, xticklabels=[f"{level:g}" for level in levels])
        ax.set(xlabel=setting.replace("_", " "), ylabel=AXIS_NAMES[metric], ylim=(0, 1.02))
    legend_below(figure, lines, len(lines))
    save(figure, out)


def plain(ax: Axes) -> None:
    """A light grid and no frame above and to the right."""
    ax.grid(color="0.92")
    ax.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, lines: Mapping[str, Any], columns: int) -> None:
    """One legend for all panels, in the order of its labels."""
    labels = sorted(lines)
    handles, ncols = [lines[label] for label in labels], min(len(labels), columns) or 1
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False)


def save(figure: Figure, out: Path) -> None:
    """Writes a figure, its folder included."""
    # Without a suffix Matplotlib would choose another name.
    require(out.suffix, f"cannot write {out}: give the picture a suffix, such as .png")
    with refused(f"cannot write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=160, bbox_inches="tight")


def draw_demos(demos: Demos, out: Path, features: int = 6, steps: int = 200) -> None:
    """Returns (lengths where there are no rewards), and a few features over time."""
    returns = demos.returns()
    bars = [t.steps for t in demos.trajectories] if returns is None else returns
    chosen = np.unique(np.linspace(0, demos.obs_dim - 1, features).astype(int))
    figure = Figure(figsize=(11, 2.6 + 1.1 * len(chosen)), layout="constrained")
    heights = [2] + [1] * len(chosen)
    top, *rest = figure.subplots(len(heights), height_ratios=heights)
    top.bar(np.arange(len(bars)), bars, color=OTHERS[0])
    top.xaxis.set_major_locator(MaxNLocator(integer=True))
    top.set_xlim(-0.6, max(len(bars), 5) - 0.4)
    top.set(xlabel="trajectory", ylabel="steps" if returns is None else "return")
    top.set_title(Path(demos.name).name)
    first = demos.trajectories[:3]
    for ax, feature in zip(rest, chosen):
        for i, (t, color) in enumerate(zip(first, OTHERS)):
            ax.plot(t.obs[:steps, feature], color=color, linewidth=0.8, label=f"trajectory {i}")
        ax.set_ylabel(f"obs[{feature}]")
        ax.tick_params(labelbottom=ax is rest[-1])
    handles, labels = rest[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=len(first))
    longest = max(t.steps for t in first)
    rest[-1].set_xlabel(f"step (the first {steps} of {longest:,})" if longest > steps else "step")
    save(figure, out)
