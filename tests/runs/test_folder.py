"""Run folders survive kills, damage and full disks, or say in one line why they cannot."""

import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

import uvd
from uvd.core.errors import UserError
from uvd.runs import Run


def row(step: int) -> dict:
    return {"step": step, "updates": step, "seconds": 0.5, "critic/loss": [step / 2, 1.0]}


class TestConfig:
    def test_settings_come_back_with_the_version_and_without_none(self, tmp_path):
        config = {"task": "CliffWalk-v0", "sizes": (400, 400), "seed": None, "agent": {"tau": None}}
        Run.create(tmp_path / "a" / "run", config)
        run = Run.open(tmp_path / "a" / "run")
        expected = {"task": "CliffWalk-v0", "sizes": [400, 400], "agent": {}}
        assert run.config == expected | {"uvd_version": uvd.__version__}
        run.config["task"] = "other"
        run.write_config()
        assert Run.open(run.path).config == run.config

    def test_an_existing_run_is_refused_and_both_ways_out_are_named(self, run):
        with pytest.raises(UserError, match=r"--resume .*--overwrite") as caught:
            Run.create(run.path, {})
        assert "\n" not in str(caught.value)
        assert Run.open(run.path).config["algorithm"] == "uvd"

    def test_overwrite_leaves_nothing_of_the_old_run(self, run):
        run.report({"step": 1, "updates": 1, "seconds": 0.1, "success": [1.0]})
        run.save(1, {"w": np.zeros(3, np.float32)}, {})
        run.episodes().append_batch(0, {"length": np.ones(1, np.int32)})
        new = Run.create(run.path, {"algorithm": "her"}, overwrite=True)
        assert [p.name for p in new.path.iterdir()] == ["config.toml"]
        assert [p.name for p in new.path.parent.iterdir()] == ["run"]
        assert new.config["algorithm"] == "her"

    @pytest.mark.parametrize("config", [None, "[profile]\nname = 'not ours'\n", "not toml at all"])
    def test_overwrite_refuses_what_is_not_a_run(self, tmp_path, config):
        (tmp_path / "thesis.tex").write_text("years of work")
        if config is not None:
            (tmp_path / "config.toml").write_text(config)
        for path in (tmp_path, tmp_path / "thesis.tex"):
            with pytest.raises(UserError, match="replaces only runs"):
                Run.create(path, {}, overwrite=True)
        assert (tmp_path / "thesis.tex").read_text() == "years of work"
        for path in (tmp_path / "thesis.tex", *([tmp_path] if config is None else [])):
            with pytest.raises(UserError, match="is not a run: choose another with --out"):
                Run.create(path, {})

    def test_what_a_kill_inside_create_leaves_can_be_created_again(self, tmp_path):
        (tmp_path / ".tmp-config.toml").write_text("a =")
        with pytest.raises(UserError, match=r"no config\.toml"):
            Run.open(tmp_path)
        assert Run.create(tmp_path, {"a": 2}).config["a"] == 2

    def test_a_full_disk_is_one_line(self, tmp_path, full_disk):
        with (
            full_disk("fsync"),
            pytest.raises(UserError, match=r"cannot write .*/run/.*No space left"),
        ):
            Run.create(tmp_path / "run", {})

    def test_open_refuses_what_is_not_a_run(self, tmp_path):
        with pytest.raises(UserError, match="not a run folder"):
            Run.open(tmp_path / "nowhere")
        (tmp_path / "config.toml").write_text("a = ")
        with pytest.raises(UserError, match="cannot read the run") as caught:
            Run.open(tmp_path)
        assert "\n" not in str(caught.value)

    def test_another_version_is_refused_but_can_be_opened_and_read(self, run):
        same = ".".join([*uvd.__version__.split(".")[:2], "99"])
        for version in (uvd.__version__, same):
            run.config["uvd_version"] = version
            run.require_this_version()
        run.config["uvd_version"] = "0.1.0"
        run.write_config()
        run.report(row(1))
        old = Run.open(run.path)
        assert old.rows() == [row(1)]
        with pytest.raises(UserError, match=r"run was made by uvd 0\.1\.0.*install.*train") as e:
            old.require_this_version()
        assert "\n" not in str(e.value)

    def test_a_copy_of_the_small_files_is_not_whole(self, run):
        run.require_whole()  # nothing was reported yet
        run.report(row(1))
        with pytest.raises(UserError, match="not what it learned"):
            run.require_whole()
        run.episodes().append_batch(0, {"length": np.ones(1, np.int32)})
        run.require_whole()


class TestMetrics:
    def test_rows_come_back_and_what_is_not_finite_is_null(self, run):
        run.report(row(1) | {"critic/loss": [float("nan"), 0.5]})
        run.report(row(2) | {"critic/loss": [float("inf"), -float("inf")], "seconds": float("nan")})
        lines = (run.path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == run.rows()
        assert run.rows() == [
            row(1) | {"critic/loss": [None, 0.5]},
            row(2) | {"critic/loss": [None, None], "seconds": None},
        ]

    def test_no_rows_yet(self, run):
        assert run.rows() == []
        run.truncate_rows(0)

    @pytest.mark.parametrize("cut", [1, 9])
    def test_an_incomplete_last_line_does_not_spoil_the_next(self, run, cut):
        run.report(row(1))
        run.report(row(2))
        path = run.path / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-cut])
        before = [row(1), row(2)][: 2 if cut == 1 else 1]
        again = Run.open(run.path)
        assert again.rows() == before
        again.report(row(3))
        assert again.rows() == [*before, row(3)]

    def test_damage_inside_is_not_passed_over(self, run):
        for step in range(3):
            run.report(row(step))
        path = run.path / "metrics.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"step": 1', b'"step": #'))
        with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: remove its line 2"):
            run.rows()

    def test_truncate_rows_between_reports(self, run):
        for step in (10, 20, 30):
            run.report(row(step))
        run.truncate_rows(20)
        run.report(row(40))
        assert [r["step"] for r in run.rows()] == [10, 20, 40]
        run.truncate_rows(-1)
        assert run.rows() == []


def test_demonstrations_come_back_or_are_damaged(run):
    assert run.read_demos() is None
    obs = np.arange(6, dtype=np.float32).reshape(2, 3)
    run.write_demos({"obs": obs})
    demos = Run.open(run.path).read_demos()
    assert demos is not None
    np.testing.assert_array_equal(demos["obs"], obs)
    path = run.path / "demos.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"#")
    with pytest.raises(UserError, match=r"demos\.safetensors is damaged .*: remove it"):
        run.read_demos()


CHILD = """
import sys, numpy as np
from uvd.runs import Run
run = Run.open(sys.argv[1])
step, _, meta = run.restore() or (0, {}, {"positions": []})
run.truncate_rows(step if step else -1)
log = run.episodes()
log.truncate(meta["positions"])
while True:
    step += 1
    for seed in range(2):
        obs = np.full((1, 50, 9), step, np.float32)
        log.append_batch(seed, {"obs": obs, "length": np.array([50])})
    run.report({"step": step, "updates": step, "seconds": 0.0, "success": [1.0, 0.0]})
    arrays = {"w": np.full(200_000, step, np.float32), "key": np.array([step, 1], np.uint32)}
    run.save(step, arrays, {"positions": log.sync()})
    print(step, flush=True)
"""


def test_kill_at_random_moments(run):
    """After each kill -9 the newest checkpoint is good, and log and rows agree with it."""
    reached = 0
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", "-c", CHILD, str(run.path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        time.sleep(random.uniform(0, 0.2))
        child.kill()
        lines += child.stdout.readlines()
        announced = int(lines[-1])
        child.wait()
        child.stdout.close()
        again = Run.open(run.path)
        checkpoint = again.restore(pytest.fail)
        assert checkpoint is not None
        step, arrays, meta = checkpoint
        assert step in (announced, announced + 1)
        assert step > reached
        reached = step
        assert np.all(arrays["w"] == step)
        assert arrays["key"].tolist() == [step, 1]
        for seed in range(2):
            records = list(again.episodes().read(seed))
            assert len(records) in (step, step + 1)
            assert [int(r["obs"][0, 0, 0]) for r in records][:step] == list(range(1, step + 1))
            assert meta["positions"][seed] <= os.path.getsize(run.path / f"episodes/seed{seed}.bin")
        assert [r["step"] for r in again.rows()][:step] == list(range(1, step + 1))


def test_no_jax_and_no_tensorboard_are_imported():
    """`uvd list` and figures read runs; both imports are slow."""
    code = "import sys, uvd.runs; print({'jax', 'tensorboard'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
