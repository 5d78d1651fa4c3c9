"""The command line: what it prints, and how it refuses."""

import dataclasses
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import uvd
from randomdemos import made
from uvd import cli
from uvd.cli import main
from uvd.demos.write import write_npz
from uvd.runs import Run

TINY = ["--hidden", "8", "--batch=8", "--steps", "4e2", "--eval-episodes=2", "--first-seed", "5"]


def refused(capsys: pytest.CaptureFixture, *args: str) -> str:
    """The one line with which the command line refuses."""
    assert main(list(args)) == 2
    text = capsys.readouterr().err
    assert text.startswith("uvd: ")
    assert text.count("\n") == 1
    return text


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Demonstrations that fit PointLoop-v0."""
    folder = tmp_path_factory.mktemp("demos") / "loop"
    write_npz(made((40, 40), obs=4, action=2), folder)
    return str(folder)


PUSH = ["train", "uvd", "PointPush-v0"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["trian"], "unknown command 'trian'; nearest: train"),
        (["demos", "inf"], "unknown command 'inf'; nearest: info"),
        (["reproduce", "mini2"], "unknown experiment 'mini2'; nearest: mini"),
        (["train", "uvdd", "PointPush-v0"], "unknown algorithm 'uvdd'; nearest: uvd"),
        (["train", "uvd"], "Missing from uvd train uvd: TASK"),
        (["train", "uvd", "PointPsh-v0"], "nearest: PointPush-v0"),
        ([*PUSH, "--preset", "papr"], "unknown preset of uvd 'papr'; nearest: paper"),
        ([*PUSH, "--gama", "0.9"], "unknown option '--gama'; nearest: --gamma"),
        ([*PUSH, "--gama=0.9"], "unknown option '--gama'; nearest: --gamma"),
        ([*PUSH, "again"], "again is one word too many"),
        ([*PUSH, "--gamma"], "Missing value for argument '--gamma'"),
        ([*PUSH, "--gamma", "abc"], "setting 'gamma' takes a number, not 'abc'"),
        ([*PUSH, "--seeds", "1.5"], "setting 'seeds' takes a whole number, not '1.5'"),
        ([*PUSH, "--gamma", "1.0"], "gamma = 1.0"),
        ([*PUSH, "--seeds", "0"], "seeds = 0"),
        ([*PUSH, "--short", "1e6"], "short = 1000000 is larger"),
        ([*PUSH, "--lookahead", "60", "--combine", "max"], "lookahead = 60 is longer"),
        ([*PUSH, "--lookahead", "4"], "take lookahead = 1, or a max"),
        ([*PUSH, "--capacity", "100"], "capacity = 100"),
        ([*PUSH, "--updates-per-step", "0.001"], "updates_per_step"),
        ([*PUSH, "--task-settings", "noise"], "task setting 'noise' must read NAME=VALUE"),
        (["train", "her", "PointPush-v0", "--strategy", "futur"], "nearest: future"),
        (["train", "vdi", "PointLoop-v0"], "vdi needs demonstrations: give --demos"),
        (["train", "td3", "PointLoop-v0", "--demos", "x"], "td3 does not imitate"),
        (["train", "vdi", "X-v0", "--preset", "kernel"], "uvd train kdi TASK --demos FILE\n"),
        (["train", "vdi", "X-v0", "--preset", "changes"], "FILE --match changes\n"),
        (["train", "vdi", "X-v0", "--preset", "humanoid"], "FILE --preset humanoid\n"),
        (["train", "--resume", "no/such/run"], "no/such/run"),
        (["train", "--resume=no/such/run", "--steps", "1e3"], "no/such/run"),
        (["eval"], "Missing from uvd eval: RUN"),
        (["eval", "no/such/run"], "no/such/run"),
        (["eval", "no/such/run", "--episodes", "abc"], "Error parsing --episodes"),
        (["eval", "no/such/run", "--episode", "1"], "nearest: --episodes"),
        (["eval", "no/such/run", "--video", "a.avi"], "ends in .mp4 or .gif"),
        (["eval", "no/such/run", "--video-episodes", "0"], "video_episodes = 0"),
        (["plot"], "uvd plot needs at least one run folder"),
        (["plot", "density", "no/such/run"], "no/such/run"),
        (["reproduce", "figure2", "--panel", "psh"], "unknown task 'psh'; nearest: push"),
        (["reproduce", "figure2", "--taks", "push"], "nearest: --tasks"),
        (["reproduce", "figure2", "--panel", "push", "--steps", "0"], "steps = 0"),
        (["reproduce", "figure3", "--panel", "chetah"], "unknown task 'chetah'; nearest: cheetah"),
        (["reproduce", "figure3", "--grid", "1-20"], "must read TRAJECTORIESxEVERY"),
        (["reproduce", "figure3", "--demos", "a.h5"], "name it with --tasks"),
        (["reproduce", "figure3", "--draw"], "no finished runs"),
        (["reproduce", "imitation", "--methods", "vid"], "unknown method 'vid'; nearest: vdi"),
        (["reproduce"], "needs an experiment: bias, figure2, figure3, imitation, ladder"),
        (["sweep"], "uvd sweep needs a study file, or --status DIR, or --resume DIR"),
        (["sweep", "no/such.toml"], "cannot read no/such.toml"),
        (["sweep", "--resume", "no/such"], "no/such is not a study folder"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch, args: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, *args)
    assert not list(tmp_path.iterdir()), "a refused command must leave nothing behind"


def test_a_message_in_a_frame_becomes_one_line() -> None:
    """As on a terminal; the other tests see tyro's plain text."""
    box = """\
\x1b[31m╭─ Value error ─────────╮
│ Error parsing --episodes: \x1b[1mno │
│ number                │
│ ───────────────────── │
│ For full helptext ... │
╰───────────────────────╯\x1b[0m
"""
    assert cli.unboxed(box) == "Error parsing --episodes: no number"
    short = "╭─ Title ───╮\n│ The message │\n╰─────────────╯\n"
    assert cli.unboxed(short) == "The message"


def test_settings_are_checked_beside_the_defaults_that_follow_from_the_demonstrations(
    capsys: pytest.CaptureFixture, tmp_path: Path, demos: str
) -> None:
    """`states` have a width, which may halve; that of `pairs` follows from the agent."""
    args = ["train", "kdi", "PointLoop-v0", "--demos", demos, "--width-half", "9", "--steps", "0"]
    args += ["--out", str(tmp_path / "r")]
    assert "steps = 0" in refused(capsys, *args, "--match", "states")
    assert "width_half = 9 needs a width" in refused(capsys, *args, "--match", "pairs")


@pytest.fixture(scope="module")
def cloned(demos: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A tiny run of bc, and what its training printed: output and errors."""
    out = tmp_path_factory.mktemp("cli") / "run"
    args = ["train", "bc", "--demos", demos, "--out", str(out), *TINY, "--l2=1e-3", "PointLoop-v0"]
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        assert main(args) == 0
    return out, printed.getvalue(), errors.getvalue()


def test_train(cloned: tuple[Path, str, str], demos: str) -> None:
    out, printed, errors = cloned
    assert f"{out}: step 400, return " in printed.splitlines()[-1]
    config = Run.open(out).config
    assert config["run"]["steps"] == 400
    assert config["run"]["first_seed"] == 5
    assert config["settings"]["hidden"] == [8]
    assert config["settings"]["l2"] == 0.001
    assert config["demos"]["demos"] == demos
    assert len(config["demos"]["sha256"]) == 64
    kdi = f"try kdi first: uvd train kdi PointLoop-v0 --demos {demos}"
    assert errors == f"uvd: settings of bc were not tuned on PointLoop-v0; {kdi}\n"
    assert "bc PointLoop-v0: preset default (" in printed


def test_a_run_that_exists(
    cloned: tuple[Path, str, str], capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch
) -> None:
    run, film = str(cloned[0]), tmp_path / "film.gif"
    text = refused(capsys, "train", "bc", "PointLoop-v0", "--demos=no.h5", "--out", run)
    assert "--resume" in text
    assert "--overwrite" in text
    assert main(["train", f"--resume={run}", "--steps", "8e2"]) == 0
    assert f"{run}: step 800, return " in capsys.readouterr().out
    args = ["eval", run, "--episodes", "3", "--video", str(film), "--video-episodes", "1"]
    assert main([*args, "--video-seed", "5"]) == 0
    head, row, path = capsys.readouterr().out.splitlines()
    assert head.split() == ["seed", "return"]
    assert row.split()[0] == "5"
    assert np.isfinite(float(row.split()[1]))
    assert path == str(film)
    assert film.stat().st_size > 1000
    assert "has seed 5 only, not 0" in refused(capsys, "eval", run, "--video-seed", "0")
    monkeypatch.chdir(tmp_path)
    assert main(["plot", run, run]) == 0
    assert main(["plot", run, "-o", "other.png", "--metric", "eval/return"]) == 0
    assert capsys.readouterr().out.split() == ["curves.png", "other.png"]
    assert "a run of uvd" in refused(capsys, "plot", "density", run)
    assert main(["export", run, "-o", "mine.py"]) == 0
    call = "from mine import policy; action = policy(observation)"
    assert capsys.readouterr().out == f"mine.py: {call}\n"
    assert "mine.py exists" in refused(capsys, "export", run, "-o", "mine.py")
    assert main(["export", run, "-o", "mine.py", "--overwrite"]) == 0
    assert "def policy(" in Path("mine.py").read_text()


def test_help_needs_no_jax() -> None:
    code = "import sys; from uvd.cli import main; main(sys.argv[1:]); print('jax' in sys.modules)"
    for args in ([], ["--help"], ["demos"], ["reproduce", "figure2", "--help"]):
        command = [sys.executable, "-c", code, *args]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert printed.startswith("usage: uvd")
        assert printed.endswith("False\n")


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"uvd {uvd.__version__}\n"


def test_completion_for_a_shell_knows_settings(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", "bash"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert "complete " in printed
    assert "--weight-bound" in printed


def test_help_of_commands(capsys: pytest.CaptureFixture) -> None:
    for args, parts in (
        (
            [],
            [
                "{train,eval,export,plot,report,demos,list,sweep,reproduce,demo}",
                "Gymnasium environment",
            ],
        ),
        (["train"], ["her", "hindsight goals (HER)", "--resume"]),
        (["reproduce", "--help"], ["figure2, figure3, mini, imitation", "--jobs INT", "--panel"]),
        (["sweep", "--help"], ["--resume", "--status", "--dry-run"]),
        (["plot", "--help"], ["RUNS", "-o PATH, --out PATH", "density"]),
    ):
        assert main(args) == 0
        text = capsys.readouterr().out
        for part in parts:
            assert part in text


def default_of(text: str, option: str) -> str:
    """The default that a help page names for an option."""
    words = " ".join(text.split())
    return words.split(f"--{option} ")[1].split("(default: ")[1].split(")")[0]


def test_help_shows_the_values_that_choices_lead_to(
    capsys: pytest.CaptureFixture, demos: str
) -> None:
    def help_of(*args: str) -> str:
        assert main(["train", *args, "--help"]) == 0
        return capsys.readouterr().out

    text = help_of("uvd")
    first, *others = re.findall(r"(\w+) options\b", text)
    assert first == "run"
    assert set(others) == {"td3", "collect", "density", "goals"}
    assert text.index("--preset") < text.index("--combine {sum,max") < text.index("--seeds")
    assert "Spatial smoothing" in text
    assert default_of(text, "bijectors INT") == "0"
    assert default_of(help_of("uvd", "--preset", "paper"), "bijectors INT") == "6"
    assert default_of(help_of("uvd", "FetchPush-v4"), "batch INT") == "1024"
    text = help_of("kdi")
    assert re.findall(r"(\w+) options\b", text)[:2] == ["run", "demonstrations"]
    assert default_of(text, "match {auto,pairs,changes,states}") == "auto"
    text = help_of("kdi", "PointLoop-v0", "--demos", demos)
    assert default_of(text, "match {auto,pairs,changes,states}") == "pairs"
    text = help_of("kdi", "PointLoop-v0", "--demos", demos, "--match=states")
    assert default_of(text, "weight-bound FLOAT") == "30.0"


def test_list(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for part in (
        "uvd ",
        "PointPush-v0",
        "PointCliff-v0",
        "Table 1 to the letter",
        "demonstrations: ",
    ):
        assert part in text


def test_ctrl_c_ends_the_process_at_once(capsys, monkeypatch) -> None:
    """What is being compiled then is not waited for; a caller from Python keeps its process."""

    @dataclasses.dataclass(frozen=True)
    class Pressed:
        def __call__(self) -> None:
            raise KeyboardInterrupt

    ends: list[int] = []
    monkeypatch.setitem(cli.COMMANDS, "list", Pressed)
    monkeypatch.setattr(cli.os, "_exit", ends.append)
    assert main(["list"]) == 130
    assert not ends
    monkeypatch.setattr(cli.sys, "argv", ["uvd", "list"])
    main()
    assert ends == [130]
    assert capsys.readouterr().err.count("uvd: interrupted; a run goes on with") == 2


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`uvd … | head`: no traceback when the pipe closes."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "uvd.cli", "eval", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141
