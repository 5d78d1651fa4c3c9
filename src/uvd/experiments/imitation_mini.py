"""Imitation in miniature: VDI, BC, DAC and GAIL on PointLoop, from a few states of one expert.

The expert is scripted, so what an imitator should visit is known: the table has the return as a
share of the expert's (random play is 0), and the energy distance between the states that agent and
expert visit. The figure draws those states.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from uvd import api
from uvd.demos.memory import Trajectory
from uvd.demos.select import select
from uvd.core.errors import UserError
from uvd.experiments import batch
from uvd.experiments.batch import AT_ONCE, Job, Sheet
from uvd.experiments.pointloop import make_demos, visited
from uvd.experiments.statistics import energy_distance
from uvd.demos.files import load_demos as load_shown
from uvd.demos.write import write_npz
from uvd.training.on_device import random_rollouts
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
    steps: int
    pace: float  # seconds for 1000 steps of a seed on a CPU core: only to announce the time
    settings: dict[str, Any]
    envs: int = 4


METHODS = {
    "vdi": Method("VDI (states)", "vdi", 40_000, 3.0, {}),
    "dac": Method("DAC", "dac", 40_000, 1.0, {}),
    "dac-states": Method("DAC (states)", "dac", 40_000, 1.0, {"reads": "state"}),
    "gail": Method("GAIL", "gail", 120_000, 0.1, {}, 8),
    "gail-states": Method("GAIL (states)", "gail", 120_000, 0.1, {"reads": "state"}, 8),
    "bc": Method("BC", "bc", 20_000, 0.1, {}),
}
MAIN_METHODS = ("vdi", "dac", "gail", "bc")
DEMO_SEEDS = 1
DEMO_STEPS = {"vdi": 10_000, "gail": 80_000, "bc": 4_000}  # what fits into the demo

NOTE = """\
The expert shows {pairs} pairs: {trajectories} trajectory, every {every}th step. VDI and what is
marked "states" do not read their actions. Return: the mean of {episodes} fresh episodes a seed, as
a share of the expert's, random play being 0. Distance: the energy distance between every
{thinned}th state visited in them and in {episodes} other episodes of the expert. Both: mean over
seeds (worst seed).
"""


def make_jobs(
    shown: Path, seeds: int, methods: Iterable[str], steps: Mapping[str, int]
) -> list[Job]:
    """Every method, shown the same pairs; `steps` where they are not the method's own."""
    return [
        Job(
            name, m.algorithm, TASK,
            {"seeds": seeds, "steps": steps.get(name, m.steps), "envs": m.envs}, m.pace, m.settings,
            demos={"demos": str(shown), "trajectories": TRAJECTORIES, "every": EVERY},
        )
        for name, m in ((name, METHODS[name]) for name in methods)
    ]  # fmt: skip


class Found(NamedTuple):
    """How one agent imitates, a number a seed."""

    label: str
    returns: np.ndarray
    distance: np.ndarray
    steps: int = 0
    seconds: float = 0.0
    states: np.ndarray | None = None  # some episodes of the first seed, [episode, step, obs]


def random_play(episodes: int) -> list[Trajectory]:
    """Episodes of uniformly random actions."""
    played = jax.jit(lambda key: random_rollouts(make_task(TASK), key, episodes))(jax.random.key(3))
    rows = (np.asarray(x) for x in (played.obs, played.action, played.reward))
    return [Trajectory(*each) for each in zip(*rows)]


def _found(label: str, played: Sequence[list[Trajectory]], expert: np.ndarray) -> Found:
    """What the seeds' episodes come to, against the states that the expert visits."""
    rewards = [[t.reward for t in seed if t.reward is not None] for seed in played]
    returns = np.array([np.mean([r.sum() for r in seed]) for seed in rewards])
    distance = np.array([energy_distance(visited(seed)[::THINNED], expert) for seed in played])
    states = np.stack([t.obs for t in played[0][:DRAWN]])
    return Found(label, returns, distance, states=states)


def measure(paths: Sequence[Path]) -> list[Found]:
    """Random play, the expert against itself, and every run."""
    expert = visited(make_demos(EPISODES, seed=1))[::THINNED]
    found = [
        _found("random play", [random_play(EPISODES)], expert),
        _found("the expert again", [make_demos(EPISODES, seed=2)], expert),
    ]
    for path in paths:
        trained = api.load(path)
        seeds = range(trained.plan.run.seeds)
        played = [api.record(trained, EPISODES, seed)[0] for seed in seeds]
        last = trained.rows()[-1]
        one = _found(METHODS[path.name].label, played, expert)
        found.append(one._replace(steps=last["step"], seconds=last["seconds"]))
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

    return Sheet(
        f"Imitation on {TASK}: mean (worst seed)",
        ("method", "steps", "return / expert's", "distance", "time, s"),
        [row(f) for f in found],
    )


def draw_visited(found: Sequence[Found], shown: np.ndarray, out: Path) -> None:
    """Places and velocities that agents visit, over those that were shown."""
    figure = Figure(figsize=(0.4 + 2.3 * len(found), 5.2), layout="compressed")
    axes = figure.subplots(2, len(found), squeeze=False, sharex="row", sharey="row")
    for (above, below), f in zip(axes.T, found):
        assert f.states is not None
        above.set_title(f"{f.label}\ndistance {f.distance.mean():.2f}", fontsize=10)
        for ax, columns in ((above, slice(0, 2)), (below, slice(2, 4))):
            for episode in f.states[..., columns]:
                ax.plot(*episode.T, color="#0072b2", lw=0.6, alpha=0.6)
            ax.plot(*shown[:, columns].T, "o", mfc="#f0e442", mec="0.2", mew=0.4, ms=4, zorder=3)
            ax.set(aspect="equal")
    axes[0, 0].set_ylabel("place")
    axes[1, 0].set_ylabel("velocity")
    figure.savefig(out, dpi=120)


def run(
    out: Path,
    seeds: int = SEEDS,
    methods: Sequence[str] = MAIN_METHODS,
    at_once: int = AT_ONCE,
    steps: Mapping[str, int] = MappingProxyType({}),
) -> list[Found]:
    """Trains what is not yet trained; imitation.md, imitation.png and the runs lie in `out`."""
    batch.require_known(methods, METHODS, "imitator")
    if seeds < 1:
        raise UserError(f"seeds = {seeds} must be at least 1")
    batch.make_folder(out)
    demos = out / "demos"
    if not demos.exists():
        write_npz(make_demos(4), demos)
    paths = batch.train_and_keep(make_jobs(demos, seeds, methods, steps), out, at_once)
    found = measure(paths)
    table = tabulate(found)
    shown = select(load_shown(demos), TRAJECTORIES, EVERY).obs
    note = NOTE.format(
        pairs=len(shown), trajectories=TRAJECTORIES, every=EVERY, episodes=EPISODES, thinned=THINNED
    )
    text = "\n".join([table.markdown(), note])
    (out / "imitation.md").write_text(text, encoding="utf-8")
    draw_visited(found, shown, out / "imitation.png")
    table.show()
    return found
