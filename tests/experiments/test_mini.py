import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from uvd.errors import Stopped, UserError
from uvd.experiments import mini
from uvd.runs import Run

CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"
SUCCESS = {"td3": 0.1, "her": 0.7, "uvd": 0.9}


def fake_training(calls, stop_at=None):
    """In place of a process that trains: two reports, from where it stands, and a checkpoint."""

    def train_process(path, cores):
        run = Run.open(path)
        calls.append(path.name)
        for i in range(len(run.rows()) + 1, 3):
            if stop_at == (path.name, i):
                run.close()
                return 130
            seeds, best = run.config["run"]["seeds"], SUCCESS[run.config["algorithm"]]
            row = {"step": i * run.config["run"]["steps"] // 2, "seconds": float(i)}
            final = [best * i / 2 - 0.01 * seed for seed in range(seeds)]
            row |= {"eval/success_final": final, "eval/success_ever": [best] * seeds}
            if run.config["algorithm"] == "uvd":
                row["critic/target_over_bound_max"] = [0.5 * i] * seeds
            run.report(row)
        run.save(row["step"], {}, {})
        run.close()
        return 0

    return train_process


@pytest.fixture
def jobs():
    return mini.make_jobs(
        {PUSH: 1000, CLIFF: 1000}, 3, [m for m in mini.METHODS if m not in mini.EXTRA]
    )


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(mini, "_train_process", fake_training(made))
    return made


def test_the_papers_wording_runs_on_the_cliff_only(jobs):
    assert len(jobs) == 11
    assert [job.task for job in jobs if job.settings.get("strategy") == "paper"] == [CLIFF]
    assert len({job.name for job in jobs}) == len(jobs)


def test_a_complete_run_is_used_again(jobs, calls, tmp_path):
    first = mini.train_all(jobs[:3], tmp_path)
    assert calls == [jobs[i].name for i in (1, 2, 0)]  # the longest first
    assert mini.train_all(jobs[:4], tmp_path)[:3] == first
    assert calls == [jobs[i].name for i in (1, 2, 0, 3)]


def test_a_stopped_run_is_resumed(jobs, calls, tmp_path, monkeypatch):
    path = tmp_path / jobs[1].name
    with monkeypatch.context() as patch:
        patch.setattr(mini, "_train_process", fake_training(calls, stop_at=(path.name, 2)))
        with pytest.raises(Stopped, match=f"{path.name}; repeat the command"):
            mini.train_all(jobs[:2], tmp_path)
    assert not mini.complete(Run.open(path))
    assert mini.seconds_left(jobs[:2], tmp_path) > 0
    mini.train_all(jobs[:2], tmp_path)
    assert calls == [jobs[i].name for i in (1, 0, 1)]
    assert len(Run.open(path).rows()) == 2
    assert mini.seconds_left(jobs[:2], tmp_path) == 0


def test_a_run_that_fails_is_named(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(mini, "_train_process", lambda path, cores: 2)
    with pytest.raises(UserError, match=f"{jobs[0].name} failed"):
        mini.train_all(jobs[:1], tmp_path)


def test_a_last_report_without_its_checkpoint_is_not_complete(jobs, calls, tmp_path):
    (path,) = mini.train_all(jobs[:1], tmp_path)
    (path / "checkpoints" / "1000").rename(path / "checkpoints" / ".tmp-1000")
    assert not mini.complete(Run.open(path))


def test_a_run_of_other_settings_is_refused_before_any_is_trained(jobs, calls, tmp_path):
    mini.train_all(jobs[1:2], tmp_path)
    more = mini.make_jobs({PUSH: 1000}, 5, mini.METHODS)
    with pytest.raises(UserError, match="seeds = 3, not 5"):
        mini.train_all(more, tmp_path)
    assert calls == [jobs[1].name]


def test_the_tables_say_what_the_runs_did(jobs, calls, tmp_path):
    found = mini.scores(mini.train_all(jobs, tmp_path))
    table = mini.tabulate(found)
    rows = {row[:2]: dict(zip(table.header, row)) for row in table.rows}
    uvd = rows[PUSH, "UVD"]
    assert uvd["final step [95 %]"] == "89.0 [88.0, 90.0]"
    assert uvd["ever"] == "90.0"
    assert uvd["worst"] == "88"
    assert uvd["time, s"] == "2"
    assert uvd["max target"] == "1.000"
    assert uvd["finite"] == "yes"
    assert rows[CLIFF, "HER (paper)"]["max target"] == "–"
    gaps = mini.differences(found)
    assert len(gaps.rows) == 7  # three strategies on one task, four on the other
    assert gaps.rows[0][1].endswith("(the best HER)")
    assert gaps.rows[0][2].startswith("+20.0 [")
    lines = table.markdown().splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {len(table.header) + 1}


def test_a_number_that_is_none_shows(jobs, calls, tmp_path):
    (path,) = mini.train_all(jobs[-1:], tmp_path)
    rows = Run.open(path).rows()
    rows[0]["critic/loss"] = [1.0, None, 2.0]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert mini.tabulate(mini.scores([path])).rows[0][-1] == "NO"


def test_reproduce_keeps_small_files_beside_the_figures(calls, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mini.figures, "draw_paths", lambda runs, out: calls.append(len(runs)))
    mini.reproduce(tmp_path / "mini", 2, ("PointReach-v0", CLIFF, PUSH))
    assert calls[-1] == 6
    said = capsys.readouterr().out
    assert re.match(
        r"16 runs of 2 seeds on PointReach-v0, PointCliff-v0, PointPush-v0, into .*: about \d", said
    )
    summary = (tmp_path / "mini" / "summary.md").read_text()
    assert summary.count("\n| PointReach-v0 |") == 5 + 3
    assert "| all tasks | UVD | 89.5 [" in summary
    assert "| all tasks | HER (paper) |" not in summary  # it ran on one task only
    kept = tmp_path / "mini" / f"{CLIFF}-uvd"
    assert sorted(p.name for p in kept.iterdir()) == ["config.toml", "metrics.jsonl"]
    assert imread(tmp_path / "mini" / "curves.png").shape[1] > 1000


def test_an_unknown_task_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="nearest: PointPush-v0"):
        mini.reproduce(tmp_path / "out", 2, ("PointPsh-v0",))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="seeds = 0"):
        mini.reproduce(tmp_path / "out", 0, ())


@pytest.mark.slow
def test_the_demo_runs_from_end_to_end(tmp_path, monkeypatch):
    tiny = {"hidden": (16, 16), "batch": 32, "warmup": 200}
    flow = {"flow_hidden": (8, 8), "bijectors": 2}
    methods = {
        name: (algorithm, {**settings, **tiny, **(flow if algorithm == "uvd" else {})})
        for name, (algorithm, settings) in mini.METHODS.items()
    }
    monkeypatch.setattr(mini, "METHODS", methods)
    monkeypatch.setattr(mini, "DEMO_METHODS", ("td3", "uvd"))
    monkeypatch.setattr(mini, "DEMO_STEPS", {CLIFF: 1000})
    monkeypatch.setattr(mini, "DEMO_SEEDS", 2)
    monkeypatch.setattr(mini, "CLIFFWALK_SEEDS", 1)
    mini.demo(tmp_path)
    for name in ("curves", "paths", "density", "figure1", "bias"):
        assert np.std(imread(tmp_path / f"{name}.png")) > 0.05
    assert (tmp_path / "summary.md").read_text().count("| yes |") == 2
