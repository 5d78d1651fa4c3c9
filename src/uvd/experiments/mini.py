"""The paper's argument in miniature: the demo, and Figure 2 on the point tasks.

Both train a batch of runs (`batch.py`) and set the results in one table.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from uvd.experiments import batch, cliffwalk, curves, imitation_mini, maps
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
PRESET = {("uvd", "PointPushSparse-v0"): "precise"}  # where it is not the default
EXTRA = ("uvd-density", "her-calm")  # trained only where they are named
ONLY_CLIFF = ("her-paper",)  # the paper words it so for its Figure 1

# Seconds for 1000 steps of a seed on a CPU core: only to announce the time.
PACE = {"td3": 0.7, "her": 0.8, "uvd": 2.5}
CLIFFWALK_SECONDS = 35.0

WORDING = """\
HER (paper): goals altered on every unsuccessful roll-out, as the paper's section 3.1 words it.
"""


def make_jobs(steps: dict[str, int], seeds: int, methods: Iterable[str]) -> list[Job]:
    """Every method on every task."""
    methods = list(methods)
    return [
        Job(
            f"{task}-{name}", algorithm, task, {"seeds": seeds, "steps": n}, PACE[algorithm],
            settings, PRESET.get((algorithm, task), "default"),
        )
        for task, n in steps.items()
        for name, (algorithm, settings) in ((name, METHODS[name]) for name in methods)
        if task == CLIFF or name not in ONLY_CLIFF
    ]  # fmt: skip


def demo(out: Path) -> None:
    """The cliff walk's bias in numbers; TD3, HER and UVD on two point tasks; VDI and two rivals."""
    batch.make_folder(out)
    jobs = make_jobs(DEMO_STEPS, DEMO_SEEDS, DEMO_METHODS)
    steps, imitation = imitation_mini.DEMO_STEPS, out / "imitation"
    imitators = imitation_mini.make_jobs(imitation, imitation_mini.DEMO_SEEDS, steps, steps)
    left = CLIFFWALK_SECONDS + batch.seconds_left(jobs, out / "runs")
    left += batch.seconds_left(imitators, imitation / "runs")
    print(
        f"The cliff walk against exact values, then {len(jobs)} runs of {DEMO_SEEDS} seeds on "
        f"{' and '.join(DEMO_STEPS)}, then {len(imitators)} imitators, into {out}: "
        f"{batch.minutes(left)}",
        flush=True,
    )
    rows = cliffwalk.measure(range(CLIFFWALK_SEEDS))
    cliffwalk.write_table(rows, out / "cliffwalk.md")
    cliffwalk.draw_bias(rows, out / "bias.png")
    cliffwalk.draw_figure1(out / "figure1.png")
    print(f"cliff walk: {out / 'cliffwalk.md'}, figure1.png, bias.png", flush=True)

    paths = batch.train_all(jobs, out / "runs", AT_ONCE)
    on_cliff = [path for job, path in zip(jobs, paths) if job.task == CLIFF]
    curves.draw_curves(paths, out / "curves.png")
    maps.draw_paths(on_cliff, out / "paths.png")
    maps.draw_density(on_cliff[-1], out / "density.png")
    imitation_mini.run(imitation, imitation_mini.DEMO_SEEDS, tuple(steps), steps=steps)
    batch.write_summary(
        "The demo", out, paths, WORDING,
        "## Figures\n",
        "- curves.png: learning curves, interquartile mean and 95 % bands",
        "- paths.png: the evaluation episodes of PointCliff, over the pit",
        "- density.png: from one state, what was reached, the learned density and value over goals",
        "- figure1.png, bias.png: the cliff walk, where exact values are known",
        "- imitation/imitation.png: what imitators visit, over what they were shown\n",
        (imitation / "imitation.md").read_text(encoding="utf-8"),
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
    """All methods on the point tasks (or those named): the paper's Figure 2 in miniature."""
    batch.require_known(tasks, STEPS, "point task")
    batch.require_known(methods, METHODS, "method")
    steps = {task: n for task, n in STEPS.items() if not tasks or task in tasks}
    jobs = make_jobs(steps, seeds, methods or [m for m in METHODS if m not in EXTRA])
    paths = batch.train_and_keep(jobs, out, at_once)
    if CLIFF in steps:
        maps.draw_paths(
            [path for job, path in zip(jobs, paths) if job.task == CLIFF], out / "paths.png"
        )
    draw(out)


def draw(out: Path) -> None:
    """Curves and tables, from the small files of the finished runs in `out`."""
    paths = batch.kept(out, [job.name for job in make_jobs(STEPS, 1, METHODS)])
    curves.draw_curves(paths, out / "curves.png")
    batch.write_summary("Figure 2 in miniature", out, paths, WORDING)
