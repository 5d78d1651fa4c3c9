"""Figure 2 of the paper: TD3, HER and UVD on the Fetch robot's push and slide."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from uvd.api import file_name
from uvd.experiments import batch, curves
from uvd.experiments.batch import AT_ONCE, Job
from uvd.settings import PRESETS

RUN: dict[str, Any] = {"envs": 4, "eval_episodes": 50}
# The preset `fetch`, spelt out: runs are then called by what else they differ in.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, PRESETS[name]["fetch"]) for name in ("td3", "her", "uvd")
}
PRESET = {("uvd", "FetchPushSparse-v0"): "precise"}  # where it is not the default
PACE = {"td3": 5.0, "her": 5.0, "uvd": 10.0}  # seconds for 1000 steps of a seed on a CPU core


class Panel(NamedTuple):
    """One of the figure's panels."""

    task: str
    steps: int
    title: str

    @property
    def file(self) -> str:
        """The task's id as a file's name."""
        return file_name(self.task)


PANELS = {
    "push": Panel("FetchPush-v4", 500_000, "(a) push"),
    "slide": Panel("FetchSlide-v4", 1_000_000, "(b) slide"),
    "sparse": Panel("FetchPushSparse-v0", 1_000_000, "(c) push, small goal"),
    "noise": Panel("FetchSlideNoise-v0", 1_000_000, "(d) slide, noise"),
}
CODE_NOISE = Panel("FetchSlideNoiseCode-v0", 1_000_000, "(d) slide, the code's noise")

WATCHED = (
    "critic/frac_td", "actor/abs_action", "collect/moved", "critic/target_over_bound_max",
)  # fmt: skip


def make_jobs(
    panels: Sequence[Panel], methods: Sequence[str], seeds: int, steps: int | None
) -> list[Job]:
    """Every method on every panel's task."""
    return [
        Job(
            f"{panel.file}-{name}", algorithm, panel.task,
            {**RUN, "seeds": seeds, "steps": panel.steps if steps is None else steps},
            PACE[algorithm], settings, PRESET.get((algorithm, panel.task), "default"),
        )
        for panel in panels
        for name, (algorithm, settings) in ((name, METHODS[name]) for name in methods)
    ]  # fmt: skip


def reproduce(
    out: Path,
    panels: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    seeds: int = 5,
    steps: int | None = None,
    at_once: int = AT_ONCE,
    code_noise: bool = False,
) -> None:
    """All methods on all panels, or those named; the figures show all that `out` has by then."""
    batch.require_known(panels, PANELS, "panel")
    batch.require_known(methods, METHODS, "method")
    known = {**PANELS, "noise": CODE_NOISE} if code_noise else PANELS
    chosen = [panel for name, panel in known.items() if not panels or name in panels]
    batch.train_and_keep(
        make_jobs(chosen, methods or list(METHODS), seeds, steps),
        out,
        at_once,
    )
    draw(out)


def draw(out: Path) -> None:
    """Figures and tables, from the small files of the finished runs in `out`."""
    everything = [*PANELS.values(), CODE_NOISE]
    paths = batch.kept(out, [f"{panel.file}-{m}" for panel in everything for m in METHODS])
    titles = {panel.task: panel.title for panel in everything}
    curves.draw_curves(paths, out / "figure2.png", titles=titles, columns=4)
    curves.draw_watched(paths, out / "watched.png", WATCHED, titles)
    for panel in everything:
        if own := [path for path in paths if path.name.startswith(f"{panel.file}-")]:
            curves.draw_curves(own, out / f"{panel.file}.png", titles=titles)
    batch.write_summary(
        "Figure 2", out, paths,
        batch.tabulate_watched(paths, WATCHED).markdown(),
        "frac_td: share of targets that are TD alone, the density adding nothing. abs_action: mean "
        "size of the actor's\nactions. moved: share of exploring episodes that moved the object. "
        "target_over_bound_max: largest target over its\nbound. TD3 and HER have no density, so "
        "report the middle two only.\n",
        "## Figures\n",
        "- figure2.png: success at the final step over environment steps, interquartile mean and "
        "95 % bands",
        "- the same for each task by itself; watched.png: the watched numbers over steps\n",
    )  # fmt: skip
