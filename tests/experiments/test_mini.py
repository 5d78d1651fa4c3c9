import re

import numpy as np
import pytest
from matplotlib.image import imread

from uvd.core.errors import UserError
from uvd.experiments import mini

CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"
PLAIN = [name for name in mini.METHODS if name not in mini.EXTRA]


def test_the_papers_wording_runs_on_the_cliff_only():
    jobs = mini.make_jobs({PUSH: 1000, CLIFF: 1000}, 3, PLAIN)
    assert len(jobs) == 11
    assert [job.task for job in jobs if job.given.get("strategy") == "paper"] == [CLIFF]
    assert len({job.name for job in jobs}) == len(jobs)
    (sparse,) = mini.make_jobs({"PointPushSparse-v0": 1000}, 3, ["uvd"])
    assert sparse.config.preset == "precise"


def test_reproduce_collects_small_files_beside_the_figures(training, tmp_path, capsys):
    mini.reproduce(tmp_path, 2, ("PointReach-v0", PUSH))
    announced = capsys.readouterr().out
    assert re.match(
        r"10 runs of 2 seeds on PointReach-v0, PointPush-v0, into .*: about \d", announced
    )
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("\n| PointReach-v0 |") == 5 + 3
    small = tmp_path / f"{PUSH}-uvd"
    assert sorted(p.name for p in small.iterdir()) == ["config.toml", "metrics.jsonl"]
    assert imread(tmp_path / "curves.png").shape[1] > 1000
    mini.reproduce(tmp_path, 2, ("PointSlide-v0",), ("td3", "uvd"))
    summary = (tmp_path / "summary.md").read_text()
    assert "| all tasks | UVD | 89.5 [" in summary
    assert "| all tasks | HER-FINAL |" not in summary  # it has not run on PointSlide


def test_an_unknown_task_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="nearest: PointPush-v0"):
        mini.reproduce(tmp_path / "out", 2, ("PointPsh-v0",))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="seeds = 0"):
        mini.reproduce(tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()


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
    monkeypatch.setattr(mini.imitation_mini, "DEMO_STEPS", {"bc": 1200, "kdi": 1600})
    mini.demo(tmp_path)
    for name in ("curves", "paths", "density", "figure1", "bias", "imitation/imitation"):
        assert np.std(imread(tmp_path / f"{name}.png")) > 0.05
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("| yes |") == 2
    assert "| BC | 1,200 |" in summary
    assert "| KDI | 1,600 |" in summary
    assert "## The cliff walk: bias against exact values" in summary
