"""Figure 3: what each method imitates, shares on a known scale, and drawing it again."""

import json
import shutil

import numpy as np
import pytest
from matplotlib.image import imread

from uvd.core.errors import UserError
from uvd.demos.memory import Trajectory
from uvd.demos.write import write_gail
from uvd.experiments import figure3
from uvd.experiments.figure3 import Amount
from uvd.runs import Run

WALK = "envs:Walk-v0"


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
def out(tmp_path, monkeypatch):
    """A folder for results on a task that is quick to make; random actions earn 10 there."""
    source = str(write_gail(walk([100.0, 120.0]), tmp_path / "line.h5"))
    panel = figure3.PANELS["humanoid"]
    given = {name: dict(own) for name, own in panel.given.items()}
    for own in given.values():
        for name in own.keys() & {"episode_steps", "late_episode_steps"}:
            own[name] = 5
    given["kdi"] |= {"match": "pairs"}
    panels = {"humanoid": panel._replace(task=WALK, demos=source, given=given)}
    monkeypatch.setattr(figure3, "PANELS", panels)
    monkeypatch.setattr(figure3, "random_returns", lambda task: np.array([5.0, 15.0]))
    return tmp_path / "out"


def test_the_figure_has_all_that_was_run(out, training):
    methods = ("bc", "vdi", "kdi-changes")
    figure3.reproduce(out, ("humanoid",), methods, 3, grid=("1x3", "2x5"))
    names = {f"envs-Walk-v0-{m}-{g}" for m in methods for g in ("1x3", "2x5")}
    assert set(training.trained) == names
    runs = {path.name: Run.open(path).config for path in (out / "runs").iterdir()}
    assert {c["demos"]["trajectories"] for n, c in runs.items() if n.endswith("1x3")} == {1}
    assert "previous_action" not in runs["envs-Walk-v0-bc-1x3"]["demos"]
    assert runs["envs-Walk-v0-vdi-1x3"]["demos"]["previous_action"]
    assert runs["envs-Walk-v0-vdi-1x3"]["preset"] == "paper-humanoid"
    small = Run.open(out / "envs-Walk-v0-vdi-1x3").config
    assert small["demos"]["demos"] == "line.h5"  # not its folder
    assert small["run"]["episode_steps"] == 5
    # VDI's seeds at 90 - 3, 86, 85; the expert earns 110, random actions 10.
    summary = (out / "summary.md").read_text()
    row = "| VDI | 1 × 3 | 0.76 [0.75, 0.77] | 0.75 | 86 | 3 | 25,000,000 | 2 | 1.000 |"
    assert f"| {WALK} {row}" in summary
    assert f"| {WALK} | BC | 2 × 2 | 0.04 [" in summary
    assert f"| {WALK} | KDI-CHANGES | 2 × 2 | 0.79 [" in summary
    assert f"| {WALK} | line.h5 | 2 | 110.0 | 10.0 ± 5.0 | 2 |" in summary
    for name in ("figure3", "envs-Walk-v0", "envs-Walk-v0-metrics"):
        assert imread(out / f"{name}.png")[..., :3].std() > 0.05
    # Small files are enough to draw it again, as far as runs are complete.
    shutil.rmtree(out / "runs")
    metrics = out / "envs-Walk-v0-vdi-1x3" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")  # stopped half-way
    figure3.draw(out)
    again = (out / "summary.md").read_text()
    assert set(summary.splitlines()) - set(again.splitlines()) == {f"| {WALK} {row} yes |"}
    assert set(again.splitlines()) <= set(summary.splitlines())
    with pytest.raises(UserError, match="no finished runs"):
        figure3.draw(out / "none")


def test_other_demonstrations_are_not_mixed_in(out, training, tmp_path):
    figure3.reproduce(out, ("humanoid",), ("bc",), 2, grid=("1x2",))
    other = str(write_gail(walk([50.0]), tmp_path / "other.h5"))
    with pytest.raises(UserError, match=r"other demonstrations than .*other.h5: .*--out"):
        figure3.reproduce(out, ("humanoid",), ("vdi",), 2, None, ("1x2",), other)
    assert len(training.trained) == 1
    known = json.loads((out / "references.json").read_text())
    known[WALK]["sha256"] = "0"
    (out / "references.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"bc-1x2 imitates other demonstrations"):
        figure3.draw(out)
    for damaged in ({WALK: {"expert": 1.0}}, [], {WALK: 3}):
        (out / "references.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"references.json is damaged, remove it"):
            figure3.draw(out)


def test_random_actions_are_measured_on_the_task():
    returns = figure3.random_returns(WALK)
    assert len(returns) == figure3.RANDOM_EPISODES
    assert -5 < returns.mean() < 5
    assert returns.std() > 0.1


def test_the_papers_sizes():
    configs = {}
    for name, panel in figure3.PANELS.items():
        assert panel.given.keys() == figure3.METHODS.keys()
        jobs = figure3.make_jobs(panel, list(figure3.METHODS), [Amount(1, 20)], seeds=5)
        for method, job in zip(figure3.METHODS, jobs):
            configs[name, method] = job.config
    for name, steps in (("cheetah", 10_000_000), ("humanoid", 25_000_000)):
        assert configs[name, "vdi"].run.steps == configs[name, "gail"].run.steps == steps
        assert configs[name, "gail"].run.envs == 16
        assert configs[name, "kdi-changes"].settings.match == "changes"
        assert configs[name, "kdi"].run.envs == 1
        assert {configs[name, m].preset for m in ("gail", "dac", "bc")} == {"walkers"}
    assert configs["cheetah", "vdi"].preset == "cheetah"
    assert configs["humanoid", "vdi"].preset == "paper-humanoid"
    assert configs["cheetah", "kdi"].settings.match == "pairs"
    kdi = configs["humanoid", "kdi"]
    assert (kdi.preset, kdi.settings.match, kdi.demos.previous_action) == (
        "humanoid",
        "states",
        True,
    )
    assert kdi.run.late_steps == 400_000
    assert configs["humanoid", "gail"].run.late_steps == 1_200_000
    assert Amount.parse("1x20").steps(1000) == 50
    assert Amount.parse("5x100") == (5, 100)
    assert Amount(1, 100).steps(1000) == 10


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
def test_bad_input_is_refused_before_anything_is_made(out, asked, message):
    with pytest.raises(UserError, match=message) as error:
        figure3.reproduce(out, ("humanoid",), **{"grid": ("1x2",), **asked})
    assert "\n" not in str(error.value)
    assert not out.exists()


def test_an_expert_without_rewards_has_no_scale(out, tmp_path):
    mute = str(write_gail(walk([1.0], rewards=False), tmp_path / "mute.h5"))
    with pytest.raises(UserError, match=r"mute.h5 has no rewards"):
        figure3.reproduce(out, ("humanoid",), ("vdi",), 2, None, ("1x2",), mute)
    assert not out.exists()
