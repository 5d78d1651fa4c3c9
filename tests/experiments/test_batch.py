import pytest

from uvd.core.errors import Stopped, UserError
from uvd.experiments import batch, mini
from uvd.experiments.batch import train_into
from uvd.runs import Run

CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"
PLAIN = [name for name in mini.METHODS if name not in mini.EXTRA]


@pytest.fixture
def jobs():
    return mini.make_jobs({PUSH: 1000, CLIFF: 1000}, 3, PLAIN)


def names(jobs):
    return [job.name for job in jobs]


def test_a_complete_run_is_used_again(jobs, training, tmp_path):
    first = train_into(tmp_path, jobs[:3], 1)
    assert training.trained == names([jobs[1], jobs[2], jobs[0]])  # the longest first
    assert train_into(tmp_path, jobs[:4], 1)[:3] == first
    assert training.trained[3:] == [jobs[3].name]


def test_a_stopped_run_is_resumed(jobs, training, tmp_path, capsys):
    training.stop_before = (jobs[1].name, 2)
    with pytest.raises(Stopped, match=f"{jobs[1].name}; repeat the command"):
        train_into(tmp_path, jobs[:2], 1)
    path = tmp_path / "runs" / jobs[1].name
    assert not batch.complete(Run.open(path))
    assert batch.finished(tmp_path) == [tmp_path / jobs[0].name]
    assert not (tmp_path / jobs[1].name).exists()
    training.stop_before = None
    train_into(tmp_path, jobs[:2], 1)
    assert training.trained == names([jobs[1], jobs[0], jobs[1]])
    assert len(Run.open(path).rows()) == 2
    assert "2 runs of 3 seeds on PointPush-v0, into" in capsys.readouterr().out


def test_a_run_that_fails_is_named(jobs, training, tmp_path):
    training.code = 2
    with pytest.raises(UserError, match=f"{jobs[0].name} failed"):
        train_into(tmp_path, jobs[:1], 1)


def test_a_process_is_started_for_a_run(tmp_path, capfd):
    """Without a run there, it ends with an error of its own."""
    assert batch.train_process(tmp_path / "none", None) == 2
    assert "none is not a run folder" in capfd.readouterr().err


def test_the_time_left_counts_the_steps_left(jobs):
    job = jobs[0]
    assert job.seconds() > job.seconds(500) > job.seconds(1000) == 0


def test_small_files_are_those_of_runs_that_reached_their_last_step(jobs, training, tmp_path):
    (path,) = train_into(tmp_path, jobs[:1], 1)
    (path / "checkpoints" / "1000.safetensors").rename(path / "checkpoints" / "damaged")
    assert not batch.complete(Run.open(path))
    small = Run.open(tmp_path / jobs[0].name)
    assert sorted(p.name for p in small.path.iterdir()) == ["config.toml", "metrics.jsonl"]
    assert small.rows() == Run.open(path).rows()
    assert batch.has_last_report(small)
    assert not batch.complete(small)  # to go on training takes a checkpoint
    assert batch.finished(tmp_path, [jobs[0].name, "other"]) == [small.path]


def test_a_run_of_other_settings_is_refused_before_any_is_trained(jobs, training, tmp_path):
    train_into(tmp_path, jobs[1:2], 1)
    more = mini.make_jobs({PUSH: 1000}, 5, PLAIN)
    with pytest.raises(UserError, match="seeds = 3, not 5"):
        train_into(tmp_path, more, 1)
    (tmp_path / "runs").rename(tmp_path / "away")  # as in a clone: small files only
    before = (tmp_path / jobs[1].name / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="seeds = 3, not 5: remove it, or choose another folder"):
        train_into(tmp_path, more, 1)
    assert training.trained == [jobs[1].name]
    assert (tmp_path / jobs[1].name / "metrics.jsonl").read_bytes() == before
    train_into(tmp_path, jobs[1:2], 1)  # the same again does no harm
    config = Run.open(tmp_path / jobs[1].name).config
    Run(tmp_path / "runs" / jobs[1].name, {**config, "uvd_version": "0.1.0"}).write_config()
    with pytest.raises(UserError, match=r"made by uvd 0\.1\.0"):
        train_into(tmp_path, jobs[1:2], 1)
