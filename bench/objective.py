"""What VDI's objective asks for, read off demonstrations before anything is learned.

    python bench/objective.py TASK DEMOS [--every N] [--previous-action]

A kernel of the smoothing's width stands for F^(1/N), another trajectory of the expert for the
agent (six of one length are needed). Printed, as means over the demonstrated states: the value that
the expert has by the sum and by the maximum, and that of staying in one state for ever: the best of
the expert's, or the mean of the demonstrated ones. Where staying is worth as much as moving, VDI
may hover (docs/archive/experiments.md, ninth round).
"""

import argparse
import math
from dataclasses import replace

import numpy as np

from uvd.demos.select import demo_pairs
from uvd.tasks.find import find_task
from uvd.training.plan import configure, make_plan

WIDTHS = (0.1, 0.15, 0.2, 0.3)
GAMMAS = (0.95, 0.98, 0.99, 0.995)
AGENT = 5  # which trajectory stands for the agent; the first is what is imitated


def kernel(path: np.ndarray, goals: np.ndarray, width: float) -> np.ndarray:
    """F^(1/N) of every state for every goal, `[states, goals]`."""
    gap = ((path[:, None] - goals[None]) ** 2).mean(-1)
    return np.exp(-gap / (2 * width**2)) / (width * math.sqrt(2 * math.pi))


def passing(f: np.ndarray, gamma: float) -> float:
    """The mean of max_k gamma^k F_k, over all but the last steps, which see too little ahead."""
    value, values = np.zeros(f.shape[1]), []
    for now in f[::-1]:
        value = np.maximum(now, gamma * value)
        values.append(value)
    return float(np.mean(values[len(values) // 5 :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task")
    parser.add_argument("demos")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--previous-action", action="store_true")
    args = parser.parse_args()
    demos = {"trajectories": 1, "every": args.every, "previous_action": args.previous_action}
    config, inputs = configure("vdi", args.task, given={"demos": args.demos, **demos})
    plan = make_plan(config, inputs)
    plan.program.close()
    assert inputs.demos is not None
    columns = plan.spec.columns
    scale = np.asarray(plan.spec.norm.obs_scale)
    settings = replace(config.demos, trajectories=AGENT + 1, every=1)
    states, *_ = demo_pairs(settings, find_task(args.task))
    path = (states.obs / scale)[:, columns].reshape(AGENT + 1, -1, len(columns))
    goals = (np.asarray(inputs.demos.obs) / scale)[:, columns]
    expert, stays = path[AGENT], np.concatenate(path[1:])[::3]
    mean = goals.mean(0)[None]
    near = ((expert[:, None] - goals[None]) ** 2).mean(-1).min(1).mean()
    print(
        f"{len(goals)} states of {len(columns)} columns; the nearest is {math.sqrt(near):.2f} away"
    )
    names = ["sum", *(f"max {g}" for g in GAMMAS), "stay", "mean"]
    print(" width" + "".join(f"{name:>11}" for name in names))
    for width in WIDTHS:
        f = kernel(expert, goals, width)
        still = [kernel(x, goals, width).mean(1).max() for x in (stays, mean)]
        row = [f.mean(), *(passing(f, g) for g in GAMMAS), *still]
        print(f"{width:6}" + "".join(f"{x:11.2f}" for x in row))


if __name__ == "__main__":
    main()
