import json
from dataclasses import replace

from uvd.experiments import reproduce, tables
from uvd.runs import Run
from uvd.study import runner

CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"


def train(out, methods=()):
    study = reproduce.load("mini")
    trials = study.trials((PUSH, CLIFF), methods, seeds=3, steps=1000)
    runner.plan(out, runner.complete(study, trials))
    runner.train(out, at_once=1)
    return [out / trial.name for trial in trials]


def test_tables_hold_what_the_runs_report(training, tmp_path):
    found = tables.read_success(train(tmp_path))
    table = tables.tabulate_success(found)
    rows = {row[:2]: dict(zip(table.header, row)) for row in table.rows}
    uvd = rows[PUSH, "UVD"]
    assert uvd["final step [95 %]"] == "89.0 [88.0, 90.0]"
    assert uvd["ever [95 %]"] == "90.0 [90.0, 90.0]"
    assert uvd["worst"] == "88"
    assert uvd["time, s"] == "2"
    assert uvd["max target"] == "1.000"
    assert uvd["finite"] == "yes"
    assert rows[CLIFF, "HER-PAPER"]["max target"] == "–"
    gaps = tables.tabulate_differences(found)
    assert len(gaps.rows) == 7  # three strategies on one task, four on the other
    assert gaps.rows[0][1].endswith("(the best HER)")
    assert gaps.rows[0][2].startswith("+20.0 [")
    lines = table.markdown().splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {len(table.header) + 1}


def test_runs_of_other_seeds_are_one_row(training, tmp_path):
    """Ten seeds in two runs; the size of the noise keeps tasks apart."""
    study = reproduce.load("bias")
    trials = study.trials(["PointSlideNoise-v0", "noise-4"], ["balanced", "her"], steps=1000)
    plan = runner.complete(study, trials)
    more = {
        name: {**settings, "run": {**settings["run"], "first_seed": 500, "seeds": 4}}
        for name, settings in plan.items()
    }
    for folder, trials in ((tmp_path, plan), (tmp_path / "more", more)):
        runner.plan(folder, trials)
        runner.train(folder, at_once=1)
    found = tables.read_success(
        folder / name for folder in (tmp_path, tmp_path / "more") for name in plan
    )
    names = [(s.task, s.label, len(s.final)) for s in found]
    noisy = "PointSlideNoise-v0 (noise_scale 4.0)"
    assert names == [
        (task, label, seeds)
        for task, seeds in (("PointSlideNoise-v0", 14), (noisy, 10))
        for label in ("BALANCED", "HER")
    ]
    assert found[0].seconds == 4.0
    reproduce.draw(replace(study, metrics=[]), tmp_path)
    summary = (tmp_path / "summary.md").read_text()
    assert f"| {noisy} | HER | 67.5 [66.0, 69.2] | 70.0" in summary


def test_a_number_that_is_not_finite_is_reported(training, tmp_path):
    path = train(tmp_path, ["uvd"])[0]
    rows = Run.open(path).rows()
    rows[0]["critic/target_over_bound_max"] = [1.0, None, 2.0]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tables.health(Run.open(path).rows()) == ("inf", "NO")
    assert tables.health([]) == ("–", "yes")
