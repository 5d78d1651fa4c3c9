"""Figure 3 of the paper: VDI, GAIL, DAC and BC on the walkers, over the amount of demonstrations.

An amount is a number of trajectories and a stride: `1x20` is every 20th pair of one. A result is
the return at the last report as a share of the expert's, where random play is 0. Both ends of that
scale are measured once and kept in references.json, so small files are enough to draw it again.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from uvd.api import file_name
from uvd.collect.worker import PROBE
from uvd.collect.worker import Job as Play
from uvd.collect.workers import Policies, Workers
from uvd.demos.memory import digest
from uvd.core.errors import UserError
from uvd.experiments import batch, curves, statistics
from uvd.experiments.batch import AT_ONCE, Health, Job, Sheet
from uvd.demos.files import load_demos
from uvd.training.loop import find_task
from uvd.training.on_device import RANDOM, random_rollouts
from uvd.runs import Run
from uvd.tasks import Task

EVAL_EPISODES = 10
# What is known of each task in references.json.
REFERENCE = {
    "demos", "sha256", "trajectories", "steps", "expert", "random", "random_std",
    "random_episodes",
}  # fmt: skip
RANDOM_EPISODES = 20


class Method(NamedTuple):
    """An imitator, as it runs on both tasks."""

    algorithm: str
    preset: str
    envs: int
    pace: float  # seconds for 1000 steps of a seed on a CPU core: only to announce the time
    settings: dict[str, Any]


class Own(NamedTuple):
    """What a method has of its own on one of the tasks."""

    preset: str = ""
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    run: dict[str, int] = {}  # noqa: RUF012
    demos: dict[str, Any] = {}  # noqa: RUF012


class Panel(NamedTuple):
    """One of the figure's panels."""

    task: str
    title: str
    demos: str
    grid: tuple[str, ...]
    steps: dict[str, int]
    run: dict[str, int]
    """Where training episodes are cut: who has fallen learns little lying."""
    own: dict[str, Own]
    """By method."""


METHODS = {
    "vdi": Method("vdi", "", 2, 4.0, {}),
    "vdi-ratio": Method("vdi", "ratio", 1, 6.0, {}),
    "vdi-kernel": Method("vdi", "kernel", 1, 3.0, {}),
    "vdi-changes": Method("vdi", "changes", 1, 3.0, {}),
    "gail": Method("gail", "walkers", 16, 0.3, {}),
    "dac": Method("dac", "walkers", 2, 4.0, {}),
    "bc": Method("bc", "walkers", 1, 8.0, {"updates_per_step": 5.0}),  # 100 000 updates
}
_BEFORE = {"previous_action": True}
PANELS = {
    "cheetah": Panel(
        "HalfCheetahNonExploitable-v0", "(a) HalfCheetah", "halfcheetah-expert",
        ("1x100", "1x20", "5x20"),
        {
            "vdi": 10_000_000, "vdi-ratio": 1_000_000, "vdi-kernel": 300_000,
            "vdi-changes": 300_000, "gail": 10_000_000, "dac": 1_000_000, "bc": 20_000,
        },
        {},
        {"vdi": Own("cheetah")},
    ),
    "humanoid": Panel(
        "HumanoidNonExploitable-v0", "(b) Humanoid", "humanoid-expert",
        ("1x20", "5x20", "20x20"),
        {
            "vdi": 25_000_000, "vdi-ratio": 2_000_000, "vdi-kernel": 800_000,
            "vdi-changes": 800_000, "gail": 25_000_000, "dac": 1_000_000, "bc": 20_000,
        },
        {"episode_steps": 200, "late_episode_steps": 500, "late_steps": 1_200_000},
        {
            "vdi": Own("humanoid", demos=_BEFORE),
            "vdi-ratio": Own(settings={"smoothing": 1.2}, demos=_BEFORE),
            "vdi-kernel": Own(
                "kernel-humanoid",
                run={"late_episode_steps": 1000, "late_steps": 400_000},
                demos=_BEFORE,
            ),
            "vdi-changes": Own(
                settings={"smoothing": 1.64, "smoothing_end": 0.98},  # 86 columns
                run={"late_episode_steps": 1000, "late_steps": 400_000},
            ),
        },
    ),
}  # fmt: skip
WATCHED = (
    "critic/frac_td", "actor/abs_action", "critic/target_over_bound_max",
    "demos/log_d_min", "demos/log_d_mean", "demos/log_d_max",
)  # fmt: skip

NOTE = """\
Share: the mean return of the fixed evaluation episodes at the last report, without exploration, as
a share of the expert's, random play being 0; interquartile mean over seeds with a 95 % bootstrap
interval, and the worst seed. Return: the mean over seeds. Shown: trajectories × pairs taken of
each. VDI-RATIO, VDI-KERNEL and VDI-CHANGES (its presets of these names) have another target than
the paper's. VDI and VDI-RATIO read no demonstrated actions, but on Humanoid the action before as
part of the state, as VDI-KERNEL there; on HalfCheetah VDI-KERNEL reads the action, as the others
do. VDI-CHANGES reads none, but the state after each.
Training episodes are cut on Humanoid (a run's config.toml says where); these are not.
Max target: the critic's largest target in the whole run, as a share of its bound.
Finite: every metric of every report is a number.
"""

WATCHED_NOTE = """\
frac_td: share of targets that are TD alone. abs_action: mean size of the actor's actions.
target_over_bound_max: largest target over its bound. log_d: the agent's own density over all that
was shown, averaged logits where they are averaged, those of kernels over their peak. Only VDI has
densities.
"""


class Amount(NamedTuple):
    """How much is shown: so many trajectories, every n-th pair of each."""

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
    def of(cls, config: curves.Config) -> "Amount":
        """That a run was shown."""
        return cls(config["demos"]["trajectories"], config["demos"].get("every", 1))

    def pairs(self, steps: int) -> int:
        """Of each trajectory of so many steps."""
        return len(range(self.every // 2, steps, self.every))


def make_jobs(
    panel: str,
    methods: Sequence[str],
    amounts: Sequence[Amount],
    seeds: int,
    steps: int | None,
    demos: str | None = None,
) -> list[Job]:
    """Every method shown every amount."""
    p = PANELS[panel]
    return [
        Job(
            f"{file_name(p.task)}-{name}-{amount.trajectories}x{amount.every}",
            m.algorithm, p.task,
            {
                "seeds": seeds, "steps": p.steps[name] if steps is None else steps,
                "envs": m.envs, "eval_episodes": EVAL_EPISODES, **p.run, **own.run,
            },
            m.pace, {**m.settings, **own.settings}, own.preset or m.preset,
            {"demos": demos or p.demos, **amount._asdict(), **own.demos},
        )
        for name, m, own in ((name, METHODS[name], p.own.get(name, Own())) for name in methods)
        for amount in amounts
    ]  # fmt: skip


def random_returns(name: str) -> np.ndarray:
    """Of episodes of uniformly random actions."""
    task = find_task(name, {})
    if isinstance(task, Task):
        play = jax.jit(lambda key: random_rollouts(task, key, RANDOM_EPISODES).reward.sum(1))
        return np.asarray(play(jax.random.key(0)))
    workers = Workers(task)
    try:
        jobs = [Play(0, 0, PROBE, i, RANDOM) for i in range(RANDOM_EPISODES)]
        return np.array([p.reward.sum(dtype=np.float64) for p in workers.play(jobs, Policies())])
    finally:
        workers.close()


def read_references(out: Path) -> dict[str, dict[str, Any]]:
    """Both ends of the scale of every task so far."""
    path = out / "references.json"
    try:
        known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    ends = known.values() if isinstance(known, dict) else [None]
    if not all(isinstance(end, dict) and end.keys() >= REFERENCE for end in ends):
        wanted = ", ".join(sorted(REFERENCE))
        raise UserError(f"{path} is damaged: every task needs {wanted}; remove it to measure anew")
    return known


def measure_references(out: Path, panel: Panel, demos: str) -> None:
    """Adds the task's, unless they are there; refuses results on other demonstrations."""
    shown, known = load_demos(demos), read_references(out)
    sha = digest(shown)
    if panel.task in known:
        if known[panel.task]["sha256"] != sha:
            raise UserError(
                f"{out} has results on other demonstrations than {demos}: "
                "choose another folder with --out"
            )
        return
    returns = shown.returns()
    if returns is None:
        raise UserError(f"{demos} has no rewards, so what its expert earns is not known")
    random = random_returns(panel.task)
    known[panel.task] = {
        "demos": Path(demos).name,
        "sha256": sha,
        "trajectories": len(shown.trajectories),
        "steps": min(t.steps for t in shown.trajectories),
        "expert": float(returns.mean()),
        "random": float(random.mean()),
        "random_std": float(random.std()),
        "random_episodes": len(random),
    }
    batch.make_folder(out)
    (out / "references.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


class Found(NamedTuple):
    """What a run came to, at its last report."""

    path: Path
    task: str
    method: str
    amount: Amount
    pairs: int  # of each trajectory
    returns: np.ndarray  # a number a seed
    share: np.ndarray  # of the expert's
    step: int
    seconds: float
    health: Health

    @property
    def shown(self) -> str:
        """The amount as the figure words it."""
        return f"{self.amount.trajectories} × {self.pairs}"


def read(out: Path) -> list[Found]:
    """The finished runs in `out`: by task, by how much they were shown, by method."""
    references, found = read_references(out), []
    for path in batch.kept(out):
        run = Run.open(path)
        config, rows = run.config, run.rows()
        task, sha = config["task"], config.get("demos", {}).get("sha256")
        if task not in references or sha != references[task]["sha256"]:
            raise UserError(
                f"{path} imitates other demonstrations than {out / 'references.json'} names"
            )
        ends, amount = references[task], Amount.of(config)
        returns = np.array(rows[-1]["eval/return"], float)
        share = (returns - ends["random"]) / (ends["expert"] - ends["random"])
        found.append(
            Found(
                path, task, curves.method_of(config), amount, amount.pairs(ends["steps"]), returns,
                share, rows[-1]["step"], rows[-1]["seconds"], Health.of(rows),
            )
        )  # fmt: skip
    tasks, methods = [p.task for p in PANELS.values()], list(METHODS)

    def place(f: Found) -> tuple[int, ...]:
        amount = (f.amount.trajectories * f.pairs, f.amount.trajectories)
        return tasks.index(f.task), *amount, methods.index(f.method)

    return sorted(found, key=place)


def shown_to(config: curves.Config) -> str:
    """A run's task and how much of it was shown."""
    amount = Amount.of(config)
    return f"{config['task']}, {amount.trajectories}x{amount.every}"


def methods_of(configs: Sequence[curves.Config]) -> list[str]:
    """What runs are called where presets differ by task."""
    return [curves.method_of(config).upper() for config in configs]


def tabulate(found: Sequence[Found]) -> Sheet:
    """The share of every method on every task, from every amount."""

    def row(f: Found) -> tuple[str, ...]:
        value, low, high = statistics.interval(f.share)
        return (
            f.task,
            f.method.upper(),
            f.shown,
            f"{value:.2f} [{low:.2f}, {high:.2f}]",
            f"{f.share.min():.2f}",
            f"{f.returns.mean():,.0f}",
            str(len(f.share)),
            f"{f.step:,}",
            f"{f.seconds:.0f}",
            *f.health.cells(),
        )

    header = (
        "task", "method", "shown", "share [95 %]", "worst", "return", "seeds", "steps", "time, s",
        "max target", "finite",
    )  # fmt: skip
    return Sheet("Return as a share of the expert's", header, [row(f) for f in found])


def tabulate_references(references: dict[str, dict[str, Any]]) -> Sheet:
    """Both ends of the scale."""
    rows = [
        (
            task, r["demos"], str(r["trajectories"]), f"{r['expert']:,.1f}",
            f"{r['random']:,.1f} ± {r['random_std']:,.1f}", str(r["random_episodes"]),
        )
        for task, r in references.items()
    ]  # fmt: skip
    header = ("task", "demonstrations", "trajectories", "expert = 1", "random = 0", "episodes")
    return Sheet("The scale: mean returns (random play: ± standard deviation)", header, rows)


def draw_shares(found: Sequence[Found], out: Path) -> None:
    """The paper's Figure 3: a panel a task, a line a method, over the amount that is shown."""
    panels = [p for p in PANELS.values() if any(f.task == p.task for f in found)]
    figure = Figure(figsize=(0.6 + 4.6 * len(panels), 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    lines = {}
    for ax, panel in zip(axes, panels):
        here = [f for f in found if f.task == panel.task]
        amounts = list(dict.fromkeys(f.shown for f in here))
        ax.axhline(1, color="0.6", lw=1, ls=":")
        for method in dict.fromkeys(f.method for f in here):
            own = [f for f in here if f.method == method]
            at = [amounts.index(f.shown) for f in own]
            middle, low, high = np.transpose([statistics.interval(f.share) for f in own])
            place = curves.VDI_COLORS.get(method, 0)
            color = curves.COLORS[METHODS[method].algorithm][place]
            ax.fill_between(at, low, high, color=color, alpha=0.18, lw=0)
            lines[method] = ax.errorbar(
                at, middle, (middle - low, high - middle), fmt="o-", color=color, lw=1.8, ms=4,
                elinewidth=1, capsize=2,
            )  # fmt: skip
        ax.set(title=panel.title, xlabel="trajectories × pairs of each")
        ax.set_xlim(-0.3, len(amounts) - 0.7)
        ax.set_xticks(range(len(amounts)), amounts)
        ax.grid(color="0.92")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("return, random = 0, expert = 1")
    figure.legend(
        list(lines.values()), [m.upper() for m in lines], loc="outside lower center",
        ncols=len(lines), frameon=False,
    )  # fmt: skip
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
    chosen = [name for name in PANELS if not panels or name in panels]
    if demos and len(chosen) > 1:
        raise UserError("--demos are of one task: name it with --panel")
    jobs = [
        job
        for name in chosen
        for job in make_jobs(
            name, methods or list(METHODS), [Amount.parse(g) for g in grid or PANELS[name].grid],
            seeds, steps, demos,
        )
    ]  # fmt: skip
    batch.check(jobs, at_once)
    for name in chosen:
        measure_references(out, PANELS[name], demos or PANELS[name].demos)
    batch.train_and_keep(jobs, out, at_once)
    draw(out)


def draw(out: Path) -> None:
    """Figures and tables, from the small files of the finished runs in `out`."""
    found = read(out)
    if not found:
        raise UserError(f"{out} has no finished runs to draw")
    draw_shares(found, out / "figure3.png")
    for task in dict.fromkeys(f.task for f in found):
        own = [f.path for f in found if f.task == task]
        curves.draw_curves(
            own, out / f"{file_name(task)}.png", "eval/return", name=shown_to, label=methods_of
        )
        curves.draw_watched(
            own, out / f"{file_name(task)}-watched.png", WATCHED, name=shown_to, label=methods_of
        )
    paths = [f.path for f in found]
    batch.write_tables(
        "Figure 3", out, tabulate(found), NOTE,
        tabulate_references(read_references(out)).markdown(),
        batch.tabulate_watched(paths, WATCHED, shown_to, methods_of).markdown(),
        WATCHED_NOTE,
        "## Figures\n",
        "- figure3.png: the shares over the amount shown, interquartile mean and 95 % bands",
        "- for each task the learning curves, and -watched.png: the watched numbers over steps\n",
    )  # fmt: skip
