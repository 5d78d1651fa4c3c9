"""The paper's argument in a few minutes: the cliff walk's bias, goals beside a pit, imitation."""

from pathlib import Path

import numpy as np

from uvd.experiments import cliffwalk, curves, maps, reproduce, shares, tables
from uvd.study import runner

SLIP = 0.3  # of the cliff walk's lines; its figure has all slips
LEARNERS = ("td", "her-future", "her-paper", "uvd")
METHODS = ("her-future", "her-paper", "uvd")
PENDULUM, IMITATORS = "InvertedDoublePendulum-v5", ("kdi", "bc")
FIGURES = """\
## Figures

- figure1.png, bias.png: the cliff walk, where exact values are known
- curves.png: learning curves, interquartile mean and 95 % bands
- paths.png: the evaluation episodes of PointCliff, over the pit
- density.png: from one state, what was reached, the learned density and value over goals
"""


def demo(out: Path, seeds: int = 4, steps: int = 16_000, imitation_steps: int = 60_000) -> None:
    """Figures and tables into a folder, and six lines on the screen."""
    goals, imitation = reproduce.load("mini"), reproduce.load("imitation")
    on_cliff = goals.trials((maps.CLIFF,), METHODS, seeds=seeds, steps=steps)
    imitators = imitation.trials((PENDULUM,), IMITATORS, seeds=1, steps=imitation_steps)
    trials = {**runner.complete(goals, on_cliff), **runner.complete(imitation, imitators)}
    runner.plan(out, trials)
    print("The cliff walk against exact values", flush=True)
    rows = cliffwalk.measure(range(2), strategies=LEARNERS)
    cliffwalk.draw_bias(rows, out / "bias.png")
    cliffwalk.draw_figure1(out / "figure1.png", SLIP)
    source = imitators[0].given["demos"]
    shares.measure_scale(out, imitators[0].task, source)
    runner.train(out, list(trials))

    paths = [out / trial.name for trial in on_cliff]
    curves.draw_curves(paths, out / "curves.png", names=curves.BY_METHOD)
    maps.draw_paths(paths, out / "paths.png")
    maps.draw_density(paths[-1], out / "density.png")
    found = shares.read(out, [out / trial.name for trial in imitators])
    bias, shared = cliffwalk.tabulate(rows), shares.tabulate(found)
    more = (FIGURES, shared.markdown(), shares.NOTE, bias.markdown())
    tables.write_success("The demo", out, paths, *more, show=False)

    def of(strategy: str, name: str) -> float:
        own = [r[name] for r in rows if (r["strategy"], r["slip"]) == (strategy, SLIP)]
        return 100 * float(np.mean(own))

    her, uvd = "HER as the paper words it", "UVD"
    print(f"\nCliff walk, slips of {SLIP:.0%}, against exact values:")
    for label, strategy in ((her, "her-paper"), (uvd, "uvd")):
        believed, got = of(strategy, "bias_own"), of(strategy, "success_final")
        print(f"  {label}: believes its policy worth {believed:+.0f} %, succeeds in {got:.0f} %")
    ends = {s.label: 100 * s.final.mean() for s in tables.read_success(paths)}
    print(f"{maps.CLIFF}, {steps:,} steps, {seeds} seeds, success at the final step:")
    print("  " + ", ".join(f"{label} {value:.0f} %" for label, value in ends.items()))
    print(
        f"{imitators[0].task}, {found[0].demonstrations} demonstrated pairs, share of the expert:"
    )
    print("  " + ", ".join(f"{f.method} {f.share.mean():.2f}" for f in found))
    print(f"figures and tables: {out}/summary.md")
