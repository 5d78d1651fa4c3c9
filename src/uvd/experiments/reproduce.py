"""The paper's experiments: studies of the package, and what is drawn of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from uvd.core.config import require
from uvd.core.errors import nearest
from uvd.experiments import curves, maps, shares, tables
from uvd.runs import Run
from uvd.study import runner
from uvd.study.file import Study, Trial, read_study

STUDIES = {path.stem: path for path in sorted((Path(__file__).parent / "studies").glob("*.toml"))}


def load(name: str) -> Study:
    """The study of an experiment."""
    require(name, f"uvd reproduce needs an experiment: {', '.join(STUDIES)}")
    if name not in STUDIES:
        raise nearest(name, STUDIES, "experiment")
    return read_study(STUDIES[name])


def reproduce(
    study: Study,
    out: Path,
    trials: Sequence[Trial],
    train: Callable[[Path, Sequence[str]], None] = runner.train,
) -> None:
    """Trains what is not yet trained; figures and tables show all that `out` has by then."""
    complete = runner.complete(study, trials)
    for task, source in {t.task: t.given["demos"] for t in trials if "demos" in t.given}.items():
        shares.measure_scale(out, task, source)
    runner.plan(out, complete)
    train(out, list(complete))
    if paths := [out / t.name for t in trials if t.task == maps.CLIFF]:
        maps.draw_paths(paths, out / "paths.png")
    draw(study, out)


def draw(study: Study, out: Path) -> None:
    """Figures and summary.md, from settings and metrics of the finished runs in `out`."""
    paths = runner.finished(out, [trial.name for trial in study.trials(extra=True)])
    require(paths, f"{out} has no finished runs to draw")
    named = {key: task for key, task in study.tasks.items() if "title" in task}
    titles = {task.get("task", key): task["title"] for key, task in named.items()}

    def panel(run: Run) -> str:
        title = titles.get(run.config["task"], curves.task_name(run))
        if "demos" in run.config:
            title += ", {}x{}".format(*shares.amount_of(run))
        return title

    if "demos" in Run.open(paths[0]).config:
        metric, found = "eval/return", shares.read(out, paths)
        paths = [f.run.path for f in found]
        shares.draw_shares(found, out / "shares.png", titles)
        scales = shares.tabulate_scales(shares.read_scales(out))
        table, more = shares.tabulate(found), [shares.NOTE, study.note, scales.markdown()]
    else:
        metric, success = "eval/success_final", tables.read_success(paths)
        table, gaps = tables.tabulate_success(success), tables.tabulate_differences(success)
        more = [tables.NOTE, gaps.markdown(), study.note]
        for setting, usual in study.over.items():
            curves.draw_over(paths, out / f"{setting}.png", setting, usual)
    method = curves.method_name
    curves.draw_curves(paths, out / "curves.png", metric, panel=panel, label=method)
    if study.metrics:
        curves.draw_curves(paths, out / "metrics.png", *study.metrics, panel=panel, label=method)
    tables.write_summary(study.about, out, table.markdown(), *more)
    table.show()
    print(f"tables and figures: {out}", flush=True)
