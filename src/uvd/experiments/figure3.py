"""Figure 3 of the paper: imitation on the walkers, over the amount of demonstrations.

An amount is a number of trajectories and a stride: `1x20` is every 20th step of one. A result is
the return at the last report as a share of the expert's, where random actions are 0. Both ends of
that scale are measured once and stay in references.json, so small files are enough to draw again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from uvd.api import file_name
from uvd.collect.exploration import RANDOM_ACTIONS
from uvd.collect.worker import PROBE
from uvd.collect.worker import Job as EpisodeJob
from uvd.collect.workers import Policies, Workers
from uvd.core.config import require
from uvd.core.errors import UserError, refused
from uvd.demos.files import load_demos
from uvd.demos.memory import digest
from uvd.experiments import batch, curves, statistics, tables
from uvd.experiments.batch import AT_ONCE, Job
from uvd.experiments.tables import Sheet
from uvd.runs import Run
from uvd.tasks.find import find_task
from uvd.tasks.rewardenv import RewardTask

RANDOM_EPISODES = 20


class Method(NamedTuple):
    """An imitator, as it runs on both tasks."""

    algorithm: str
    pace: float  # seconds for 1000 steps of a seed on a CPU core: only to announce the time
    given: dict[str, Any]


class Panel(NamedTuple):
    """One of the figure's panels."""

    task: str
    title: str
    demos: str
    grid: tuple[str, ...]
    given: dict[str, dict[str, Any]]  # what each method has of its own here


METHODS = {
    "vdi": Method("vdi", 4.0, {"envs": 2}),
    "kdi": Method("kdi", 3.0, {}),
    "kdi-changes": Method("kdi", 3.0, {"match": "changes"}),
    "gail": Method("gail", 0.3, {"envs": 16}),
    "dac": Method("dac", 4.0, {"envs": 2}),
    "bc": Method("bc", 8.0, {"envs": 1, "updates_per_step": 5.0}),  # 100 000 updates
}
# Training episodes are cut on Humanoid: after a fall there is little to learn.
_CUT = {"episode_steps": 200, "late_episode_steps": 500, "late_steps": 1_200_000}
_KDI_CUT = {"episode_steps": 200, "late_episode_steps": 1000, "late_steps": 400_000}
PANELS = {
    "cheetah": Panel(
        "HalfCheetahNonExploitable-v0", "(a) HalfCheetah", "halfcheetah-expert",
        ("1x100", "1x20", "5x20"),
        {
            "vdi": {"steps": 10_000_000}, "kdi": {"steps": 300_000, "match": "pairs"},
            "kdi-changes": {"steps": 300_000}, "gail": {"steps": 10_000_000},
            "dac": {"steps": 1_000_000}, "bc": {"steps": 20_000},
        },
    ),
    "humanoid": Panel(
        "HumanoidNonExploitable-v0", "(b) Humanoid", "humanoid-expert",
        ("1x20", "5x20", "20x20"),
        {
            "vdi": {
                "steps": 25_000_000, "preset": "paper-humanoid", "previous_action": True, **_CUT,
            },
            "kdi": {"steps": 800_000},
            "kdi-changes": {  # of 86 columns
                "steps": 800_000, "preset": "default", "width": 1.64, "width_end": 0.98, **_KDI_CUT,
            },
            "gail": {"steps": 25_000_000, **_CUT}, "dac": {"steps": 1_000_000, **_CUT},
            "bc": {"steps": 20_000, **_CUT},
        },
    ),
}  # fmt: skip
METRICS = (
    "actor/abs_action", "critic/target_over_bound_max", "demos/log_d_min", "demos/log_d_mean",
    "demos/log_d_max",
)  # fmt: skip

NOTE = """\
Share: the mean return of the fixed evaluation episodes at the last report, without exploration, as
a share of the expert's, random actions being 0; interquartile mean over seeds with a 95 % bootstrap
interval, and the worst seed. Return: the mean over seeds. Demonstrations: trajectories × steps
taken of each. VDI reads no demonstrated actions, but on Humanoid the previous action as part of the
state, as KDI does there; on HalfCheetah KDI reads the action, as GAIL, DAC and BC do. KDI-CHANGES
reads no actions, but the state after each demonstrated one. Training episodes are cut on Humanoid
(a run's config.toml says where); evaluation episodes are not. Max target: the critic's largest
target in the whole run, as a share of its bound. Finite: every metric of every report is a number.
"""
FIGURES = """\
## Figures

- figure3.png: the shares over the amount of demonstrations, interquartile mean and 95 % bands
- for each task the learning curves, and -metrics.png: the mean size of the actor's actions, the
  largest target over its bound, and the logarithm of the agent's own density at the demonstrated
  states, averaged over the dimensions (VDI) or in units of the kernel's peak (KDI)
"""


class Amount(NamedTuple):
    """How many demonstrations: so many trajectories, every n-th step of each."""

    trajectories: int
    every: int

    @classmethod
    def parse(cls, word: str) -> "Amount":
        """From `1x20`."""
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", word)
        if not found:
            raise UserError(f"grid '{word}' must read TRAJECTORIESxEVERY, such as 1x20")
        return cls(*map(int, found.groups()))

    @classmethod
    def of(cls, run: Run) -> "Amount":
        """The amount that a run imitates."""
        demos = run.config["demos"]
        return cls(demos["trajectories"], demos.get("every", 1))

    def __str__(self) -> str:
        return f"{self.trajectories}x{self.every}"

    def steps(self, length: int) -> int:
        """The number of steps taken of a trajectory of this length."""
        return len(range(self.every // 2, length, self.every))


NAMES = curves.Names(
    panel=lambda run: f"{run.config['task']}, {Amount.of(run)}",
    label=lambda run: curves.method_name(run).removesuffix(f"-{Amount.of(run)}".upper()),
)


def make_jobs(
    panel: Panel, methods: Sequence[str], amounts: Sequence[Amount], **given: Any
) -> list[Job]:
    """Every method from every amount of demonstrations; `given` are settings of all of them."""
    jobs = []
    for name in methods:
        method = METHODS[name]
        own = {"eval_episodes": 10, "demos": panel.demos, **method.given, **panel.given[name]}
        preset = own.pop("preset", None)
        for amount in amounts:
            folder = f"{file_name(panel.task)}-{name}-{amount}"
            settings = {**own, **given, **amount._asdict()}
            jobs.append(Job(folder, method.algorithm, panel.task, settings, method.pace, preset))
    return jobs


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

    def share(self, returns: np.ndarray) -> np.ndarray:
        """Returns on the scale: random actions are 0, the expert is 1."""
        return (returns - self.random) / (self.expert - self.random)


def random_returns(name: str) -> np.ndarray:
    """Returns of episodes of uniformly random actions."""
    task = find_task(name)
    assert isinstance(task, RewardTask)
    workers = Workers(task)
    try:
        jobs = [EpisodeJob(0, 0, PROBE, i, RANDOM_ACTIONS) for i in range(RANDOM_EPISODES)]
        return np.array([e.reward.sum(dtype=np.float64) for e in workers.play(jobs, Policies())])
    finally:
        workers.close()


def read_scales(out: Path) -> dict[str, Scale]:
    """The scale of every task so far."""
    path = out / "references.json"
    if not path.exists():
        return {}
    with refused(f"{path} is damaged, remove it to measure anew"):
        return {task: Scale(**ends) for task, ends in json.loads(path.read_text("utf-8")).items()}


def measure_scale(out: Path, panel: Panel, source: str) -> None:
    """Adds the task's, unless it is there; refuses results on other demonstrations."""
    demos, scales = load_demos(source), read_scales(out)
    sha256, expert = digest(demos), demos.returns()
    if panel.task in scales:
        require(
            scales[panel.task].sha256 == sha256,
            f"{out} has results on other demonstrations than {source}: "
            "choose another folder with --out",
        )
        return
    if expert is None:
        raise UserError(f"{source} has no rewards, so what its expert earns is not known")
    random = random_returns(panel.task)
    scales[panel.task] = Scale(
        demos=Path(source).name,
        sha256=sha256,
        trajectories=len(demos.trajectories),
        steps=min(t.steps for t in demos.trajectories),
        expert=float(expert.mean()),
        random=float(random.mean()),
        random_std=float(random.std()),
        random_episodes=len(random),
    )
    batch.make_folder(out)
    rows = {task: scale._asdict() for task, scale in scales.items()}
    (out / "references.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


class Found(NamedTuple):
    """What a run came to, at its last report."""

    run: Run
    task: str
    method: str
    amount: Amount
    demonstrations: str  # the amount as the figure words it
    rows: list[dict[str, Any]]
    returns: np.ndarray  # a number a seed
    share: np.ndarray  # of the expert's


def read(out: Path) -> list[Found]:
    """The finished runs in `out`: by task, by amount, by method."""
    scales, found = read_scales(out), []
    for run in map(Run.open, batch.finished(out)):
        task, rows, scale = run.config["task"], run.rows(), scales.get(run.config["task"])
        if scale is None or run.config.get("demos", {}).get("sha256") != scale.sha256:
            raise UserError(
                f"{run.path} imitates other demonstrations than {out / 'references.json'} names"
            )
        amount, returns = Amount.of(run), np.array(rows[-1]["eval/return"], float)
        words = f"{amount.trajectories} × {amount.steps(scale.steps)}"
        share = scale.share(returns)
        found.append(Found(run, task, NAMES.label(run), amount, words, rows, returns, share))
    tasks = [p.task for p in PANELS.values()]
    order = {name.upper(): i for i, name in enumerate(METHODS)}

    def place(f: Found) -> tuple[float, ...]:
        trajectories, every = f.amount
        method = order.get(f.method, len(order))
        return tasks.index(f.task), trajectories / every, trajectories, method

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


def draw_shares(found: Sequence[Found], out: Path) -> None:
    """The paper's Figure 3: a panel a task, a line a method, over the amount of demonstrations."""
    panels = [p for p in PANELS.values() if any(f.task == p.task for f in found)]
    figure = Figure(figsize=(0.6 + 4.6 * len(panels), 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    styles = curves.label_styles({f.method: f.run.config["algorithm"] for f in found})
    lines = {}
    for ax, panel in zip(axes, panels):
        here = [f for f in found if f.task == panel.task]
        amounts = list(dict.fromkeys(f.demonstrations for f in here))
        ax.axhline(1, color="0.6", lw=1, ls=":")
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
        ax.set(title=panel.title, xlabel="trajectories × steps taken of each")
        ax.set_xlim(-0.3, len(amounts) - 0.7)
        ax.set_xticks(range(len(amounts)), amounts)
    axes[0].set_ylabel("return, random = 0, expert = 1")
    curves.legend_below(figure, lines, len(lines))
    curves.save(figure, out)


def reproduce(
    out: Path,
    panels: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    seeds: int = 5,
    steps: int | None = None,
    grid: tuple[str, ...] = (),
    demos: str | None = None,
    at_once: int = AT_ONCE,
) -> None:
    """All methods on all panels, or those named; the figures show all that `out` has by then."""
    batch.require_known(panels, PANELS, "panel")
    batch.require_known(methods, METHODS, "method")
    chosen = [panel for name, panel in PANELS.items() if not panels or name in panels]
    if demos and len(chosen) > 1:
        raise UserError("--demos are of one task: name it with --panel")
    given = {"seeds": seeds, "steps": steps, "demos": demos}
    given = {name: value for name, value in given.items() if value is not None}
    jobs = []
    for panel in chosen:
        amounts = [Amount.parse(word) for word in grid or panel.grid]
        jobs += make_jobs(panel, methods or list(METHODS), amounts, **given)
    batch.check(jobs, at_once)
    for panel in chosen:
        measure_scale(out, panel, demos or panel.demos)
    batch.train_into(out, jobs, at_once)
    draw(out)


def draw(out: Path) -> None:
    """Figures and tables, from the small files of the finished runs in `out`."""
    found = read(out)
    require(found, f"{out} has no finished runs to draw")
    draw_shares(found, out / "figure3.png")
    for task in dict.fromkeys(f.task for f in found):
        own = [f.run.path for f in found if f.task == task]
        curves.draw_curves(own, out / f"{file_name(task)}.png", "eval/return", names=NAMES)
        curves.draw_curves(own, out / f"{file_name(task)}-metrics.png", *METRICS, names=NAMES)
    scales = tabulate_scales(read_scales(out)).markdown()
    tables.write_summary("Figure 3", out, tabulate(found), NOTE, scales, FIGURES)
