"""The experiments are studies: their sizes, what is drawn of them, also from small files."""

import json
import shutil

import numpy as np
import pytest
from matplotlib.image import imread

from uvd.core.errors import UserError
from uvd.demos.memory import Trajectory
from uvd.demos.write import write_gail
from uvd.experiments import demo, reproduce, shares
from uvd.runs import Run
from uvd.study import runner
from uvd.study.file import read_study

CLIFF, PUSH, WALK = "PointCliff-v0", "PointPush-v0", "envs:Walk-v0"


def keep_small_files(out):
    """Only what a repository keeps of a study: settings and metrics."""
    for path in list(out.glob("*/*")):
        if path.name not in ("config.toml", "metrics.jsonl"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_every_experiment_makes_complete_settings():
    study = reproduce.load("mini")
    trials = study.trials()
    assert len(trials) == 31
    assert [t.task for t in trials if t.given.get("strategy") == "paper"] == [CLIFF]
    (sparse,) = study.trials(["PointPushSparse-v0"], ["uvd"])
    assert sparse.preset == "precise"
    assert len(study.trials(extra=True)) > len(trials)
    with pytest.raises(UserError, match="unknown experiment 'mini2'; nearest: mini"):
        reproduce.load("mini2")


def test_figure2_methods_share_their_sizes():
    study = reproduce.load("figure2")
    trials = runner.complete(study, study.trials())
    assert {rows["settings"]["batch"] for rows in trials.values()} == {1024}
    assert {rows["preset"] for rows in trials.values()} == {"environment", "environment-precise"}
    assert {rows["task"]: rows["run"]["steps"] for rows in trials.values()} == {
        "FetchPush-v4": 500_000,
        "FetchSlide-v4": 1_000_000,
        "FetchPushSparse-v0": 1_000_000,
        "FetchSlideNoise-v0": 1_000_000,
    }


def test_figure3_has_the_papers_sizes():
    study = reproduce.load("figure3")
    found = {}
    for task, amount in (("cheetah", "1x20"), ("humanoid", "1x20")):
        rows = runner.complete(study, study.trials([task], amounts=[amount])).values()
        found |= {(task, name): r for name, r in zip(study.methods, rows)}
    for task, steps in (("cheetah", 10_000_000), ("humanoid", 25_000_000)):
        for method in ("vdi", "gail"):
            assert found[task, method]["run"]["steps"] == steps
        assert found[task, "kdi-changes"]["settings"]["match"] == "changes"
        assert {found[task, m]["preset"] for m in ("gail", "dac", "bc")} == {"environment"}
        assert found[task, "bc"]["demos"]["every"] == 20
    assert found["cheetah", "vdi"]["preset"] == "environment"
    assert found["humanoid", "vdi"]["preset"] == "paper-humanoid"
    assert found["cheetah", "kdi"]["settings"]["match"] == "pairs"
    assert found["humanoid", "kdi"]["settings"]["match"] == "states"
    assert found["humanoid", "kdi"]["run"]["late_steps"] == 400_000
    assert found["humanoid", "gail"]["run"]["late_steps"] == 1_200_000


def test_goals_are_drawn_and_drawn_again_from_small_files(training, tmp_path):
    study = reproduce.load("mini")
    first = study.trials(["PointReach-v0", PUSH], seeds=2, steps=1000)
    reproduce.reproduce(study, tmp_path, first)
    assert len(training.trained) == 10
    more = study.trials(["PointSlide-v0"], ["td3", "uvd"], seeds=2, steps=1000)
    reproduce.reproduce(study, tmp_path, more)
    assert len(training.trained) == 12
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("\n| PointReach-v0 |") == 5 + 3
    assert "| all tasks | UVD | 89.5 [" in summary
    assert "| all tasks | HER-FINAL |" not in summary  # it has not run on PointSlide
    assert imread(tmp_path / "curves.png").shape[1] > 1000
    keep_small_files(tmp_path)
    (tmp_path / "summary.md").unlink()
    reproduce.draw(study, tmp_path)
    assert (tmp_path / "summary.md").read_text() == summary
    reproduce.reproduce(study, tmp_path, first)  # stored results are not trained again
    assert len(training.trained) == 12
    with pytest.raises(UserError, match="seeds = 2, not 3: remove it, or choose another folder"):
        reproduce.reproduce(study, tmp_path, study.trials([PUSH], seeds=3, steps=1000))
    with pytest.raises(UserError, match="no finished runs"):
        reproduce.draw(study, tmp_path / "none")


def walk(returns, rewards=True):
    """Demonstrations of Walk with these returns, ten steps each."""
    rng = np.random.default_rng(0)
    return [
        Trajectory(
            rng.normal(size=(10, 2)),
            rng.uniform(-1, 1, (10, 1)),
            np.full(10, r / 10) if rewards else None,
        )
        for r in returns
    ]


@pytest.fixture
def imitation(tmp_path, monkeypatch):
    """A study on a task that is quick to make; random actions earn 10 there."""
    source = write_gail(walk([100.0, 120.0]), tmp_path / "line.h5")
    monkeypatch.setattr(shares, "random_returns", lambda task: np.array([5.0, 15.0]))
    file = tmp_path / "walk.toml"
    file.write_text(f"""
        metrics = ["actor/abs_action"]
        [settings]
        steps = 1000
        seeds = 3
        demos = "{source}"
        [tasks."{WALK}"]
        title = "(b) Walk"
        amounts = ["1x3", "2x5"]
        [methods]
        bc = {{}}
        vdi = {{}}
        kdi-changes = {{ algorithm = "kdi", match = "changes" }}
    """)
    return read_study(file)


def test_imitation_is_measured_by_its_expert(imitation, training, tmp_path):
    out = tmp_path / "out"
    reproduce.reproduce(imitation, out, imitation.trials())
    names = {f"envs-Walk-v0-{m}-{a}" for m in imitation.methods for a in ("1x3", "2x5")}
    assert set(training.trained) == names
    # VDI's seeds at 90 - 3, 86, 85; the expert earns 110, random actions 10.
    summary = (out / "summary.md").read_text()
    row = "| VDI | 1 × 3 | 0.76 [0.75, 0.77] | 0.75 | 86 | 3 | 1,000 | 2 | 1.000 |"
    assert f"| {WALK} {row}" in summary
    assert f"| {WALK} | BC | 2 × 2 | 0.04 [" in summary
    assert f"| {WALK} | KDI-CHANGES | 2 × 2 | 0.79 [" in summary
    assert f"| {WALK} | line.h5 | 2 | 110.0 | 10.0 ± 5.0 | 2 |" in summary
    for name in ("curves", "shares", "metrics"):
        assert imread(out / f"{name}.png")[..., :3].std() > 0.05
    # Small files are enough to draw it again, as far as runs are finished.
    keep_small_files(out)
    metrics = out / "envs-Walk-v0-vdi-1x3" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")  # stopped half-way
    reproduce.draw(imitation, out)
    again = (out / "summary.md").read_text()
    assert set(summary.splitlines()) - set(again.splitlines()) == {f"| {WALK} {row} yes |"}


def test_other_demonstrations_are_not_mixed_in(imitation, training, tmp_path):
    out, other = tmp_path / "out", str(write_gail(walk([50.0]), tmp_path / "other.h5"))
    reproduce.reproduce(imitation, out, imitation.trials((), ["bc"], ["1x2"]))
    more = imitation.trials((), ["vdi"], ["1x2"], demos=other)
    with pytest.raises(UserError, match=r"other demonstrations than .*other.h5: .*--out"):
        reproduce.reproduce(imitation, out, more)
    assert len(training.trained) == 1
    known = json.loads((out / "references.json").read_text())
    known[WALK]["sha256"] = "0"
    (out / "references.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"bc-1x2 imitates other demonstrations"):
        reproduce.draw(imitation, out)
    for damaged in ({WALK: {"expert": 1.0}}, [], {WALK: 3}):
        (out / "references.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"references.json is damaged, remove it"):
            reproduce.draw(imitation, out)


def test_an_expert_without_rewards_has_no_scale(imitation, tmp_path):
    mute = str(write_gail(walk([1.0], rewards=False), tmp_path / "mute.h5"))
    trials = imitation.trials((), ["vdi"], ["1x2"], demos=mute)
    with pytest.raises(UserError, match=r"mute.h5 has no rewards"):
        reproduce.reproduce(imitation, tmp_path / "out", trials)
    assert not (tmp_path / "out").exists()


def test_random_actions_are_measured_on_the_task():
    returns = shares.random_returns(WALK)
    assert len(returns) == shares.RANDOM_EPISODES
    assert -5 < returns.mean() < 5
    assert returns.std() > 0.1
    assert abs(shares.random_returns("PointLoop-v0").mean()) < 5  # of 98


@pytest.mark.slow
def test_the_demo_runs_from_end_to_end(tmp_path, capsys):
    demo.demo(tmp_path, seeds=2, steps=4000, imitation_steps=3000)
    for name in ("curves", "paths", "density", "figure1", "bias"):
        assert np.std(imread(tmp_path / f"{name}.png")) > 0.05
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("| yes |") == 5
    assert "## The cliff walk: bias against exact values" in summary
    assert Run.open(tmp_path / f"{CLIFF}-uvd").rows()
    lines = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert len(lines) == 8
    assert lines[4].count("%") == 3
