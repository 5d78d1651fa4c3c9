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
    names = curves.Names(panel=lambda run: titles.get(run.config["task"], curves.task_name(run)))
    if "demos" not in Run.open(paths[0]).config:
        curves.draw_curves(paths, out / "curves.png", names=names)
        for setting, usual in study.over.items():
            curves.draw_over(paths, out / f"{setting}.png", setting, usual)
        tables.write_success(study.about, out, paths, study.note)
    else:
        found = shares.read(out, paths)
        paths = [f.run.path for f in found]
        titled = names.panel
        names = curves.Names(lambda r: f"{titled(r)}, {shares.amount_of(r)}", shares.label_of)
        curves.draw_curves(paths, out / "curves.png", "eval/return", names=names)
        shares.draw_shares(found, out / "shares.png", titles)
        scales = shares.tabulate_scales(shares.read_scales(out)).markdown()
        tables.write_summary(
            study.about, out, shares.tabulate(found), shares.NOTE, study.note, scales
        )
    if study.metrics:
        curves.draw_curves(paths, out / "metrics.png", *study.metrics, names=names)
