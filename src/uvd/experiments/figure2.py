"""Figure 2 of the paper: TD3, HER and UVD on the Fetch robot's push and slide."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from uvd.api import file_name
from uvd.experiments import batch, curves, tables
from uvd.experiments.batch import AT_ONCE, Job

# Each with the preset that suits the task. Seconds for 1000 steps of a seed on a CPU core.
METHODS = {"td3": 5.0, "her": 5.0, "uvd": 10.0}
METRICS = (
    "critic/frac_td", "actor/abs_action", "collect/moved", "critic/target_over_bound_max",
)  # fmt: skip
FIGURES = """\
## Figures

- figure2.png: success at the final step over environment steps, interquartile mean and 95 % bands
- the same for each task by itself
- metrics.png: the share of targets that are TD alone, the density adding nothing; the mean size of
  the actor's actions; the share of training episodes that moved the object; the largest target over
  its bound. TD3 and HER have no density and report the middle two only
"""


class Panel(NamedTuple):
    """One of the figure's panels."""

    task: str
    steps: int
    title: str


PANELS = {
    "push": Panel("FetchPush-v4", 500_000, "(a) push"),
    "slide": Panel("FetchSlide-v4", 1_000_000, "(b) slide"),
    "sparse": Panel("FetchPushSparse-v0", 1_000_000, "(c) push, small goal"),
    "noise": Panel("FetchSlideNoise-v0", 1_000_000, "(d) slide, noise"),
}
CODE_NOISE = Panel("FetchSlideNoiseCode-v0", 1_000_000, "(d) slide, the code's noise")


def make_jobs(
    panels: Sequence[Panel], methods: Sequence[str], seeds: int, steps: int | None
) -> list[Job]:
    """Every method on every panel's task."""
    given = {"seeds": seeds, "envs": 4, "eval_episodes": 50}
    return [
        Job(
            f"{file_name(p.task)}-{method}",
            method,
            p.task,
            {**given, "steps": p.steps if steps is None else steps},
            METHODS[method],
        )
        for p in panels
        for method in methods
    ]


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
    jobs = make_jobs(chosen, methods or list(METHODS), seeds, steps)
    batch.train_into(out, jobs, at_once)
    draw(out)


def draw(out: Path) -> None:
    """Figures and tables, from the small files of the finished runs in `out`."""
    everything = [*PANELS.values(), CODE_NOISE]
    paths = batch.finished(out, [f"{file_name(p.task)}-{m}" for p in everything for m in METHODS])
    titles = {p.task: p.title for p in everything}
    names = curves.Names(panel=lambda run: titles[run.config["task"]])
    curves.draw_curves(paths, out / "figure2.png", names=names, columns=4)
    curves.draw_curves(paths, out / "metrics.png", *METRICS, names=names)
    for task in titles:
        if own := [path for path in paths if path.name.startswith(f"{file_name(task)}-")]:
            curves.draw_curves(own, out / f"{file_name(task)}.png", names=names)
    tables.write_success("Figure 2", out, paths, FIGURES)
