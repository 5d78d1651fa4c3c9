"""Whether what KDI's kernels ask for is what the task rewards, read off the episodes of runs.

    python bench/aligned.py RUN [RUN ...]

Takes every training episode of KDI runs from the same demonstrations by itself: d of each
demonstrated step under kernels of several widths, and the return. Printed for each width and three
objectives: the rank correlation with the return, the mean return of the twenty episodes with the
highest objective, and the share of episodes whose objective is below that of the expert's other
trajectories. An objective that is higher for slow gaits will find them, however well it is
optimised (docs/archive/experiments.md, fourteenth round).
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from uvd.agents.kernels import Kernels
from uvd.core.episode import Episode, from_records, stack
from uvd.core.replay import init_ring, insert
from uvd.demos.files import load_demos
from uvd.demos.select import demo_pairs
from uvd.runs import Run
from uvd.settings import from_file
from uvd.tasks.find import find_task
from uvd.training.loop import plan_run
from uvd.training.plan import Plan

WIDTHS = (0.4, 0.3, 0.2, 0.15, 0.1, 0.07)  # of the root of the number of columns
FLOOR = np.exp(-3)
OBJECTIVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "log d": lambda log_d: log_d.mean(-1),
    "log (d + e^-3)": lambda log_d: np.log(np.exp(log_d) + FLOOR).mean(-1),
    "d": lambda log_d: np.exp(log_d).mean(-1),
}
WARM = 50  # episodes of a run that are left out
BEST = 20
OTHERS = 5  # trajectories of the expert that are compared, after those that the run imitated


def density_of(plan: Plan) -> Callable[[Episode], jax.Array]:
    """log d of every demonstrated step under every width, by one episode: `[widths, steps]`."""
    task, kernels = plan.task, Kernels(plan.config.settings.match, plan.spec)
    norm = jax.tree.map(jnp.asarray, plan.spec.norm)
    widths = np.array(WIDTHS) * kernels.demo_points.shape[1] ** 0.5

    @jax.jit
    def densities(episode: Episode) -> jax.Array:
        ring = init_ring(task.horizon + 1, task.obs_dim, task.action_dim, 0)
        ring = insert(ring, episode)
        return jnp.stack([kernels.log_d(width, norm, ring, task.horizon) for width in widths])

    return densities


def training_episodes(run: Run, horizon: int) -> Iterator[Episode]:
    """The training episodes of a run's first seed."""
    for record in run.episodes().read(0):
        played = from_records([record], horizon)
        yield from (Episode(*(x[0, i] for x in played)) for i in range(played.length.shape[1]))


def expert_episodes(run: Run, plan: Plan) -> list[Episode]:
    """The expert's other trajectories, as episodes of the task."""
    demos, config = from_file(run.config).demos, plan.config
    first, all_ = demos.trajectories or 0, load_demos(str(demos.demos)).trajectories
    settings = dataclasses.replace(demos, trajectories=None, every=1, offset=None)
    pairs, *_ = demo_pairs(settings, find_task(config.task, config.task_settings))
    lengths = [t.steps for t in all_]
    ends, found = np.cumsum(lengths), []
    for length, end in list(zip(lengths, ends))[first : first + OTHERS]:
        rows = slice(end - length, end)
        obs, action = pairs.obs[rows], pairs.action[rows][:-1]
        none, zeros = np.zeros((len(obs), 0), np.float32), np.zeros(len(action), np.float32)
        rest = (none, none[0], np.int32(len(action)), np.bool_(False), zeros.astype(bool), zeros)
        found.append(Episode(obs, action, *rest))
    stacked = stack([found], plan.task.horizon)
    return [Episode(*(x[0, i] for x in stacked)) for i in range(len(found))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    runs = [Run.open(path) for path in parser.parse_args().runs]
    if any(run.config["algorithm"] != "kdi" for run in runs):
        parser.error("runs of kdi are compared, no others")
    plan = plan_run(runs[0])
    plan.program.close()
    densities = density_of(plan)
    expert = np.array([densities(episode) for episode in expert_episodes(runs[0], plan)])
    played, returns = [], []
    for run in runs:
        for i, episode in enumerate(training_episodes(run, plan.task.horizon)):
            if i >= WARM:
                played.append(densities(episode))
                returns.append(float(episode.reward.sum(dtype=np.float64)))
    log_d, value = np.array(played), np.array(returns)
    print(f"{log_d.shape[-1]} demonstrated steps, {len(value)} episodes")
    header = ("width", "objective", "correlation", "its best", "below expert")
    print("{:>6} {:>15} {:>12} {:>9} {:>13}".format(*header))
    for i, width in enumerate(WIDTHS):
        for name, objective in OBJECTIVES.items():
            score = objective(log_d[:, i])
            best = value[np.argsort(-score)[:BEST]].mean()
            below = (score < objective(expert[:, i]).mean()).mean()
            rank = stats.spearmanr(score, value).statistic
            print(f"{width:6} {name:>15} {rank:12.2f} {best:9.0f} {below:13.2f}")


if __name__ == "__main__":
    main()
