"""Imitation in miniature: every imitator on PointLoop, from a few steps of one expert.

The expert is scripted, so what an imitator should visit is known: the table has the return as a
share of the expert's (random actions are 0), and the energy distance between the states that agent
and expert visit. The figure draws those states.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from uvd import api
from uvd.collect.device import random_rollouts
from uvd.core.config import require
from uvd.demos.files import load_demos
from uvd.demos.memory import Trajectory
from uvd.demos.select import select
from uvd.demos.write import write_npz
from uvd.experiments import batch
from uvd.experiments.batch import AT_ONCE, Job
from uvd.experiments.curves import save
from uvd.experiments.pointloop import make_demos, visited
from uvd.experiments.statistics import energy_distance
from uvd.experiments.tables import Sheet
from uvd.recording import record, returns
from uvd.tasks import make_task

TASK = "PointLoop-v0"
SEEDS = 2
TRAJECTORIES, EVERY = 1, 5
EPISODES = 100  # of each agent and of the expert, to compare what they visit
THINNED = 4  # every n-th state of them: all would take gigabytes to compare
DRAWN = 6  # episodes in the figure


class Method(NamedTuple):
    """An imitator and how long it takes here."""

    label: str
    algorithm: str
    pace: float  # seconds for 1000 steps of a seed on a CPU core: only to announce the time
    given: dict[str, Any]  # settings


# Widths for 6 columns; a small net and a short warm-up, for speed.
_KDI = {
    "envs": 1, "warmup": 1000, "hidden": (64, 64), "width": 0.6, "width_end": 0.35,
    "width_half": 5000, "late_updates": 5000,
}  # fmt: skip
METHODS = {
    "vdi": Method("VDI (states)", "vdi", 3.0, {"steps": 40_000}),
    "kdi": Method("KDI", "kdi", 1.3, {"steps": 20_000, **_KDI}),
    "dac": Method("DAC", "dac", 1.0, {"steps": 40_000}),
    "dac-states": Method("DAC (states)", "dac", 1.0, {"steps": 40_000, "reads": "state"}),
    "gail": Method("GAIL", "gail", 0.1, {"steps": 120_000, "envs": 8}),
    "gail-states": Method(
        "GAIL (states)", "gail", 0.1, {"steps": 120_000, "envs": 8, "reads": "state"}
    ),
    "bc": Method("BC", "bc", 0.1, {"steps": 20_000}),
}
MAIN_METHODS = ("vdi", "kdi", "dac", "gail", "bc")
DEMO_STEPS = {"vdi": 10_000, "kdi": 10_000, "gail": 80_000, "bc": 4_000}  # what fits into the demo

NOTE = """\
The demonstrations are {pairs} pairs of the expert: 1 trajectory, every 5th step. VDI and what is
marked "states" do not read their actions. Return: the mean of 100 fresh episodes a seed, as a share
of the expert's, random actions being 0. Distance: the energy distance between every 4th state
visited in them and in 100 other episodes of the expert. Both: mean over seeds (worst seed).
"""


def make_jobs(
    demos: Path, seeds: int, methods: Sequence[str], steps: Mapping[str, int] | None = None
) -> list[Job]:
    """Every method from the same pairs; `steps` are given where they are not the method's own."""
    asked = {"seeds": seeds, "demos": str(demos), "trajectories": TRAJECTORIES, "every": EVERY}
    jobs = []
    for name in methods:
        method = METHODS[name]
        given = {"envs": 4, **method.given, **asked, **({"steps": steps[name]} if steps else {})}
        jobs.append(Job(name, method.algorithm, TASK, given, method.pace))
    return jobs


class Found(NamedTuple):
    """How one agent imitates, a number a seed."""

    label: str
    returns: np.ndarray
    distance: np.ndarray
    steps: int = 0
    seconds: float = 0.0
    states: np.ndarray | None = None  # some episodes of the first seed, [episode, step, obs]


def random_episodes(number: int) -> list[Trajectory]:
    """Episodes of uniformly random actions."""
    task = make_task(TASK)
    played = jax.jit(lambda key: random_rollouts(task, key, number))(jax.random.key(3))
    rows = (np.asarray(x) for x in (played.obs, played.action, played.reward))
    return [Trajectory(*each) for each in zip(*rows)]


def measure(paths: Sequence[Path]) -> list[Found]:
    """Random actions, the expert against itself, and every run."""
    expert = visited(make_demos(EPISODES, seed=1))[::THINNED]

    def compare(label: str, seeds: Sequence[list[Trajectory]]) -> Found:
        """The episodes of some seeds against the states that the expert visits."""
        mean_returns = np.array([returns(episodes).mean() for episodes in seeds])
        distance = [energy_distance(visited(episodes)[::THINNED], expert) for episodes in seeds]
        states = np.stack([t.obs for t in seeds[0][:DRAWN]])
        return Found(label, mean_returns, np.array(distance), states=states)

    found = [
        compare("random actions", [random_episodes(EPISODES)]),
        compare("the expert again", [make_demos(EPISODES, seed=2)]),
    ]
    for path in paths:
        trained = api.load(path)
        played = [record(trained, EPISODES, seed)[0] for seed in trained.seeds]
        seconds = trained.rows()[-1]["seconds"]
        one = compare(METHODS[path.name].label, played)
        found.append(one._replace(steps=trained.step, seconds=seconds))
    return found


def tabulate(found: Sequence[Found]) -> Sheet:
    """Return and distance of every method."""
    random, best = (float(f.returns.mean()) for f in found[:2])

    def row(f: Found) -> tuple[str, ...]:
        share = (f.returns - random) / (best - random)
        return (
            f.label,
            f"{f.steps:,}" if f.steps else "–",
            f"{share.mean():.2f} ({share.min():.2f})",
            f"{f.distance.mean():.3f} ({f.distance.max():.3f})",
            f"{f.seconds:.0f}" if f.seconds else "–",
        )

    header = ("method", "steps", "return / expert's", "distance", "time, s")
    return Sheet(f"Imitation on {TASK}: mean (worst seed)", header, [row(f) for f in found])


def draw_visited(found: Sequence[Found], demonstrated: np.ndarray, out: Path) -> None:
    """Places and velocities that agents visit, and those that were demonstrated."""
    figure = Figure(figsize=(0.4 + 2.3 * len(found), 5.2), layout="compressed")
    axes = figure.subplots(2, len(found), squeeze=False, sharex="row", sharey="row")
    for (above, below), f in zip(axes.T, found):
        assert f.states is not None
        above.set_title(f"{f.label}\ndistance {f.distance.mean():.2f}", fontsize=10)
        for ax, columns in ((above, slice(0, 2)), (below, slice(2, 4))):
            for episode in f.states[..., columns]:
                ax.plot(*episode.T, color="#0072b2", lw=0.6, alpha=0.6)
            dots = demonstrated[:, columns].T
            ax.plot(*dots, "o", mfc="#f0e442", mec="0.2", mew=0.4, ms=4, zorder=3)
            ax.set(aspect="equal")
    axes[0, 0].set_ylabel("place")
    axes[1, 0].set_ylabel("velocity")
    save(figure, out)


def run(
    out: Path,
    seeds: int = SEEDS,
    methods: Sequence[str] = MAIN_METHODS,
    at_once: int = AT_ONCE,
    steps: Mapping[str, int] | None = None,
) -> list[Found]:
    """Trains what is not yet trained; imitation.md, imitation.png and the runs lie in `out`."""
    batch.require_known(methods, METHODS, "imitator")
    require(seeds >= 1, f"seeds = {seeds} must be at least 1")
    batch.make_folder(out)
    if not (demos := out / "demos").exists():
        write_npz(make_demos(4), demos)
    paths = batch.train_into(out, make_jobs(demos, seeds, methods, steps), at_once)
    found = measure(paths)
    table = tabulate(found)
    demonstrated = select(load_demos(demos), TRAJECTORIES, EVERY).obs
    text = table.markdown() + "\n" + NOTE.format(pairs=len(demonstrated))
    (out / "imitation.md").write_text(text, encoding="utf-8")
    draw_visited(found, demonstrated, out / "imitation.png")
    table.show()
    return found
