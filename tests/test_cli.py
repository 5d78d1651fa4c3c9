"""The command line: what it prints, and how it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from uvd import cli
from uvd.cli import main


def refused(capsys: pytest.CaptureFixture, *args: str) -> str:
    """The one line with which the command line refuses."""
    assert main(list(args)) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["trian"], "unknown command 'trian'; nearest: train"),
        (["train", "uvdd", "PointPush-v0"], "unknown algorithm 'uvdd'; nearest: uvd"),
        (["train", "uvd", "PointPsh-v0"], "nearest: PointPush-v0"),
        (["train", "uvd", "PointPush-v0", "--preset", "papr"], "nearest: paper"),
        (["train", "uvd", "PointPush-v0", "--gama", "0.9"], "nearest: --gamma"),
        (["train", "uvd", "PointPush-v0", "--gamma", "1.0"], "gamma = 1.0"),
        (["train", "her", "PointPush-v0", "--strategy", "futur"], "nearest: future"),
        (["train", "uvd", "PointPush-v0", "--seeds", "0"], "seeds = 0"),
        (["train", "uvd", "PointPush-v0", "--short", "1000000"], "short = 1000000 is larger"),
        (["train", "uvd", "PointPush-v0", "--horizon", "60"], "horizon = 60 is longer"),
        (["train", "uvd", "PointPush-v0", "--horizon", "4"], "take horizon = 1, or a max"),
        (["train", "uvd", "PointPush-v0", "--preset", "precise", "--smoothing=0"], "bijectors"),
        (["train", "uvd", "PointPush-v0", "--futures", "1"], "futures = 1.0"),
        (["train", "uvd", "PointPush-v0", "--capacity", "100"], "capacity = 100"),
        (["train", "uvd", "PointPush-v0", "--updates-per-step", "0.001"], "updates_per_step"),
        (["train", "--resume", "no/such/run"], "no/such/run"),
        (["eval", "no/such/run"], "no/such/run"),
        (["eval", "no/such/run", "--video", "a.avi"], "ends in .mp4 or .gif"),
        (["eval", "no/such/run", "--video-episodes", "0"], "video_episodes = 0"),
        (["reproduce", "mini2"], "nearest: mini"),
        (["reproduce", "figure2", "--panel", "psh"], "unknown panel 'psh'; nearest: push"),
        (["reproduce", "figure2", "--pannel", "push"], "nearest: --panel"),
        (["reproduce", "figure2", "--panel", "push", "--steps", "0"], "steps = 0"),
        (["reproduce", "figure3", "--panel", "chetah"], "unknown panel 'chetah'; nearest: cheetah"),
        (["reproduce", "figure3", "--grid", "1-20"], "must read TRAJECTORIESxEVERY"),
        (["reproduce", "figure3", "--demos", "a.h5"], "name it with --panel"),
        (["reproduce", "figure3", "--draw"], "no finished runs"),
        (
            ["train", "vdi", "PointLoop-v0", "--no-average"],
            "vdi needs demonstrations: give --demos",
        ),
        (["reproduce", "imitation", "--methods", "vid"], "unknown imitator 'vid'; nearest: vdi"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch, args: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, *args)
    assert not list(tmp_path.iterdir()), "a refused command must leave nothing behind"


def test_existing_run_is_refused_by_both_names(
    capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    tiny = ["--hidden", "8", "--batch=8", "--envs=2", "--steps=200", "--warmup=100"]
    tiny += ["--first-seed", "5"]
    args = ["train", "td3", "PointReach-v0", f"--out={tmp_path / 'r'}", *tiny]
    assert main(args) == 0
    text = refused(capsys, *args)
    assert "--resume" in text
    assert "--overwrite" in text
    film = ["--video", str(tmp_path / "film.gif"), "--video-episodes", "1", "--video-seed", "5"]
    assert main(["eval", str(tmp_path / "r"), "--episodes", "3", *film]) == 0
    assert "ever reached\n   5 " in capsys.readouterr().out
    assert "has seed 5 only, not 0" in refused(capsys, "eval", args[3][6:], "--video-seed", "0")
    assert (tmp_path / "film.gif").stat().st_size > 1000
    assert main([*args, "--overwrite"]) == 0


def test_ctrl_c_ends_the_process_at_once(capsys, monkeypatch) -> None:
    """What is being compiled then is not waited for; a caller from Python keeps its process."""

    def pressed(args: list[str]) -> None:
        raise KeyboardInterrupt

    ends: list[int] = []
    monkeypatch.setitem(cli.COMMANDS, "list", pressed)
    monkeypatch.setattr(cli.os, "_exit", ends.append)
    assert main(["list"]) == 130
    assert not ends
    monkeypatch.setattr(cli.sys, "argv", ["uvd", "list"])
    main()
    assert ends == [130]
    assert capsys.readouterr().err.count("uvd: interrupted; a run goes on with") == 2


def test_list_and_help(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(w in text for w in ("uvd", "her", "td3", "PointPush-v0", "PointCliff-v0", "paper"))
    assert main(["--help"]) == main(["demos", "--help"]) == 0
    assert "uvd train ALGORITHM TASK" in capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("hindsight goals (HER)", "--resume RUN", "Examples"))
    with pytest.raises(SystemExit) as stop:
        main(["train", "uvd", "--help"])
    assert stop.value.code == 0
    assert "Spatial smoothing" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_error():
    """`uvd … | head`: no traceback when the pipe closes."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "uvd.cli", "train", "vdi", "--help"], stdout=write,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141
