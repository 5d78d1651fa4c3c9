"""Imitation measured by its expert: returns as shares, over the amount of demonstrations.

A share is the return at the last report, where random actions are 0 and the expert is 1. Both ends
of that scale are measured once and stay in references.json: small files are enough to draw again.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from uvd.collect.device import random_rollouts
from uvd.collect.exploration import RANDOM_ACTIONS
from uvd.collect.worker import PROBE, Job
from uvd.collect.workers import Policies, Workers
from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.demos.files import load_demos
from uvd.demos.memory import digest
from uvd.experiments import curves, statistics, tables
from uvd.experiments.tables import Sheet
from uvd.runs import Run
from uvd.runs.files import replace_file
from uvd.tasks.find import find_task
from uvd.tasks.task import Task

RANDOM_EPISODES = 20
NOTE = """\
Share: the mean return of the fixed evaluation episodes at the last report, without exploration, as
a share of the expert's, random actions being 0; interquartile mean over seeds with a 95 % bootstrap
interval, and the worst seed. Return: the mean over seeds. Demonstrations: trajectories × steps
taken of each. Max target: the critic's largest target in the whole run, as a share of its bound.
Finite: every metric of every report is a number.
"""


def amount_of(run: Run) -> tuple[int, int]:
    """How many trajectories a run imitates, and that it takes every n-th step of each."""
    demos = run.config["demos"]
    return demos["trajectories"], demos.get("every", 1)


class Scale(NamedTuple):
    """Both ends of a task's scale, as references.json has them."""

    demos: str
    sha256: str
    trajectories: int
    steps: int  # of the shortest trajectory
    expert: float  # mean return of the demonstrations
    random: float  # mean return of uniformly random actions
    random_std: float
    random_episodes: int
    idle: float | None = None  # return of doing nothing, where that is worth something

    def share(self, returns: np.ndarray) -> np.ndarray:
        """Returns on the scale: random actions are 0, the expert is 1."""
        return (returns - self.random) / (self.expert - self.random)


def random_returns(name: str) -> np.ndarray:
    """Returns of episodes of uniformly random actions."""
    task = find_task(name)
    if isinstance(task, Task):
        play = jax.jit(lambda key: random_rollouts(task, key, RANDOM_EPISODES))
        return np.asarray(play(jax.random.key(PROBE)).reward, np.float64).sum(1)
    jobs = [Job(0, 0, PROBE, i, RANDOM_ACTIONS) for i in range(RANDOM_EPISODES)]
    with closing(Workers(task)) as workers:
        return np.array([e.reward.sum(dtype=np.float64) for e in workers.play(jobs, Policies())])


def read_scales(out: Path) -> dict[str, Scale]:
    """The scale of every task so far."""
    path = out / "references.json"
    if not path.exists():
        return {}
    with refused(f"{path} is damaged, remove it to measure anew"):
        return {task: Scale(**ends) for task, ends in json.loads(path.read_text("utf-8")).items()}


def measure_scale(out: Path, task: str, source: str) -> None:
    """Adds the task's, unless it is there; refuses results on other demonstrations."""
    demos, scales = load_demos(source), read_scales(out)
    sha256, expert = digest(demos), demos.returns()
    if task in scales:
        require(
            scales[task].sha256 == sha256,
            f"{out} has results on other demonstrations than {source}: "
            "choose another folder with --out",
        )
        return
    if expert is None:
        raise UserError(f"{source} has no rewards, so what its expert earns is not known")
    random = random_returns(task)
    scales[task] = Scale(
        demos=Path(source).name,
        sha256=sha256,
        trajectories=len(demos.trajectories),
        steps=min(t.steps for t in demos.trajectories),
        expert=float(expert.mean()),
        random=float(random.mean()),
        random_std=float(random.std()),
        random_episodes=len(random),
    )
    rows = {name: scale._asdict() for name, scale in scales.items()}
    replace_file(out / "references.json", json.dumps(rows, indent=1).encode() + b"\n")


class Found(NamedTuple):
    """What a run came to, at its last report."""

    run: Run
    task: str
    method: str
    demonstrations: str  # the amount as the figure words it
    rows: list[dict[str, Any]]
    returns: np.ndarray  # a number a seed
    share: np.ndarray  # of the expert's


def read(out: Path, paths: Sequence[Path]) -> list[Found]:
    """What runs came to: the tasks and methods in the order of the paths, amounts growing."""
    scales, found = read_scales(out), []
    for run in map(Run.open, paths):
        task, rows, scale = run.config["task"], run.rows(), scales.get(run.config["task"])
        if scale is None or run.config.get("demos", {}).get("sha256") != scale.sha256:
            raise UserError(
                f"{run.path} imitates other demonstrations than {out / 'references.json'} names"
            )
        (trajectories, every), returns = amount_of(run), np.array(rows[-1]["eval/return"], float)
        words = f"{trajectories} × {len(range(every // 2, scale.steps, every))}"
        method, share = curves.method_name(run), scale.share(returns)
        found.append(Found(run, task, method, words, rows, returns, share))
    tasks, methods = ([getattr(f, name) for f in found] for name in ("task", "method"))

    def place(f: Found) -> tuple[float, ...]:
        trajectories, every = amount_of(f.run)
        return tasks.index(f.task), trajectories / every, trajectories, methods.index(f.method)

    return sorted(found, key=place)


def tabulate(found: Sequence[Found]) -> Sheet:
    """The share of every method on every task, from every amount."""

    def row(f: Found) -> tuple[str, ...]:
        value, low, high = statistics.interval(f.share)
        share = f"{value:.2f} [{low:.2f}, {high:.2f}]", f"{f.share.min():.2f}"
        numbers = f"{f.returns.mean():,.0f}", str(len(f.share)), f"{f.rows[-1]['step']:,}"
        seconds = f"{f.rows[-1]['seconds']:.0f}"
        names = f.task, f.method, f.demonstrations
        return *names, *share, *numbers, seconds, *tables.health(f.rows)

    header = ("task", "method", "demonstrations", "share [95 %]", "worst", "return", "seeds")
    header_of_run = ("steps", "time, s", *tables.HEALTH)
    rows = [row(f) for f in found]
    return Sheet("Return as a share of the expert's", (*header, *header_of_run), rows)


def tabulate_scales(scales: Mapping[str, Scale]) -> Sheet:
    """Both ends of the scale of every task."""
    rows = []
    for task, s in scales.items():
        random = f"{s.random:,.1f} ± {s.random_std:,.1f}"
        expert = s.demos, str(s.trajectories), f"{s.expert:,.1f}"
        rows.append((task, *expert, random, str(s.random_episodes)))
    header = ("task", "demonstrations", "trajectories", "expert = 1", "random = 0", "episodes")
    return Sheet("The scale: mean returns (random: ± standard deviation)", header, rows)


def draw_shares(found: Sequence[Found], out: Path, titles: Mapping[str, str]) -> None:
    """The paper's Figure 3: a panel a task, a line a method, over the amount of demonstrations."""
    panels = list(dict.fromkeys(f.task for f in found))
    figure = Figure(figsize=(0.6 + 4.6 * len(panels), 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    styles = curves.label_styles({f.method: f.run.config["algorithm"] for f in found})
    lines: dict[str, Any] = {}
    for ax, task in zip(axes, panels):
        here = [f for f in found if f.task == task]
        amounts = list(dict.fromkeys(f.demonstrations for f in here))
        ax.axhline(1, color="0.6", lw=1, ls=":")
        scale = read_scales(here[0].run.path.parent)[task]
        if scale.idle is not None:
            idle = scale.share(np.array(scale.idle))
            lines["doing nothing"] = ax.axhline(idle, color="0.3", lw=1, ls="--")
        for method in dict.fromkeys(f.method for f in here):
            own = [f for f in here if f.method == method]
            at = [amounts.index(f.demonstrations) for f in own]
            middle, low, high = np.transpose([statistics.interval(f.share) for f in own])
            color = styles[method].color
            ax.fill_between(at, low, high, color=color, alpha=0.18, lw=0)
            style = {"color": color, "lw": 1.8, "ms": 4, "elinewidth": 1, "capsize": 2}
            bars = (middle - low, high - middle)
            lines[method] = ax.errorbar(at, middle, bars, fmt="o-", **style)
        curves.plain(ax)
        ax.set(title=titles.get(task, task), xlabel="trajectories × steps taken of each")
        ax.set_xlim(-0.3, len(amounts) - 0.7)
        ax.set_xticks(range(len(amounts)), amounts)
    axes[0].set_ylabel("return, random = 0, expert = 1")
    curves.legend_below(figure, lines, len(lines))
    curves.save(figure, out)
