import shutil

import pytest
from matplotlib.image import imread

from uvd.core.errors import UserError
from uvd.experiments import figure2
from uvd.runs import Run


@pytest.fixture
def panels(monkeypatch):
    """Tasks that are quick to make in place of the robot's."""
    panels = {
        "push": figure2.Panel("envs:Line-v0", 2000, "(a) push"),
        "slide": figure2.Panel("PointSlide-v0", 4000, "(b) slide"),
    }
    monkeypatch.setattr(figure2, "PANELS", panels)


def test_the_figure_has_all_that_was_run(panels, training, tmp_path):
    figure2.reproduce(tmp_path, ("push",), seeds=2)
    one = imread(tmp_path / "figure2.png").shape
    assert sorted(training.trained) == [f"envs-Line-v0-{m}" for m in ("her", "td3", "uvd")]
    figure2.reproduce(tmp_path, ("slide",), ("her", "uvd"), seeds=3, steps=1000)
    assert len(training.trained) == 5
    two = imread(tmp_path / "figure2.png").shape
    assert two[1] > 1.5 * one[1]
    assert Run.open(tmp_path / "runs" / "envs-Line-v0-uvd").config["run"]["steps"] == 2000
    assert Run.open(tmp_path / "PointSlide-v0-uvd").config["run"]["steps"] == 1000
    summary = (tmp_path / "summary.md").read_text()
    assert "| envs:Line-v0 | UVD − HER | +20.0 [" in summary
    assert imread(tmp_path / "metrics.png").shape[0] > 1.5 * two[0]
    for name in ("envs-Line-v0.png", "PointSlide-v0.png"):
        assert imread(tmp_path / name)[..., :3].std() > 0.05
    # Small files are enough to draw it again.
    shutil.rmtree(tmp_path / "runs")
    for name in ("summary.md", "figure2.png"):
        (tmp_path / name).unlink()
    figure2.draw(tmp_path)
    assert (tmp_path / "summary.md").read_text() == summary
    assert (tmp_path / "figure2.png").exists()
    assert len(training.trained) == 5
    with pytest.raises(UserError, match="no runs to draw"):
        figure2.draw(tmp_path / "none")


def test_methods_share_their_sizes():
    jobs = figure2.make_jobs(list(figure2.PANELS.values()), list(figure2.METHODS), 5, None)
    configs = [job.config for job in jobs]
    assert len(jobs) == 12
    assert {config.settings.td3.batch for config in configs} == {1024}
    assert {config.settings.td3.hidden for config in configs} == {(256, 256, 256)}
    assert len({config.settings.collect for config in configs}) == 1
    assert {c.preset for c in configs} == {"fetch", "fetch-precise"}
    assert {c.task: c.run.steps for c in configs} == {
        "FetchPush-v4": 500_000,
        "FetchSlide-v4": 1_000_000,
        "FetchPushSparse-v0": 1_000_000,
        "FetchSlideNoise-v0": 1_000_000,
    }


def test_the_codes_noise_is_another_task(training, tmp_path):
    figure2.reproduce(tmp_path, ("noise",), ("td3",), 1, 1000, code_noise=True)
    assert training.trained == ["FetchSlideNoiseCode-v0-td3"]


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
