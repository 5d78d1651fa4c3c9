"""Imitation in miniature: the same pairs for all, what is measured, a run from end to end."""

import numpy as np
import pytest
from matplotlib.image import imread

from uvd.core.errors import UserError
from uvd.experiments import imitation_mini as mini
from uvd.experiments.imitation_mini import Found


def test_all_methods_imitate_the_same_pairs(tmp_path):
    demos = mini.write_npz(mini.make_demos(2), tmp_path / "demos")
    jobs = mini.make_jobs(demos, 2, list(mini.METHODS))
    assert len({job.config.demos for job in jobs}) == 1
    assert (jobs[0].config.demos.trajectories, jobs[0].config.demos.every) == (1, 5)
    assert [job.name for job in jobs] == list(mini.METHODS)
    full = {job.name: job.config.run.steps for job in jobs}
    short = mini.make_jobs(demos, 1, list(mini.DEMO_STEPS), mini.DEMO_STEPS)
    assert {job.name: job.config.run.steps for job in short} == mini.DEMO_STEPS
    assert all(steps < full[name] for name, steps in mini.DEMO_STEPS.items())
    assert {job.config.settings.match for job in jobs if job.name == "kdi"} == {"pairs"}


def test_the_table_is_in_units_of_the_expert_and_has_the_worst_seed():
    found = [
        Found("random actions", np.array([10.0]), np.array([0.5])),
        Found("the expert again", np.array([90.0]), np.array([0.01])),
        Found("VDI", np.array([90.0, 50.0]), np.array([0.1, 0.3]), 40_000, 12.3),
    ]
    rows = mini.tabulate(found).rows
    assert [row[2] for row in rows] == ["0.00 (0.00)", "1.00 (1.00)", "0.75 (0.50)"]
    assert rows[2] == ("VDI", "40,000", "0.75 (0.50)", "0.200 (0.300)", "12")
    assert rows[0][1] == rows[0][4] == "–"


def test_random_actions_and_the_expert_are_far_apart():
    random, expert = mini.measure([])
    assert random.distance[0] > 5 * expert.distance[0]
    assert expert.returns[0] > 96 > 10 > random.returns[0]


def test_a_run_from_end_to_end(tmp_path, monkeypatch):
    tiny = {"steps": 1200, "hidden": (8,), "batch": 16}
    monkeypatch.setitem(mini.METHODS, "bc", mini.METHODS["bc"]._replace(given=tiny))
    monkeypatch.setattr(mini, "EPISODES", 3)
    found = mini.run(tmp_path / "out", 2, ("bc",), 1)
    assert [len(f.returns) for f in found] == [1, 1, 2]
    text = (tmp_path / "out" / "imitation.md").read_text()
    assert "| BC | 1,200 |" in text
    assert "20 pairs" in text
    assert imread(tmp_path / "out" / "imitation.png").shape[1] > 500
    assert (tmp_path / "out" / "bc" / "metrics.jsonl").exists()


def test_an_unknown_method_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="nearest: gail"):
        mini.run(tmp_path / "out", 2, ("gaill",))
    with pytest.raises(UserError, match="seeds = 0"):
        mini.run(tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()
