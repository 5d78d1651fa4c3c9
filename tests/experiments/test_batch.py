import json

import pytest

from uvd.core.errors import Stopped, UserError
from uvd.experiments import batch, mini
from uvd.runs import Run

CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"
PLAIN = [name for name in mini.METHODS if name not in mini.EXTRA]


@pytest.fixture
def jobs():
    return mini.make_jobs({PUSH: 1000, CLIFF: 1000}, 3, PLAIN)


def test_a_complete_run_is_used_again(jobs, calls, tmp_path):
    first = batch.train_all(jobs[:3], tmp_path)
    assert calls == [jobs[i].name for i in (1, 2, 0)]  # the longest first
    assert batch.train_all(jobs[:4], tmp_path)[:3] == first
    assert calls == [jobs[i].name for i in (1, 2, 0, 3)]


def test_a_stopped_run_is_resumed(jobs, calls, training, tmp_path, monkeypatch):
    path = tmp_path / jobs[1].name
    with monkeypatch.context() as patch:
        patch.setattr(batch, "_train_process", training(calls, stop_at=(path.name, 2)))
        with pytest.raises(Stopped, match=f"{path.name}; repeat the command"):
            batch.train_all(jobs[:2], tmp_path)
    assert not batch.complete(Run.open(path))
    assert batch.seconds_left(jobs[:2], tmp_path) > 0
    batch.train_all(jobs[:2], tmp_path)
    assert calls == [jobs[i].name for i in (1, 0, 1)]
    assert len(Run.open(path).rows()) == 2
    assert batch.seconds_left(jobs[:2], tmp_path) == 0


def test_a_run_that_fails_is_named(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "_train_process", lambda path, cores: 2)
    with pytest.raises(UserError, match=f"{jobs[0].name} failed"):
        batch.train_all(jobs[:1], tmp_path)


def test_a_last_report_without_its_checkpoint_is_not_complete(jobs, calls, tmp_path):
    (path,) = batch.train_all(jobs[:1], tmp_path)
    (path / "checkpoints" / "1000").rename(path / "checkpoints" / ".tmp-1000")
    assert not batch.complete(Run.open(path))


def test_kept_are_the_runs_that_reached_their_last_step(
    jobs, calls, training, tmp_path, monkeypatch
):
    short = jobs[0].name
    monkeypatch.setattr(batch, "_train_process", training(calls, stop_at=(short, 2)))
    with pytest.raises(Stopped):
        batch.train_and_keep(jobs[:2], tmp_path, 1)
    assert batch.kept(tmp_path) == [tmp_path / jobs[1].name]
    assert not (tmp_path / short).exists()
    monkeypatch.setattr(batch, "_train_process", training(calls))
    batch.train_all(jobs[:1], tmp_path / "runs")  # by itself: what was trained is found
    assert set(batch.kept(tmp_path)) == {tmp_path / job.name for job in jobs[:2]}
    small = Run.open(tmp_path / short)
    assert small.rows() == Run.open(tmp_path / "runs" / short).rows()
    assert batch.reported(small)
    assert not batch.complete(small)  # to go on training takes a checkpoint
    assert batch.kept(tmp_path, [short, "other"]) == [tmp_path / short]


def test_a_run_of_other_settings_is_refused_before_any_is_trained(jobs, calls, tmp_path):
    batch.train_all(jobs[1:2], tmp_path)
    more = mini.make_jobs({PUSH: 1000}, 5, PLAIN)
    with pytest.raises(UserError, match="seeds = 3, not 5"):
        batch.train_all(more, tmp_path)
    assert calls == [jobs[1].name]


def test_results_without_their_run_are_not_replaced(jobs, calls, tmp_path):
    batch.train_and_keep(jobs[:1], tmp_path, 1)
    (tmp_path / "runs").rename(tmp_path / "away")  # as in a clone: small files only
    more = mini.make_jobs({PUSH: 1000}, 5, PLAIN)
    before = (tmp_path / jobs[0].name / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="seeds = 3, not 5: remove it, or choose another folder"):
        batch.train_and_keep(more, tmp_path, 1)
    assert calls == [jobs[0].name]
    assert (tmp_path / jobs[0].name / "metrics.jsonl").read_bytes() == before
    batch.train_and_keep(jobs[:1], tmp_path, 1)  # the same again is no harm
    assert calls == [jobs[0].name] * 2


def test_the_tables_say_what_the_runs_did(jobs, calls, tmp_path):
    found = batch.scores(batch.train_all(jobs, tmp_path))
    table = batch.tabulate(found)
    rows = {row[:2]: dict(zip(table.header, row)) for row in table.rows}
    uvd = rows[PUSH, "UVD"]
    assert uvd["final step [95 %]"] == "89.0 [88.0, 90.0]"
    assert uvd["ever [95 %]"] == "90.0 [90.0, 90.0]"
    assert uvd["worst"] == "88"
    assert uvd["time, s"] == "2"
    assert uvd["max target"] == "1.000"
    assert uvd["finite"] == "yes"
    assert rows[CLIFF, "HER (paper)"]["max target"] == "–"
    gaps = batch.differences(found)
    assert len(gaps.rows) == 7  # three strategies on one task, four on the other
    assert gaps.rows[0][1].endswith("(the best HER)")
    assert gaps.rows[0][2].startswith("+20.0 [")
    lines = table.markdown().splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {len(table.header) + 1}


def test_a_number_that_is_none_shows(jobs, calls, tmp_path):
    (path,) = batch.train_all(jobs[-1:], tmp_path)
    rows = Run.open(path).rows()
    rows[0]["critic/loss"] = [1.0, None, 2.0]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert batch.tabulate(batch.scores([path])).rows[0][-1] == "NO"
