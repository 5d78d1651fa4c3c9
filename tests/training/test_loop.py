"""The loop: killed, stopped, damaged or diverging runs, which resume to the same bits."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import uvd
from uvd.cli import main
from uvd.collect.worker import EVAL, TRAIN, Job, randomness
from uvd.core.errors import Stopped, UserError
from uvd.demos.files import load_demos
from uvd.demos.write import write_npz
from uvd.runs import Run
from uvd.training.loop import first_bad, summarise
from wholeruns import assert_equal_arrays, assert_same_run, when_printed


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def test_first_bad_finds_the_earliest_update():
    loss = np.zeros((2, 3, 4))
    loss[1, 2, 0] = np.nan
    other = np.zeros((2, 3, 4))
    other[0, 1, 3] = np.inf
    assert first_bad({"a": loss, "b": other}, 100) == "b is not finite in update 103 of seed 1"
    assert first_bad({"a": loss}, 100) == "a is not finite in update 104 of seed 2"
    assert str(first_bad({"a": loss}, 100, 5)).endswith("of seed 7")
    loss[0, 2, 1] = np.nan
    loss[1, 0, 0] = np.nan
    assert first_bad({"a": loss}, 100) == "a is not finite in update 101 of seed 2"
    assert first_bad({"a": np.zeros((2, 3, 4))}, 0) is None
    assert first_bad({"score": np.full((2, 3), np.nan)}, 0) is None, "it belongs to no update"


def test_summarise_means_and_maxima_per_seed():
    values = np.arange(12.0).reshape(2, 2, 3)  # [cycle, seed, update]
    row = summarise([{"x": values, "x_max": values}])
    assert row["x"] == [values[:, 0].mean(), values[:, 1].mean()]
    assert row["x_max"] == [8.0, 11.0]


def test_summarise_skips_cycles_that_ended_no_episode():
    none, some = {"loss": np.ones((1, 2))}, {"loss": np.ones((1, 2))}
    some |= {"collect/return": np.array([[3.0, np.nan]])}
    more = {"loss": np.ones((1, 2)), "collect/return": np.array([[5.0, np.nan]])}
    row = summarise([none, some, more])
    assert row["collect/return"][0] == 4.0
    assert np.isnan(row["collect/return"][1])


def test_a_run_of_short_cycles_goes_on_to_the_same_bits(tmp_path):
    settings = {
        "hidden": (8,), "batch": 8, "warmup": 8, "cycle_steps": 4, "updates_per_step": 0.5,
        "eval_every": 20, "eval_episodes": 2, "workers": 1, "seeds": 2, "quiet": True,
    }  # fmt: skip
    whole = uvd.train("td3", "envs:Walk-v0", out=tmp_path / "whole", steps=60, **settings)
    part = uvd.train("td3", "envs:Walk-v0", out=tmp_path / "part", steps=40, **settings)
    assert part.step == 40
    gone_on = uvd.resume(tmp_path / "part", steps=60, quiet=True)
    assert_same_run(gone_on.run.path, whole.run.path)
    assert gone_on.rows()[-1]["updates"] == 26  # half of the steps after the warm-up


# On the device: imitation, with a score

KDI = {
    "hidden": (8,), "batch": 16, "capacity": 4000, "short": 400, "warmup": 200,
    "actor_start": 0, "noise": 0.3, "updates_per_step": 0.2, "envs": 2, "seeds": 2,
    "eval_every": 400, "eval_episodes": 4, "trajectories": 1, "every": 5, "confirm_cycles": 2,
    "save_seconds": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def loops(tmp_path_factory) -> Path:
    """Demonstrations of PointLoop."""
    return write_npz(
        load_demos("pointloop-expert").trajectories[:2], tmp_path_factory.mktemp("demos") / "loop"
    )


@pytest.fixture(scope="module")
def imitated(loops, tmp_path_factory):
    """A run of kdi that nothing interrupted."""
    out = tmp_path_factory.mktemp("kdi") / "run"
    return uvd.train("kdi", "PointLoop-v0", out=out, steps=2000, demos=loops, quiet=True, **KDI)


def test_the_best_policy_is_the_runs_result(imitated):
    rows = imitated.rows()
    assert [row["step"] for row in rows] == [400, 800, 1200, 1600, 2000]
    assert [row["updates"] for row in rows] == [40, 120, 200, 280, 360]
    assert {"critic/loss", "collect/return", "demos/spread", "select/score"} <= rows[-1].keys()
    assert not [name for name in rows[-1] if "success" in name or "moved" in name]
    score = np.array([row["select/best"] for row in rows])
    # Until a policy is confirmed, the best one is the one that played last.
    assert (np.diff(score[2:], axis=0) >= 0).all()
    assert imitated.state.best.found.all()
    assert (imitated.state.best.candidate.total != 0).any()
    newest = imitated.plan.agent.policy(imitated.state.agent).net
    best = imitated.state.best
    returns, others = (
        imitated.plan.program.evaluate(
            imitated.state._replace(best=best._replace(net=net)), EVAL, KDI["eval_episodes"]
        )["eval/return"].tolist()
        for net in (best.net, newest)
    )
    assert returns == rows[-1]["eval/return"]
    assert others == rows[-1]["newest/return"]
    assert set(returns).isdisjoint(others)


def test_a_stopped_run_goes_on_to_the_same_bits_when_its_demonstrations_have_gone(
    imitated, loops, tmp_path
):
    files, out = shutil.copytree(loops, tmp_path / "loop"), tmp_path / "run"
    with when_printed("step 400/1,200", press_ctrl_c), pytest.raises(Stopped) as stopped:
        uvd.train("kdi", "PointLoop-v0", out=out, steps=1200, demos=files, **KDI)
    assert str(stopped.value) == f"stopped at step 400; go on with: uvd train --resume {out}"
    assert Run.open(out).restore()[0] == 400
    shutil.rmtree(files)
    uvd.resume(out, steps=2000, quiet=True)
    assert_same_run(out, imitated.run.path)


def test_a_kill_after_a_damaged_checkpoint_loses_nothing(imitated, tmp_path, capsys):
    """A kill leaves episodes and rows that no checkpoint knows, and halves of the last ones."""
    out = shutil.copytree(imitated.run.path, tmp_path / "run")
    newest = out / "checkpoints" / "2000.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    with (out / "episodes" / "seed1.bin").open("ab") as log:
        log.write(b"UVD1 and no more")
    with (out / "metrics.jsonl").open("a") as rows:
        rows.write('{"step": 25')
    uvd.resume(out, quiet=True)
    printed = capsys.readouterr().out
    assert "2000.safetensors is damaged" in printed
    assert "the one of step 1600 is used" in printed
    assert_same_run(out, imitated.run.path)


def test_a_finished_run_says_that_it_is(imitated, capsys):
    path = imitated.run.path
    before = (path / "checkpoints" / "2000.safetensors").read_bytes()
    uvd.resume(path)
    assert f"{path} has all its 2,000 steps" in capsys.readouterr().out
    assert (path / "checkpoints" / "2000.safetensors").read_bytes() == before


def test_a_run_holds_what_it_imitates_and_checks_it(imitated, loops, tmp_path):
    out = shutil.copytree(imitated.run.path, tmp_path / "run")
    assert Run.open(out).config["demos"].keys() == {"demos", "trajectories", "every", "sha256"}
    kept, demos = out / "demos.safetensors", Run.open(out).read_demos()
    data = kept.read_bytes()
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        kept.write_bytes(damaged)
        with pytest.raises(UserError, match=r"demos.safetensors is damaged .*: remove it"):
            uvd.load(out)
    # Without it, a run reads the source again, which must be the same.
    kept.unlink()
    text = (out / "config.toml").read_text()
    elsewhere = tmp_path / "elsewhere"
    (out / "config.toml").write_text(text.replace(str(loops), str(elsewhere)))
    with pytest.raises(UserError, match="no such file or folder"):
        uvd.load(out)
    write_npz(load_demos(str(loops)).trajectories[::-1], elsewhere)
    with pytest.raises(UserError, match="holds other demonstrations than those this run began"):
        uvd.resume(out, quiet=True)
    (out / "config.toml").write_text(text)
    uvd.resume(out, quiet=True)
    assert_equal_arrays(Run.open(out).read_demos(), demos)


# With worker processes

ENV = "envs:Line-v0"
LINE = {
    "hidden": (8, 8), "batch": 16, "envs": 3, "warmup": 60, "seeds": 2, "steps": 600,
    "eval_every": 150, "eval_episodes": 4, "save_seconds": 0.0, "workers": 2, "capacity": 250,
    "updates_per_step": 0.2,
}  # fmt: skip
ENDS = {"ends": True}  # episodes terminate, so their lengths vary
QUOTA, HORIZON = 30, 10


@pytest.fixture(scope="module")
def line(tmp_path_factory) -> Path:
    """A run that nothing interrupted; it plays while it learns, however few the cores."""
    out = tmp_path_factory.mktemp("line") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvd.training.on_workers.FEW_CORES", 0)
        uvd.train("her", ENV, out=out, task_settings=ENDS, quiet=True, **LINE)
    return out


def children() -> list[str]:
    """Workers that any thread of this process started and that still run."""
    threads = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [child for thread in threads for child in thread.read_text().split()]
    found = []
    for pid in pids:
        with suppress(OSError):  # it ended just now
            if "uvd.collect" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def test_reports_hold_the_numbers_to_watch(line):
    rows = Run.open(line).rows()
    assert [row["step"] for row in rows] == [150, 300, 450, 600]
    names = {
        "critic/loss", "critic/q", "actor/abs_action", "collect/moved", "collect/success_ever",
        "eval/success_final", "eval/success_ever",
    }  # fmt: skip
    assert names <= rows[-1].keys()
    assert all(len(rows[-1][name]) == LINE["seeds"] for name in names)
    assert min(rows[-1]["collect/moved"]) > 0.9


def test_steps_and_updates_keep_their_ratio(line):
    assert [row["updates"] for row in Run.open(line).rows()] == [18, 48, 78, 108]
    for seed in range(2):
        log = list(Run.open(line).episodes().read(seed))
        assert len(log) == 600 // QUOTA
        done = 0
        for cycle, record in enumerate(log):
            lengths = record["length"]
            assert record["obs"].shape[1] == lengths.max() + 1, "padding was logged"
            assert (lengths > 0).all()
            done += lengths.sum()
            assert QUOTA * (cycle + 1) <= done < QUOTA * (cycle + 1) + HORIZON
            for i, n in enumerate(lengths):
                outside = abs(record["achieved"][i, : n + 1]).max(-1) > 1
                assert record["terminated"][i] == outside[-1]
                assert outside[-1] or n == HORIZON
        assert len({len(record["length"]) for record in log}) > 1


def test_ctrl_c_leaves_no_process_and_fewer_workers_go_on_to_the_same_bits(line, tmp_path, capsys):
    out = tmp_path / "run"
    settings = {**LINE, "steps": 300, "workers": 1, "hidden": "8 8"}
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in settings.items()]
    command = f"train her {ENV} --out {out} --task-settings ends=True {' '.join(flags)}"
    with when_printed("step 150/300", press_ctrl_c):
        assert main(command.split()) == 130
    errors = capsys.readouterr().err
    assert "stopped at step 150; go on with: uvd train --resume" in errors
    assert "Traceback" not in errors
    assert children() == []
    assert Run.open(out).restore()[0] == 150
    uvd.resume(out, steps=600, quiet=True)
    assert children() == []
    assert_same_run(out, line)


def first_episode(run: Path, seed: int, cycle: int) -> int:
    """The number that an environment is reset with for a cycle's first episode of a seed."""
    log = list(Run.open(run).episodes().read(seed))
    number = sum(len(record["length"]) for record in log[:cycle])
    return randomness(Job(seed, seed, TRAIN, number))[0]


def test_a_killed_run_resumes_to_the_same_bits(line, tmp_path):
    """It hangs in the first episode of cycle 8, so that it is not done before it is killed."""
    out, file = tmp_path / "run", tmp_path / "now"
    file.touch()
    own = {"trouble": "hang", "file": str(file), "always": True, "only": first_episode(line, 1, 8)}
    code = (
        "import sys; sys.path.append(sys.argv[1]); import uvd\n"
        f"uvd.train('her', {ENV!r}, out=sys.argv[2], task_settings={ {**ENDS, **own} }, "
        f"quiet=True, **{LINE})"
    )
    here = str(Path(__file__).parents[1])
    process = subprocess.Popen([sys.executable, "-c", code, here, str(out)])
    end = time.monotonic() + 120
    while not (out / "checkpoints" / "210.safetensors").exists():
        assert time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.01)
    process.kill()
    process.wait()
    file.unlink()
    uvd.resume(out, quiet=True)
    assert_same_run(out, line)


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_anew(line, tmp_path):
    out = shutil.copytree(line, tmp_path / "run")
    shutil.rmtree(out / "checkpoints")
    uvd.resume(out, quiet=True)
    assert_same_run(out, line)


def fails(line, tmp_path, only):
    """A run whose workers die in the episode that starts with that number, and its folder."""
    out, file = tmp_path / "run", tmp_path / "now"
    file.touch()
    own = {"trouble": "die", "file": str(file), "always": True, "only": only}
    settings = {**LINE, "steps": 300, "save_seconds": 1e6}
    with pytest.raises(UserError, match="3 workers died in episode ") as error:
        uvd.train("her", ENV, out=out, task_settings={**ENDS, **own}, quiet=True, **settings)
    assert str(error.value).endswith(f"; go on with: uvd train --resume {out}")
    assert "\n" not in str(error.value)
    assert children() == []
    file.unlink()
    return out


def test_workers_that_keep_dying_end_a_run_after_it_is_saved(line, tmp_path):
    out = fails(line, tmp_path, only=first_episode(line, 1, 6))
    assert Run.open(out).restore()[0] == 6 * QUOTA  # all that was played is learned from


def test_workers_that_keep_dying_in_an_evaluation_lose_no_steps(line, tmp_path):
    out = fails(line, tmp_path, only=randomness(Job(0, 0, EVAL, 2))[0])
    assert Run.open(out).restore()[0] == 150
    assert Run.open(out).rows() == []
    uvd.resume(out, steps=600, quiet=True)  # begins with that evaluation
    assert_same_run(out, line)


def spoil(run: Run) -> None:
    """Writes a critic that is not finite into the newest checkpoint."""
    step, arrays, meta = run.restore()
    name = next(name for name in arrays if "critic.weights" in name)
    arrays[name] = np.full_like(arrays[name], np.nan)
    run.save(step, arrays, meta)


def test_divergence_is_named_and_the_last_checkpoint_is_kept(line, tmp_path):
    out = shutil.copytree(line, tmp_path / "run")
    spoil(Run.open(out))
    with pytest.raises(UserError) as error:
        uvd.resume(out, steps=750, quiet=True)
    kept = f"stopped, the checkpoint at step 600 is kept in {out}"
    assert re.fullmatch(
        rf"her {ENV}: (\w+/)+\w+ is not finite in update 108 of seed 0; {kept}", str(error.value)
    )
    assert Run.open(out).restore()[0] == 600
    assert children() == []


def test_a_run_that_is_all_warm_up_says_so_and_saves_only_what_is_finite(tmp_path, capsys):
    out, settings = tmp_path / "run", {**LINE, "steps": 30, "eval_every": 30, "warmup": 400}
    uvd.train("her", ENV, out=out, **settings)
    assert "nothing is learned in 30 steps, warmup = 400" in capsys.readouterr().out
    spoil(Run.open(out))
    with pytest.raises(UserError, match=r"critic.* is not finite at step 60; stopped, not saved$"):
        uvd.resume(out, steps=60, quiet=True)
    assert Run.open(out).restore()[0] == 30


def test_td3_learns_from_an_environments_rewards(tmp_path):
    """The reward is the position; beyond 1 the episode ends. Random actions earn about 0."""
    settings = {
        **LINE, "hidden": (32, 32), "batch": 32, "updates_per_step": 0.5, "warmup": 100, "envs": 5,
        "capacity": 500, "eval_every": 600, "warmup_random": True,
    }  # fmt: skip
    own = {"low": 0.0, "high": 4.0}
    out = tmp_path / "run"
    trained = uvd.train("td3", "envs:Walk-v0", out=out, task_settings=own, quiet=True, **settings)
    (row,) = trained.rows()
    assert min(row["eval/return"]) > 3
    assert row["collect/return"] != row["eval/return"]
    log = list(trained.run.episodes().read(0))
    assert min(np.concatenate([record["length"] for record in log])) < 10
    for record in log:
        for i, n in enumerate(record["length"]):
            np.testing.assert_allclose(record["reward"][i, :n], record["obs"][i, 1 : n + 1, 0])
            assert not record["reward"][i, n:].any()
            assert record["terminated"][i] == (record["obs"][i, n, 0] > 1)
