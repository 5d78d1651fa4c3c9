"""Figure 3: who is shown what, shares against known ends of the scale, and drawing it again."""

import json
import shutil

import numpy as np
import pytest
from matplotlib.image import imread

from uvd.cli import main
from uvd.demos.memory import Trajectory
from uvd.core.errors import UserError
from uvd.experiments import figure3
from uvd.experiments.figure3 import Amount
from uvd.experiments.pointloop import make_demos
from uvd.demos.files import write_gail, write_npz
from uvd.runs import Run

WALK = "envs:Walk-v0"


def walk(returns, rewards=True):
    """Demonstrations of Walk with these returns, ten steps each."""
    rng = np.random.default_rng(0)
    return [
        Trajectory(
            rng.normal(size=(10, 2)), rng.uniform(-1, 1, (10, 1)),
            np.full(10, r / 10) if rewards else None,
        )
        for r in returns
    ]  # fmt: skip


@pytest.fixture
def panels(tmp_path, monkeypatch):
    """Tasks that are quick to make in place of the walkers, a random player who earns 10."""
    loop, line = tmp_path / "loop", tmp_path / "line.h5"
    write_npz(make_demos(4), loop)
    write_gail(walk([100.0, 120.0]), line)
    cheetah = figure3.PANELS["cheetah"]._replace(task="PointLoop-v0", demos=str(loop))
    humanoid = figure3.PANELS["humanoid"]._replace(
        task=WALK, demos=str(line), run={"episode_steps": 5}
    )
    own = {name: own._replace(run={}) for name, own in humanoid.own.items()}
    humanoid = humanoid._replace(own=own)
    monkeypatch.setattr(figure3, "PANELS", {"cheetah": cheetah, "humanoid": humanoid})
    monkeypatch.setattr(figure3, "random_returns", lambda task: np.array([5.0, 15.0]))
    return tmp_path / "out"


def test_the_figure_shows_all_that_was_run(panels, calls):
    methods = ("bc", "vdi", "vdi-ratio", "vdi-kernel")
    figure3.reproduce(panels, ("humanoid",), methods, 3, grid=("1x2", "2x5"))
    assert set(calls) == {f"envs-Walk-v0-{m}-{g}" for m in methods for g in ("1x2", "2x5")}
    one = imread(panels / "figure3.png").shape
    figure3.reproduce(panels, ("cheetah",), ("gail",), 2, grid=("1x20",))
    assert len(calls) == 9
    assert imread(panels / "figure3.png").shape[1] > 1.5 * one[1]
    shown = {path.name: Run.open(path).config["demos"] for path in (panels / "runs").iterdir()}
    assert {s["trajectories"] for n, s in shown.items() if n.endswith("1x2")} == {1}
    assert "previous_action" not in shown["envs-Walk-v0-bc-1x2"]  # VDI's alone
    assert shown["envs-Walk-v0-vdi-1x2"]["previous_action"]
    assert shown["envs-Walk-v0-vdi-ratio-1x2"]["previous_action"]
    assert shown["envs-Walk-v0-vdi-kernel-1x2"]["previous_action"]
    kept = Run.open(panels / "envs-Walk-v0-vdi-1x2").config
    assert kept["demos"]["demos"] == "line.h5"  # not where it lay
    assert kept["preset"] == "humanoid"
    assert kept["run"]["episode_steps"] == 5
    # VDI's seeds at 90 - 2, 87, 86; the expert earns 110, random play 10.
    summary = (panels / "summary.md").read_text()
    assert (
        f"| {WALK} | VDI | 1 × 5 | 0.77 [0.76, 0.78] | 0.76 | 87 | 3 | 25,000,000 | 2 | 1.000 |"
        in summary
    )
    assert f"| {WALK} | VDI-RATIO | 1 × 5 | 0.47 [0.46, 0.48] |" in summary  # 30 less
    assert f"| {WALK} | BC | 2 × 2 | 0.04 [" in summary
    assert f"| {WALK} | line.h5 | 2 | 110.0 | 10.0 ± 5.0 | 2 |" in summary
    assert f"| {WALK}, 2x5 | VDI | demos/log_d_min | -2.000 |" in summary
    for name in ("envs-Walk-v0", "envs-Walk-v0-watched", "PointLoop-v0"):
        assert imread(panels / f"{name}.png")[..., :3].std() > 0.05


def test_small_files_are_enough_to_draw_it_again(panels, calls):
    figure3.reproduce(panels, ("humanoid",), ("vdi",), 2, grid=("1x2", "1x5"))
    before = (panels / "summary.md").read_text()
    shutil.rmtree(panels / "runs")
    (panels / "summary.md").unlink()
    assert main(["reproduce", "figure3", "--draw", "--out", str(panels)]) == 0
    assert (panels / "summary.md").read_text() == before
    metrics = panels / "envs-Walk-v0-vdi-1x2" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")  # stopped half-way
    figure3.draw(panels)
    assert "| 1 × 5 |" not in (panels / "summary.md").read_text()
    assert "| 1 × 2 |" in (panels / "summary.md").read_text()
    assert len(calls) == 2


def test_other_demonstrations_are_not_mixed_in(panels, calls, tmp_path):
    figure3.reproduce(panels, ("humanoid",), ("bc",), 2, grid=("1x2",))
    other = str(write_gail(walk([50.0]), tmp_path / "other.h5"))
    with pytest.raises(UserError, match=r"other demonstrations than .*other.h5: .*--out"):
        figure3.reproduce(panels, ("humanoid",), ("vdi",), 2, None, ("1x2",), other)
    assert len(calls) == 1
    known = json.loads((panels / "references.json").read_text())
    known[WALK]["sha256"] = "0"
    (panels / "references.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"bc-1x2 imitates other demonstrations"):
        figure3.draw(panels)
    for damaged in ({WALK: {"expert": 1.0}}, [], {WALK: 3}):
        (panels / "references.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"references.json is damaged: every task needs demos"):
            figure3.draw(panels)


def test_random_play_is_measured_on_the_task():
    loop = figure3.random_returns("PointLoop-v0")
    assert len(loop) == figure3.RANDOM_EPISODES
    assert abs(loop.mean()) < 10  # the expert: 98
    line = figure3.random_returns(WALK)
    assert len(line) == figure3.RANDOM_EPISODES
    assert -5 < line.mean() < 5
    assert line.std() > 0.1


def test_the_papers_sizes():
    for panel, steps in (("cheetah", 10_000_000), ("humanoid", 25_000_000)):
        p = figure3.PANELS[panel]
        assert p.steps["vdi"] == p.steps["gail"] == steps
        assert p.steps.keys() == figure3.METHODS.keys()
        jobs = figure3.make_jobs(panel, list(figure3.METHODS), [Amount(1, 20)], 5, None)
        human = panel == "humanoid"
        kernel = "kernel-humanoid" if human else "kernel"
        assert [job.preset for job in jobs] == [panel, "ratio", kernel, "changes", *["walkers"] * 3]
        assert [job.algorithm for job in jobs] == [*["vdi"] * 4, "gail", "dac", "bc"]
        assert jobs[4].run["envs"] == 16
        assert jobs[1].settings == ({"smoothing": 1.2} if human else {})
        assert jobs[1].demos == jobs[0].demos
        assert jobs[2].demos.get("previous_action", False) == human
        assert jobs[2].run.get("late_steps") == (400_000 if human else None)
        assert jobs[4].run.get("late_steps") == (1_200_000 if human else None)
    assert Amount.parse("1x20").pairs(1000) == 50
    assert Amount.parse("5x100") == (5, 100)
    assert Amount(1, 100).pairs(1000) == 10


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"methods": ("vid",)}, "unknown method 'vid'; nearest: vdi"),
        ({"grid": ("0x20",)}, "grid '0x20'"),
        ({"grid": ("9x2",)}, "has 2 trajectories, 9 were asked for"),
        ({"seeds": 0}, "seeds = 0"),
        ({"at_once": -1}, "jobs = -1"),
        ({"demos": "no/such.h5"}, "no/such.h5"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(panels, asked, message):
    with pytest.raises(UserError, match=message) as error:
        figure3.reproduce(panels, ("humanoid",), **{"grid": ("1x2",), **asked})
    assert "\n" not in str(error.value)
    assert not panels.exists()


def test_an_expert_without_rewards_has_no_scale(panels, tmp_path):
    mute = str(write_gail(walk([1.0], rewards=False), tmp_path / "mute.h5"))
    with pytest.raises(UserError, match=r"mute.h5 has no rewards"):
        figure3.reproduce(panels, ("humanoid",), ("vdi",), 2, None, ("1x2",), mute)
    assert not panels.exists()
