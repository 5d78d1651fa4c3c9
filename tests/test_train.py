"""The loop: killed, stopped, damaged or diverging runs; and bit-identical resumption."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import uvd
from fakeruns import add_agent, make_run
from uvd.api import Actor
from uvd.cli import main
from uvd.core.errors import UserError
from uvd.training.loop import first_bad, summarise
from uvd.runs import Run

TINY = {
    "hidden": (16, 16), "flow_hidden": (8, 8), "bijectors": 2, "batch": 32, "envs": 2,
    "warmup": 200, "seeds": 2, "steps": 3000, "eval_every": 500, "eval_episodes": 8,
    "save_seconds": 0.0,
}  # fmt: skip


def final_state(path: Path) -> dict[str, np.ndarray]:
    found = Run.open(path).restore()
    assert found is not None
    return found[1]


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    uvd.train("uvd", "PointReach-v0", out=out, quiet=True, **TINY)
    return out


def launch(out: Path, *extra: str) -> subprocess.Popen:
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in TINY.items() if not isinstance(v, tuple)]
    nets = ["--hidden", "16", "16", "--flow-hidden", "8", "8"]
    command = [sys.executable, "-m", "uvd.cli", "train", "uvd", "PointReach-v0"]
    return subprocess.Popen(
        [*command, f"--out={out}", *flags, *nets, *extra],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def wait_for_checkpoint(out: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not list((out / "checkpoints").glob("[0-9]*")):
        assert time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.02)


def test_killed_run_resumes_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = launch(out)
    wait_for_checkpoint(out)
    process.kill()
    process.wait()
    step = Run.open(out).restore()[0]
    assert 0 < step < TINY["steps"], "the kill came too late to test anything"
    uvd.resume(out, quiet=True)
    assert same(final_state(out), final_state(whole))
    strip = lambda rows: [{k: v for k, v in r.items() if k != "seconds"} for r in rows]  # noqa: E731
    assert strip(Run.open(out).rows()) == strip(Run.open(whole).rows())


def test_ctrl_c_saves_and_says_how_to_go_on(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = launch(out)
    wait_for_checkpoint(out)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"uvd train --resume {out}" in " ".join(text.split())
    assert "Traceback" not in text
    uvd.resume(out, quiet=True)
    assert same(final_state(out), final_state(whole))


def test_damaged_newest_checkpoint_falls_back(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "run"
    process = launch(out)
    wait_for_checkpoint(out)
    while process.poll() is None and len(list((out / "checkpoints").glob("[0-9]*"))) < 2:
        time.sleep(0.02)
    process.kill()
    process.wait()
    newest = max((out / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    state = newest / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[-5] ^= 1
    state.write_bytes(data)
    uvd.resume(out, quiet=True)
    assert newest.name in capsys.readouterr().out
    assert same(final_state(out), final_state(whole))


def test_resume_to_more_steps_equals_one_longer_run(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    uvd.train("uvd", "PointReach-v0", out=out, quiet=True, **{**TINY, "steps": 1500})
    uvd.resume(out, steps=TINY["steps"], quiet=True)
    assert same(final_state(out), final_state(whole))


def test_a_finished_run_says_that_it_is(whole: Path, capsys: pytest.CaptureFixture) -> None:
    before = final_state(whole)
    assert main(["train", "--resume", str(whole)]) == 0
    assert f"{whole} has all its 3,000 steps" in capsys.readouterr().out
    assert same(final_state(whole), before)


def test_a_copy_of_the_small_files_is_not_begun_anew(whole: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "metrics.jsonl"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    for go_on in (uvd.resume, uvd.load):
        with pytest.raises(UserError, match="not what it learned"):
            go_on(tmp_path)
    kept = (tmp_path / "metrics.jsonl").read_bytes()
    assert kept == (whole / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").unlink()  # a run that was killed before its first report
    with pytest.raises(UserError, match="no checkpoint yet; go on with: uvd train --resume"):
        uvd.load(tmp_path)


def test_a_run_is_not_resumed_to_fewer_steps(whole: Path) -> None:
    before = (whole / "config.toml").read_bytes()
    with pytest.raises(UserError, match="has 3,000 steps already, more than 500"):
        uvd.resume(whole, steps=500)
    assert (whole / "config.toml").read_bytes() == before


def test_loaded_policy_acts(whole: Path) -> None:
    trained = uvd.load(whole)
    obs, goal = np.zeros((5, 2), np.float32), np.full((5, 2), 0.5, np.float32)
    actions = trained.policy(seed=1)(obs, goal)
    assert actions.shape == (5, 2)
    assert (np.abs(actions) <= 1).all()
    assert np.allclose(actions[0], trained.policy(1)(obs[0], goal[0]), atol=1e-6)
    assert not np.allclose(actions, trained.policy(seed=0)(obs, goal))
    with pytest.raises(UserError, match="seeds 0 to 1, not 2"):
        trained.policy(2)
    with pytest.raises(
        UserError, match=r"a goal of \S+ is \d numbers, not an array of shape \(1,\)"
    ):
        trained.policy()(obs[0], goal[0][:1])


def test_a_seed_goes_by_its_own_number(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    trained = uvd.load(add_agent(make_run(tmp_path / "r", "td3", "PointReach-v0")))
    assert main(["eval", str(trained.run.path), "--episodes", "3"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [int(line[0]) for line in printed] == [*trained.seeds] == [3, 4]
    obs, goal = np.zeros((5, 2), np.float32), np.full((5, 2), 0.5, np.float32)
    for index, seed in enumerate(trained.seeds):
        state = jax.tree.map(lambda x, i=index: x[i], trained.state)
        expected = Actor(trained.plan.agent.policy(state), trained.plan.task)(obs, goal)
        assert np.array_equal(trained.policy(seed)(obs, goal), expected)
    assert np.array_equal(trained.policy()(obs, goal), trained.policy(3)(obs, goal))
    for seed in (0, 2, 5, -1):
        with pytest.raises(UserError, match=f"seeds 3 to 4, not {seed}"):
            trained.policy(seed)
    assert main(["eval", str(trained.run.path), "--video-seed", "0"]) == 2
    assert "r has seeds 3 to 4, not 0\n" in capsys.readouterr().err


def test_reports_hold_the_numbers_to_watch(whole: Path) -> None:
    last = Run.open(whole).rows()[-1]
    assert last["step"] == TINY["steps"]
    names = {
        "critic/frac_td", "actor/abs_action", "collect/moved", "critic/target_over_bound_max",
        "eval/success_final", "eval/success_ever", "density/loss",
    }  # fmt: skip
    assert names <= last.keys()
    assert all(len(last[n]) == TINY["seeds"] for n in names)
    assert max(last["critic/target_over_bound_max"]) <= 1


def test_divergence_is_named_and_the_last_checkpoint_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {**TINY, "critic_lr": 1e30, "critic_head": "linear", "warmup": 1000}
    with pytest.raises(UserError, match=r"is not finite in update [\d,]+ of seed [01]"):
        uvd.train("uvd", "PointReach-v0", out=out, quiet=True, **settings)
    step, arrays, _ = Run.open(out).restore()
    assert step >= 500
    assert all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")


def test_first_bad_finds_the_earliest_update() -> None:
    loss = np.zeros((2, 3, 4))
    loss[1, 2, 0] = np.nan
    other = np.zeros((2, 3, 4))
    other[0, 1, 3] = np.inf
    assert first_bad({"a": loss, "b": other}, 100) == "b is not finite in update 103 of seed 1"
    assert first_bad({"a": loss}, 100) == "a is not finite in update 104 of seed 2"
    assert str(first_bad({"a": loss}, 100, 5)).endswith("of seed 7")
    assert first_bad({"a": np.zeros((2, 3, 4))}, 0) is None


def test_summarise_means_and_maxima_per_seed() -> None:
    values = np.arange(12.0).reshape(2, 2, 3)  # [cycle, seed, update]
    row = summarise([{"x": values, "x_max": values}])
    assert row["x"] == [values[:, 0].mean(), values[:, 1].mean()]
    assert row["x_max"] == [8.0, 11.0]
