"""Studies in processes of their own: stopped, killed and failing trials, the lock, the status."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from uvd import cli
from uvd.core.errors import UserError
from uvd.runs import Run
from uvd.study import runner
from wholeruns import assert_same_run

STUDY = """\
[settings]
seeds = 2
steps = 3000
envs = 2
eval_every = 300
eval_episodes = 4
warmup = 300
hidden = [8]
batch = 16
save_seconds = 0.1
[tasks]
PointReach-v0 = {}
[methods]
her = {}
[grid]
gamma = [0.9, 0.95]
"""
NAMES = ["PointReach-v0-her-gamma0.9", "PointReach-v0-her-gamma0.95"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "small.toml"
    path.write_text(STUDY)
    return path


def sweep(*args):
    return cli.main(["sweep", *map(str, args), "--jobs", "1"])


@pytest.fixture(scope="module")
def undisturbed(study, tmp_path_factory):
    """The folder of a study that nothing disturbed, and what was printed."""
    out = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "uvd.cli", "sweep", str(study), "--out", str(out)]
    printed = subprocess.run([*command, "--jobs", "1"], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    return out, printed.stdout


def test_every_trial_is_an_ordinary_run(undisturbed, capsys):
    out, printed = undisturbed
    assert printed.startswith(f"2 of 2 trials to train, 1 at a time, into {out}\n")
    assert f"] {NAMES[1]}: her PointReach-v0: step 3,000/3,000" in printed
    assert printed.count("[100 %") >= 1
    assert {path.parent.name for path in out.glob("*/config.toml")} == set(NAMES)
    assert Run.open(out / NAMES[0]).config["settings"]["gamma"] == 0.9
    assert cli.main(["eval", str(out / NAMES[0]), "--episodes", "2"]) == 0
    capsys.readouterr()
    assert cli.main(["sweep", "--status", str(out)]) == 0
    first, second, whole = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{NAMES[0]}: finished, success ")
    assert second.startswith(f"{NAMES[1]}: finished, success ")
    assert whole == "2 of 2 trials are finished"


def test_a_finished_trial_is_not_trained_again(undisturbed, study, capsys):
    out, _ = undisturbed
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/checkpoints/*")}
    assert sweep(study, "--out", out) == 0
    assert capsys.readouterr().out.startswith("0 of 2 trials to train")
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/checkpoints/*")} == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_study_that_is_killed_or_stopped_goes_on_to_the_same_bits(
    undisturbed, study, tmp_path, number
):
    command = [sys.executable, "-m", "uvd.cli", "sweep", str(study), "--out", str(tmp_path)]
    driver = subprocess.Popen([*command, "--jobs", "1"], stdout=subprocess.PIPE, text=True)
    wait = np.random.default_rng().integers(2, 9)
    for _ in range(wait):  # reports, at random
        driver.stdout.readline()
    driver.send_signal(number)
    driver.communicate()
    assert driver.returncode == (130 if number == signal.SIGINT else -9)
    assert sweep("--resume", tmp_path) == 0  # its trials ended with the driver
    for name in NAMES:
        assert_same_run(undisturbed[0] / name, tmp_path / name)


def test_a_trial_that_fails_is_tried_again_and_named(undisturbed, tmp_path, monkeypatch, capsys):
    plan = runner.read_plan(undisturbed[0])
    runner.plan(tmp_path, plan)
    tried = []

    def train(driver, name, core):
        tried.append(name)
        Run.create(tmp_path / name, plan[name], overwrite=True)
        return (1, "no space left") if name == NAMES[0] else (0, "")

    monkeypatch.setattr(runner.Driver, "_train", train)
    assert sweep("--resume", tmp_path) == 2
    assert f"1 of 2 trials failed: {NAMES[0]}; once more: uvd sweep" in capsys.readouterr().err
    assert tried == [NAMES[0]] * runner.ATTEMPTS + [NAMES[1]]  # the rest goes on
    runner.status(tmp_path)
    assert f"{NAMES[0]}: failed: no space left\n" in capsys.readouterr().out


def test_a_second_driver_is_refused(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    runner.plan(tmp_path, runner.read_plan(undisturbed[0]))
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being trained by another uvd"):
            runner.train(tmp_path)
    assert not list(tmp_path.glob("*/config.toml"))


def test_a_folder_of_another_version_or_none_says_so(undisturbed, tmp_path, capsys):
    plan = json.loads((undisturbed[0] / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**plan, "uvd_version": "9.0.0"}))
    for args in (("--status", tmp_path), ("--resume", tmp_path)):
        assert sweep(*args) == 2
        assert "was made by uvd 9.0.0, and this is uvd" in capsys.readouterr().err
    (tmp_path / "study.json").write_text("{")
    assert sweep("--status", tmp_path) == 2
    assert "study.json is damaged" in capsys.readouterr().err
    assert sweep("--status", tmp_path / "none") == 2
    assert "is not a study folder" in capsys.readouterr().err


def test_a_dry_run_makes_nothing(study, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sweep(study, "--dry-run") == 0
    *trials, whole = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in trials] == NAMES
    assert all("2 seeds x 3,000 steps" in line for line in trials)
    assert whole.startswith("2 trials, 1 at a time: about 0 min")
    assert not os.listdir(tmp_path)


def test_a_dry_run_times_each_size_once(tmp_path, capsys, monkeypatch):
    path, timed = tmp_path / "sizes.toml", []
    path.write_text(STUDY.replace("gamma = [0.9, 0.95]", "gamma = [0.9, 0.95]\nbatch = [16, 64]"))

    def timing(rows):
        timed.append(rows["settings"]["batch"])
        return 60.0, timed[-1] * 1e-2  # seconds to start, and for a unit of work

    monkeypatch.setattr(runner, "_timing", timing)
    assert sweep(path, "--dry-run", "--out", tmp_path / "out") == 0
    minutes = [float(line.split(" steps, ")[1].split()[0].replace(",", ""))
               for line in capsys.readouterr().out.splitlines()[:-1]]  # fmt: skip
    assert timed == [16, 64]
    assert minutes[:2] == minutes[2:]
    assert minutes[1] - 1 == pytest.approx(4 * (minutes[0] - 1), abs=0.3)


@pytest.mark.slow
def test_a_study_that_is_killed_ten_times_has_every_trial_once(tmp_path):
    path, rng = tmp_path / "small.toml", np.random.default_rng()
    longer = STUDY.replace("steps = 3000", "steps = 15_000")
    path.write_text(longer.replace("[0.9, 0.95]", "[0.8, 0.85, 0.9, 0.95]"))
    here, there = tmp_path / "here", tmp_path / "there"
    command = [sys.executable, "-m", "uvd.cli", "sweep"]
    subprocess.run([*command, str(path), "--out", str(here)], check=True)
    for kill in range(10):
        more = [str(path), "--out", str(there)] if kill == 0 else ["--resume", str(there)]
        driver = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        for _ in range(rng.integers(1, 12)):  # reports of 200
            driver.stdout.readline()
        driver.kill()
        driver.communicate()
        assert driver.returncode == -9
    subprocess.run([*command, "--resume", str(there)], check=True)
    names = {run.parent.name for run in there.glob("*/config.toml")}
    assert names == set(runner.read_plan(here)) == set(runner.read_plan(there))
    for name in names:
        assert_same_run(here / name, there / name)
