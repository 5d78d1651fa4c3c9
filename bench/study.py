"""What a study costs beside the same runs by hand: ratios measured in one run.

    python bench/study.py [--steps 12000] [--rounds 2] [--arms hand study seeds ray]

32 runs of HER on PointReach: 8 discounts, 4 seeds of each, two at a time, a CPU core each.

    hand     32 commands `uvd train`, a seed each
    study    the same 32 runs as trials of `uvd sweep`
    seeds    8 trials of `uvd sweep`, the four seeds of each as one program
    ray      the 32 trials of `study` on a Ray cluster on this machine; its start is timed apart

Compiled programs are cached for all, and one short run before fills the cache. Nothing else should
run on the machine; its speed may still drift, so every second round has the arms in reverse order,
and a ratio is one of sums. Rows go to `--out` as JSON, one a line.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from rows import report
from uvd.experiments.statistics import interval
from uvd.runs import Run

GAMMAS, SEEDS, TASK = (0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985), 4, "PointReach-v0"
UVD = [sys.executable, "-m", "uvd.cli"]
STUDY = """\
[settings]
steps = {steps}
seeds = {seeds}
[tasks]
{task} = {{}}
[methods]
her = {{}}
[grid]
gamma = {gammas}
{more}
"""


def quiet(command: list[str], **options) -> None:
    """Runs a command without its output; it must succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)


def by_hand(out: Path, steps: int) -> None:
    """32 commands, two at a time, each on a core of its own."""
    free: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        free.put(core)

    def train(gamma: float, seed: int) -> None:
        core = free.get()
        given = {"gamma": gamma, "first-seed": seed, "seeds": 1, "steps": steps}
        flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        name = f"{TASK}-her-gamma{gamma}-first_seed{seed}"
        pinned = ["taskset", "-c", str(core)]
        quiet([*pinned, *UVD, "train", "her", TASK, *flags, "--out", str(out / name)])
        free.put(core)

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(train, gamma, seed) for gamma in GAMMAS for seed in range(SEEDS)]
        for run in runs:
            run.result()


def write_study(path: Path, steps: int, together: bool) -> Path:
    """The study file: the seeds of a trial as one program, or a trial each."""
    more = "" if together else f"first_seed = {list(range(SEEDS))}"
    seeds = SEEDS if together else 1
    path.write_text(
        STUDY.format(steps=steps, seeds=seeds, task=TASK, gammas=list(GAMMAS), more=more)
    )
    return path


def scores(out: Path) -> list[float]:
    """Success of all runs at the last report."""
    rows = [Run.open(path.parent).rows()[-1] for path in sorted(out.glob("*/config.toml"))]
    return [value for row in rows for value in row["eval/success_final"]]


def main() -> None:
    """Prints a row an arm."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--arms", nargs="+", default=["hand", "study", "seeds", "ray"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with TemporaryDirectory(prefix="uvd-bench-") as name:
        folder = Path(name)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "cache")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        apart = write_study(folder / "apart.toml", args.steps, together=False)
        whole = write_study(folder / "whole.toml", args.steps, together=True)
        for seeds in (1, SEEDS):
            size = ["--seeds", str(seeds), "--steps", str(args.steps)]
            quiet([*UVD, "train", "her", TASK, *size, "--out", str(folder / f"warm{seeds}")])

        def sweep(out: Path, study: Path, *more: str) -> None:
            quiet([*UVD, "sweep", str(study), "--out", str(out), *more])

        arms = {
            "hand": lambda out: by_hand(out, args.steps),
            "study": lambda out: sweep(out, apart),
            "seeds": lambda out: sweep(out, whole),
            "ray": lambda out: sweep(out, apart, "--ray", "auto"),
        }
        seconds: dict[str, float] = defaultdict(float)
        for turn in range(args.rounds):
            for arm in args.arms[:: -1 if turn % 2 else 1]:
                begun = time.monotonic()
                if arm == "ray":
                    ray = str(Path(sys.executable).parent / "ray")
                    quiet([ray, "start", "--head", "--num-cpus", "2", "--disable-usage-stats"])
                    seconds["start of Ray"] += (time.monotonic() - begun) / args.rounds
                    begun = time.monotonic()
                out = folder / f"{arm}{turn}"
                arms[arm](out)
                spent = time.monotonic() - begun
                seconds[arm] += spent
                if arm == "ray":
                    quiet([ray, "stop", "--force"])
                found = scores(out)
                middle, low, high = interval(found)
                row = {
                    "arm": arm, "round": turn, "runs": len(found), "steps": args.steps,
                    "seconds": spent, "success": middle, "low": low, "high": high,
                }  # fmt: skip
                report(row, args.out)
        for a, b in (("study", "hand"), ("hand", "seeds"), ("ray", "study")):
            if a in seconds and b in seconds:
                print(f"{a} / {b}: {seconds[a] / seconds[b]:.3f}")
        if "start of Ray" in seconds:
            print(f"start of Ray: {seconds['start of Ray']:.1f} s")


if __name__ == "__main__":
    main()
