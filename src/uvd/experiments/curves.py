"""Figures of numbers: learning curves, what was watched, returns of demonstrations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from uvd.demos.memory import Demos
from uvd.demos.select import DemoSettings
from uvd.core.errors import UserError, nearest
from uvd.experiments import statistics
from uvd.runs import Run
from uvd.settings import build, flatten

# Okabe and Ito's palette, which colour-blind readers tell apart. An algorithm keeps its colours in
# every figure: the first is its own, the others are for variants (HER: one for each strategy).
COLORS: dict[str, tuple[str, ...]] = {
    "td3": ("#777777", "#aaaaaa", "#444444", "#c4c4c4"),
    "her": ("#e69f00", "#d55e00", "#cc79a7", "#8c6d1f"),
    "uvd": ("#0072b2", "#56b4e9", "#003f66", "#5e7fa8"),
    "vdi": ("#009e73", "#66c2a5", "#00523b", "#8fb8a8"),
    "gail": ("#d55e00", "#f0a36b", "#8a3d00", "#c48a64"),
    "dac": ("#8a5fbf", "#bfa3de", "#553a78", "#9c8ab0"),
    "bc": ("#000000", "#555555", "#888888", "#b0b0b0"),
}
OTHERS = ("#cc79a7", "#b3a000", "#a0522d", "#4682b4")  # algorithms without colours of their own
HER_COLORS = {"future": 0, "paper": 1, "final": 2, "episode": 3}
VDI_COLORS = {"vdi": 0, "vdi-ratio": 1, "vdi-kernel": 2, "vdi-changes": 3}
DASHES = ("-", "--", "-.", ":")
LONGER = 10  # steps are drawn by their logarithm where one run has so many times another's
AXIS_NAMES = {
    "eval/success_final": "success at the final step",
    "eval/success_ever": "success at any step",
    "eval/return": "return",
}
Config = Mapping[str, Any]
Name = Callable[[Config], str]
Labels = Callable[[Sequence[Config]], list[str]]


def method_of(config: Config) -> str:
    """The method that a run is of: some presets of VDI are methods of their own."""
    variant = f"{config['algorithm']}-{config.get('preset', '').split('-')[0]}"
    return variant if variant in VDI_COLORS else config["algorithm"]


def task_name(config: Config) -> str:
    """A run's task, with those of its settings that are not its defaults."""
    changed = [f"{name} {value}" for name, value in config.get("task_settings", {}).items()]
    return config["task"] + (f" ({', '.join(changed)})" if changed else "")


def _shown(config: Config) -> dict[str, Any]:
    """What a run was shown, if it imitates."""
    shown = config.get("demos")
    return {**asdict(DemoSettings()), **shown, "sha256": ""} if shown else {}


def _usual(config: Config) -> dict[str, Any]:
    """A run's settings as its preset has them, in the types that a file keeps."""
    try:
        flat = flatten(build(config["algorithm"], config["preset"], {}))
    except UserError:  # registered elsewhere, or a preset of another version
        return {}
    return {name: list(x) if isinstance(x, tuple) else x for name, x in flat.items()}


def run_labels(configs: Sequence[Config]) -> list[str]:
    """A name for each run: its algorithm, and what sets it apart from others of that algorithm.

    Named are its preset, unless that is the default one, and what it has otherwise than its preset.
    """

    def differing(own: Config, others: Sequence[Config]) -> list[str]:
        return [n for n, value in own.items() if any(o.get(n, value) != value for o in others)]

    names = []
    for config in configs:
        kin = [c for c in configs if c["algorithm"] == config["algorithm"]]
        settings, shown, usual = config["settings"], _shown(config), _usual(config)
        parts = [
            str(settings[name]) if name == "strategy" else f"{name} {settings[name]}"
            for name in differing(settings, [c["settings"] for c in kin])
            if name == "strategy" or usual.get(name) != settings[name]
        ]
        if config["preset"] != "default" and len({c["preset"] for c in kin}) > 1:
            parts.insert(0, f"preset {config['preset']}")
        parts += [f"{name} {shown[name]}" for name in differing(shown, [_shown(c) for c in kin])]
        names.append(config["algorithm"].upper() + (f" ({', '.join(parts)})" if parts else ""))
    return names


class Style(NamedTuple):
    """How a run is drawn."""

    color: str
    dashes: str


def run_styles(configs: Sequence[Config], labels: Sequence[str]) -> dict[str, Style]:
    """A colour and a line for each label; the same label looks the same in every figure."""
    styles: dict[str, Style] = {}
    places = {name: count() for name in [*COLORS, "others"]}
    for config, label in sorted(zip(configs, labels), key=lambda pair: pair[1]):
        if label in styles:
            continue
        algorithm = config["algorithm"]
        palette = COLORS.get(algorithm, OTHERS)
        place = next(places[algorithm if algorithm in COLORS else "others"])
        if algorithm == "her":
            place = HER_COLORS.get(config["settings"]["strategy"], place)
        elif algorithm == "vdi" and method_of(config) != "vdi":
            place = VDI_COLORS[method_of(config)]
        style = Style(palette[place % len(palette)], DASHES[place % len(DASHES)])
        while style in styles.values() and place < len(DASHES):  # another label has this line
            place += 1
            style = style._replace(dashes=DASHES[place % len(DASHES)])
        styles[label] = style
    return styles


def _metric(run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps of the reports that have the metric, and its values `[seeds, reports]`."""
    rows = run.rows()
    if not rows:
        raise UserError(f"{run.path} has no reports yet; go on with: uvd train --resume {run.path}")
    having = [row for row in rows if isinstance(row.get(metric), list)]
    if not having:
        known = {name for row in rows for name, value in row.items() if isinstance(value, list)}
        raise nearest(metric, known, f"metric of {run.path}")
    values = np.array([row[metric] for row in having], float).T  # None, not finite, becomes NaN
    return np.array([row["step"] for row in having]), values


def _reports(run: Run, metric: str) -> bool:
    return any(isinstance(row.get(metric), list) for row in run.rows())


def _pooled(runs: Sequence[Run], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Runs that differ in their seeds only, as one: at the steps that all of them report."""
    found = [_metric(run, metric) for run in runs]
    steps = found[0][0]
    for other, _ in found[1:]:
        steps = np.intersect1d(steps, other)
    if not len(steps):
        names = ", ".join(str(run.path) for run in runs)
        raise UserError(f"{names} have the same settings but report at no common step")
    return steps, np.concatenate([values[:, np.isin(s, steps)] for s, values in found])


def save(figure: Figure, out: Path) -> None:
    """Writes a figure, its folder included."""
    out = Path(out)
    if not out.suffix:  # Matplotlib would choose another name
        raise UserError(f"cannot write {out}: give the picture a suffix, such as .png")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=160, bbox_inches="tight")
    except (OSError, ValueError) as error:  # ValueError: a format that Matplotlib does not write
        raise UserError(f"cannot write {out}: {error}") from error


def main_metric(runs: Sequence[Path]) -> str:
    """What to draw of runs if nothing is asked for: the return where none of them has goals."""
    rewarded = [_reports(Run.open(path), "eval/return") for path in runs]
    if len(set(rewarded)) > 1:
        reach, earn = (runs[rewarded.index(which)] for which in (False, True))
        raise UserError(f"{reach} has goals and {earn} has rewards: draw them apart, or --metric")
    return "eval/return" if all(rewarded) else "eval/success_final"


def draw_curves(
    runs: Sequence[Path],
    out: Path,
    metric: str = "eval/success_final",
    titles: Mapping[str, str] | None = None,
    columns: int = 3,
    name: Name = task_name,
    label: Labels = run_labels,
) -> None:
    """Learning curves, a panel a task: interquartile mean over seeds, bootstrap 95 % bands.

    `titles` gives tasks other names than their ids. `name` and `label` tell by a run's
    configuration to which panel it belongs (if not by its task), and what it is called there.
    """
    tasks = list(dict.fromkeys(name(Run.open(path).config) for path in runs))
    columns = min(len(tasks), columns)
    panels = [(task, metric) for task in tasks]
    _draw_panels(runs, out, panels, columns, titles or {}, name, label)


def draw_watched(
    runs: Sequence[Path],
    out: Path,
    metrics: Sequence[str],
    titles: Mapping[str, str] | None = None,
    name: Name = task_name,
    label: Labels = run_labels,
) -> None:
    """Several metrics of the same runs: a row a metric that any reports, a column a task."""
    reported = {metric: [p for p in runs if _reports(Run.open(p), metric)] for metric in metrics}
    metrics = [metric for metric in metrics if reported[metric]]
    runs = [path for path in runs if any(path in reported[metric] for metric in metrics)]
    if not runs:
        return
    tasks = list(dict.fromkeys(name(Run.open(path).config) for path in runs))
    panels = [(task, metric) for metric in metrics for task in tasks]
    _draw_panels(runs, out, panels, len(tasks), titles or {}, name, label)


def _draw_panels(
    runs: Sequence[Path],
    out: Path,
    panels: Sequence[tuple[str, str]],
    columns: int,
    titles: Mapping[str, str],
    name: Name,
    label: Labels,
) -> None:
    """A panel for each task and metric, with those of the runs that report it."""
    if not runs:
        raise UserError("there are no runs to draw")
    opened = [Run.open(path) for path in runs]
    configs = [run.config for run in opened]
    labels = label(configs)
    styles = run_styles(configs, labels)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(0.6 + 4.2 * columns, 0.8 + 3.1 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    shown: dict[str, Line2D] = {}
    alone = len({metric for _, metric in panels}) == 1
    for place, (ax, (task, metric)) in enumerate(zip(axes.flat, panels)):
        groups: dict[str, list[Run]] = {}
        for run, of_run in zip(opened, labels):
            if name(run.config) == task and (alone or _reports(run, metric)):
                groups.setdefault(of_run, []).append(run)
        seeds, ends = set(), set()
        for of_run, group in groups.items():
            steps, values = _pooled(group, metric)
            seeds.add(len(values))
            middle, low, high = statistics.curve(values)
            color, dashes = styles[of_run]
            thousands = steps / 1000
            ends.add(thousands[-1])
            ax.fill_between(thousands, low, high, color=color, alpha=0.18, lw=0)
            (shown[of_run],) = ax.plot(thousands, middle, dashes, color=color, lw=1.8)
        if place < columns or alone:
            many = "–".join(str(n) for n in sorted({min(seeds), max(seeds)})) if seeds else ""
            plural = "" if seeds == {1} else "s"
            title = titles.get(task, task)
            ax.set_title(f"{title}, {many} seed{plural}" if seeds else title, fontsize=11)
        if ends and max(ends) >= LONGER * min(ends):  # who is done soon is to be seen, too
            ax.set(xlabel="environment steps, thousands", xscale="log")
        else:
            ax.set(xlabel="environment steps, thousands", xlim=(0, None))
        if not groups:
            ax.set(xlabel="", xticks=[], yticks=[])
            ax.text(0.5, 0.5, "nobody reports it", transform=ax.transAxes, ha="center", color="0.5")
        if metric in AXIS_NAMES and metric != "eval/return":
            ax.set(ylim=(-0.02, 1.02))
        if place % columns == 0:
            ax.set_ylabel(AXIS_NAMES.get(metric, metric))
        ax.grid(color="0.92")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    ordered = sorted(shown)
    longest = max(map(len, ordered), default=0)
    figure.legend(
        [shown[of_run] for of_run in ordered],
        ordered,
        loc="outside lower center",
        ncols=max(1, min(len(ordered), 50 * columns // (longest + 8))),
        frameon=False,
    )
    save(figure, out)


def draw_demos(
    demos: Demos, out: Path, features: int = 6, shown: int = 3, steps: int = 200
) -> None:
    """Returns (lengths where there are no rewards), and a few features over time."""
    returns = demos.returns()
    bars = [t.steps for t in demos.trajectories] if returns is None else returns
    chosen = np.unique(np.linspace(0, demos.obs_dim - 1, features).astype(int))
    figure = Figure(figsize=(11, 2.6 + 1.1 * len(chosen)), layout="constrained")
    top, *rest = figure.subplots(
        1 + len(chosen), 1, height_ratios=[2] + [1] * len(chosen), squeeze=False
    )[:, 0]
    top.bar(np.arange(len(bars)), bars, color=OTHERS[0])
    top.xaxis.set_major_locator(MaxNLocator(integer=True))
    top.set_xlim(-0.6, max(len(bars), 5) - 0.4)
    top.set_xlabel("trajectory")
    top.set_ylabel("steps" if returns is None else "return")
    top.set_title(Path(demos.name).name)
    longest = max(t.steps for t in demos.trajectories[:shown])
    for ax, feature in zip(rest, chosen):
        for i, (t, color) in enumerate(zip(demos.trajectories[:shown], OTHERS)):
            ax.plot(t.obs[:steps, feature], color=color, linewidth=0.8, label=f"trajectory {i}")
        ax.set_ylabel(f"obs[{feature}]")
    figure.legend(*rest[0].get_legend_handles_labels(), loc="outside lower right", ncols=shown)
    for ax in rest[:-1]:
        ax.tick_params(labelbottom=False)
    rest[-1].set_xlabel(f"step (the first {steps} of {longest:,})" if longest > steps else "step")
    save(figure, out)
