"""The paper's argument in miniature: the demo, and Figure 2 on the point tasks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uvd.experiments import batch, cliffwalk, curves, imitation_mini, maps, tables
from uvd.experiments.batch import AT_ONCE, Job

CLIFF = maps.CLIFF
DEMO_STEPS = {"PointPush-v0": 30_000, CLIFF: 16_000}
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
    "uvd-density": ("uvd", {"td_goals": "density"}),
    "her-calm": ("her", {"action_penalty": 1.0}),
}
PRESETS = {("uvd", "PointPushSparse-v0"): "precise"}  # where it is not the default
EXTRA = ("uvd-density", "her-calm")  # trained only where they are named
ONLY_CLIFF = ("her-paper",)  # the paper words it so for its Figure 1

# Seconds for 1000 steps of a seed on a CPU core: only to announce the time.
PACE = {"td3": 0.7, "her": 0.8, "uvd": 2.5}

WORDING = """\
HER-PAPER: goals altered on every unsuccessful roll-out, as the paper's section 3.1 words it. UVD on
PointPushSparse-v0 has the preset `precise`. HER-CALM: a larger penalty on actions.
"""
DEMO_FIGURES = """\
## Figures

- curves.png: learning curves, interquartile mean and 95 % bands
- paths.png: the evaluation episodes of PointCliff, over the pit
- density.png: from one state, what was reached, the learned density and value over goals
- figure1.png, bias.png: the cliff walk, where exact values are known
- imitation/imitation.png: states that imitators visit, and the demonstrated ones
"""


def make_jobs(steps: Mapping[str, int], seeds: int, methods: Iterable[str]) -> list[Job]:
    """Every method on every task."""
    jobs = []
    for task, n in steps.items():
        for name in methods:
            if task == CLIFF or name not in ONLY_CLIFF:
                algorithm, settings = METHODS[name]
                given = {**settings, "seeds": seeds, "steps": n}
                preset = PRESETS.get((algorithm, task), "default")
                jobs.append(Job(f"{task}-{name}", algorithm, task, given, PACE[algorithm], preset))
    return jobs


def demo(out: Path) -> None:
    """The cliff walk's bias in numbers; TD3, HER and UVD on two point tasks; some imitators."""
    batch.make_folder(out)
    print(f"The cliff walk against exact values, into {out}: about 1 min", flush=True)
    rows = cliffwalk.measure(range(CLIFFWALK_SEEDS))
    bias = cliffwalk.tabulate(rows).markdown()
    (out / "cliffwalk.md").write_text(bias, encoding="utf-8")
    cliffwalk.draw_bias(rows, out / "bias.png")
    cliffwalk.draw_figure1(out / "figure1.png")

    jobs = make_jobs(DEMO_STEPS, DEMO_SEEDS, DEMO_METHODS)
    paths = batch.train_into(out, jobs)
    on_cliff = [path for job, path in zip(jobs, paths) if job.task == CLIFF]
    curves.draw_curves(paths, out / "curves.png", names=curves.BY_METHOD)
    maps.draw_paths(on_cliff, out / "paths.png")
    maps.draw_density(on_cliff[-1], out / "density.png")
    imitation, steps = out / "imitation", imitation_mini.DEMO_STEPS
    imitation_mini.run(imitation, 1, tuple(steps), steps=steps)
    imitators = (imitation / "imitation.md").read_text(encoding="utf-8")
    tables.write_success("The demo", out, paths, WORDING, DEMO_FIGURES, imitators, bias)


def reproduce(
    out: Path,
    seeds: int,
    tasks: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    at_once: int = AT_ONCE,
) -> None:
    """All methods on the point tasks (or those named): the paper's Figure 2 in miniature."""
    batch.require_known(tasks, STEPS, "point task")
    batch.require_known(methods, METHODS, "method")
    steps = {task: n for task, n in STEPS.items() if not tasks or task in tasks}
    jobs = make_jobs(steps, seeds, methods or [m for m in METHODS if m not in EXTRA])
    paths = batch.train_into(out, jobs, at_once)
    on_cliff = [path for job, path in zip(jobs, paths) if job.task == CLIFF]
    if on_cliff:
        maps.draw_paths(on_cliff, out / "paths.png")
    draw(out)


def draw(out: Path) -> None:
    """Curves and tables, from the small files of the finished runs in `out`."""
    paths = batch.finished(out, [job.name for job in make_jobs(STEPS, 1, METHODS)])
    curves.draw_curves(paths, out / "curves.png", names=curves.BY_METHOD)
    tables.write_success("Figure 2 in miniature", out, paths, WORDING)
