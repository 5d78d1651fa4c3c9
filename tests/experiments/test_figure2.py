import shutil

import pytest
from matplotlib.image import imread

from uvd.cli import main
from uvd.core.errors import UserError
from uvd.experiments import figure2
from uvd.runs import Run
from uvd.settings import build, flatten, suited


@pytest.fixture
def panels(monkeypatch):
    """Tasks that are quick to make in place of the robot's."""
    monkeypatch.setattr(
        figure2,
        "PANELS",
        {
            "push": figure2.Panel("envs:Line-v0", 2000, "(a) push"),
            "slide": figure2.Panel("PointSlide-v0", 4000, "(b) slide"),
        },
    )


def test_the_figure_shows_all_that_was_run(panels, calls, tmp_path):
    figure2.reproduce(tmp_path, ("push",), seeds=2)
    one = imread(tmp_path / "figure2.png").shape
    assert sorted(calls) == [f"envs-Line-v0-{m}" for m in ("her", "td3", "uvd")]
    figure2.reproduce(tmp_path, ("slide",), ("her", "uvd"), seeds=3, steps=1000)
    assert len(calls) == 5
    two = imread(tmp_path / "figure2.png").shape
    assert two[1] > 1.5 * one[1]
    assert Run.open(tmp_path / "runs" / "envs-Line-v0-uvd").config["run"]["steps"] == 2000
    assert Run.open(tmp_path / "PointSlide-v0-uvd").config["run"]["steps"] == 1000
    summary = (tmp_path / "summary.md").read_text()
    assert "| envs:Line-v0 | UVD − HER | +20.0 [" in summary
    assert "| PointSlide-v0 | UVD | critic/target_over_bound_max | 0.500 |" in summary
    assert imread(tmp_path / "watched.png").shape[0] > 1.5 * two[0]
    for name in ("envs-Line-v0.png", "PointSlide-v0.png"):
        assert imread(tmp_path / name)[..., :3].std() > 0.05


def test_small_files_are_enough_to_draw_it_again(panels, calls, tmp_path, capsys):
    figure2.reproduce(tmp_path, ("push",), ("her", "uvd"), seeds=2)
    before = (tmp_path / "summary.md").read_text()
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "summary.md").unlink()
    (tmp_path / "figure2.png").unlink()
    assert main(["reproduce", "figure2", "--draw", "--out", str(tmp_path)]) == 0
    assert len(calls) == 2
    assert (tmp_path / "summary.md").read_text() == before
    assert (tmp_path / "figure2.png").exists()
    assert main(["reproduce", "figure2", "--draw", "--out", str(tmp_path / "none")]) == 2
    assert "no runs to draw" in capsys.readouterr().err


def test_methods_share_their_sizes():
    jobs = figure2.make_jobs(list(figure2.PANELS.values()), list(figure2.METHODS), 5, None)
    assert len(jobs) == 12
    configs = [job.config() for job in jobs]
    for name in ("batch", "hidden", "critic_lr", "updates_per_step", "warmup", "hold", "capacity"):
        assert len({str(c["settings"][name]) for c in configs}) == 1
    for job, config in zip(jobs, configs):  # and are those of a run that names no preset
        alone = build(job.algorithm, suited(job.algorithm, job.task), {})
        assert config["settings"] == flatten(alone)
    assert {c["task"]: c["run"]["steps"] for c in configs} == {
        "FetchPush-v4": 500_000,
        "FetchSlide-v4": 1_000_000,
        "FetchPushSparse-v0": 1_000_000,
        "FetchSlideNoise-v0": 1_000_000,
    }


def test_the_codes_noise_is_another_task(calls, tmp_path):
    figure2.reproduce(tmp_path, ("noise",), ("td3",), 1, 1000, code_noise=True)
    assert calls == ["FetchSlideNoiseCode-v0-td3"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"panels": ("psh",)}, "unknown panel 'psh'; nearest: push"),
        ({"methods": ("hre",)}, "unknown method 'hre'; nearest: her"),
        ({"seeds": 0}, "seeds = 0"),
        ({"steps": 0}, "steps = 0"),
        ({"at_once": -1}, "jobs = -1"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(panels, tmp_path, asked, message):
    with pytest.raises(UserError, match=message) as error:
        figure2.reproduce(tmp_path / "out", **asked)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
