"""The paper's argument in a few minutes: the cliff walk's bias, goals beside a pit, imitation."""

from pathlib import Path

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
    shares.measure_scale(out, PENDULUM, imitators[0].given["demos"])
    runner.train(out, list(trials))

    paths = [out / trial.name for trial in on_cliff]
    curves.draw_curves(paths, out / "curves.png", label=curves.method_name)
    maps.draw_paths(paths, out / "paths.png")
    maps.draw_density(paths[-1], out / "density.png")
    success = tables.read_success(paths)
    found = shares.read(out, [out / trial.name for trial in imitators])
    tables.write_summary(
        "The demo",
        out,
        tables.tabulate_success(success).markdown(),
        tables.NOTE,
        tables.tabulate_differences(success).markdown(),
        FIGURES,
        shares.tabulate(found).markdown(),
        shares.NOTE,
        cliffwalk.tabulate(rows).markdown(),
    )

    print(f"\nCliff walk, slips of {SLIP:.0%}, against exact values:")
    for label, strategy in (("HER as the paper words it", "her-paper"), ("UVD", "uvd")):
        believed, _ = cliffwalk.interval(rows, strategy, SLIP, "bias_own")
        got, _ = cliffwalk.interval(rows, strategy, SLIP, "success_final")
        print(f"  {label}: believes its policy worth {believed:+.0f} %, succeeds in {got:.0f} %")
    print(f"{maps.CLIFF}, {steps:,} steps, {seeds} seeds, success at the final step:")
    print("  " + ", ".join(f"{s.label} {100 * s.final.mean():.0f} %" for s in success))
    print(f"{PENDULUM}, {found[0].demonstrations} demonstrated pairs, share of the expert:")
    print("  " + ", ".join(f"{f.method} {f.share.mean():.2f}" for f in found))
    print(f"figures and tables: {out}/summary.md")
