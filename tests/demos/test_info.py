"""`uvd demos info` and `uvd list` say what demonstrations there are and what they hold."""

import pytest

from randomdemos import CHEETAH, made
from uvd.cli import main
from uvd.demos.memory import Trajectory
from uvd.demos.write import write_gail, write_npz


def test_info(tmp_path, capsys: pytest.CaptureFixture) -> None:
    path = write_gail(made(obs=17), tmp_path / "x.h5")
    picture = tmp_path / "plot.png"
    assert main(["demos", "info", str(path), "--task", CHEETAH, "-o", str(picture)]) == 0
    text = capsys.readouterr().out
    for part in ("gail", "11 (each 4 to 7)", "16 numbers", "mean"):
        assert part in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    write_npz([Trajectory(t.obs[:, :1]) for t in made()], tmp_path / "a")
    assert main(["demos", "info", str(tmp_path / "a"), "-o", str(picture)]) == 0
    assert "no rewards" in capsys.readouterr().out
    for args, part in (
        (["info", str(tmp_path / "no")], "no such file or folder"),
        (["inf"], "nearest: info"),
        (["info", str(path), "--tsk=x"], "--task"),
        (["info", str(path), "--task", "PointLoop-v0"], "PointLoop-v0 expects 4"),
        (["info", str(path), "-o", str(tmp_path / "picture")], "give the picture a suffix"),
    ):
        assert main(["demos", *args]) == 2
        text = capsys.readouterr().err
        assert part in text
        assert text.count("\n") == 1
    assert main(["demos"]) == 0
    assert "uvd demos [-h] {info,record}" in capsys.readouterr().out


def test_shipped_demonstrations_are_listed(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    assert "halfcheetah-expert, humanoid-expert" in capsys.readouterr().out
    assert main(["demos", "info", "humanoid-expert"]) == 0
    assert "humanoid-expert (shipped)" in capsys.readouterr().out
