"""Whether what VDI's kernels ask for is what the task rewards, read off the episodes of runs.

    python bench/aligned.py RUN [RUN ...]

Takes every training episode of runs from the same demonstrations (imitated with `density = kernel`)
by itself: d of each demonstration state under kernels of several widths, and the return. Printed
for each width and three objectives: the rank correlation with the return, the mean return of the
twenty episodes that the objective likes best, and the share of episodes that it likes less than the
expert's other trajectories. An objective that prefers slow gaits will find them, however well it
is optimised (docs/experiments.md, fourteenth round).
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import special, stats

from uvd.agents import get_algorithm
from uvd.agents.agent import demonstrations
from uvd.training.loop import find_demos, find_task, plan_run
from uvd.runs import Run

WIDTHS = (0.4, 0.3, 0.2, 0.15, 0.1, 0.07)  # of the root of the number of columns
FLOOR = np.exp(-3)
OBJECTIVES = {
    "log d": lambda log_d: log_d.mean(-1),
    "log (d + e^-3)": lambda log_d: np.log(np.exp(log_d) + FLOOR).mean(-1),
    "d": lambda log_d: np.exp(log_d).mean(-1),
}
WARM = 50  # episodes of a run that are left out
BEST = 20


def densities(path: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """log d of every goal under every width, over the kernel's peak: `[widths, goals]`."""
    apart = ((path[:, None] - goals) ** 2).mean(-1)
    logs = [-apart / (2 * width**2) for width in WIDTHS]
    return np.array([special.logsumexp(x, 0) - np.log(len(path)) for x in logs])


def episodes(run: Run) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Observations, actions and return of each training episode of a run's first seed."""
    for record in run.episodes().read(0):
        for i, steps in enumerate(record["length"]):
            rewards = record["reward"][i][:steps].sum(dtype=np.float64)
            yield record["obs"][i][:steps], record["action"][i][:steps], float(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    runs = [Run.open(path) for path in parser.parse_args().runs]
    config = runs[0].config
    compare = config["settings"]["compare"]
    if compare == "changes":
        parser.error("changes are not compared here: give runs of states or pairs")
    plan = plan_run(runs[0])
    plan.program.close()
    scale, live = np.asarray(plan.spec.norm.obs_scale), np.array(plan.spec.live_obs)

    def points(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        x = (obs / scale)[:, live]
        return np.concatenate([x, action], 1) if compare == "pairs" else x

    shown = demonstrations(plan.spec)
    goals = points(np.asarray(shown.obs), np.asarray(shown.action))
    names = ("demos", "previous_action")
    every = {k: v for k, v in config["demos"].items() if k in names}
    task = find_task(config["task"], config["task_settings"])
    known, _ = find_demos("vdi", get_algorithm("vdi"), task, every)
    steps = plan.task.horizon
    others = points(known.obs, known.action)[steps : 6 * steps].reshape(5, steps, -1)
    expert = np.array([densities(path, goals) for path in others])
    played, returns = [], []
    for run in runs:
        for i, (obs, action, value) in enumerate(episodes(run)):
            if i >= WARM:
                played.append(densities(points(obs, action), goals))
                returns.append(value)
    log_d, value = np.array(played), np.array(returns)
    print(f"{len(goals)} states of {goals.shape[1]} columns, {len(value)} episodes")
    print(
        f"{'width':>6} {'objective':>15} {'correlation':>12} {'its best':>9} {'below expert':>13}"
    )
    for i, width in enumerate(WIDTHS):
        for name, objective in OBJECTIVES.items():
            liked = objective(log_d[:, i])
            best = value[np.argsort(-liked)[:BEST]].mean()
            below = (liked < objective(expert[:, i]).mean()).mean()
            rank = stats.spearmanr(liked, value).statistic
            print(f"{width:6} {name:>15} {rank:12.2f} {best:9.0f} {below:13.2f}")


if __name__ == "__main__":
    main()
