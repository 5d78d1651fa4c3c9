"""Run folders survive kills, damage and full disks, or say in one line why they cannot."""

import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import uvd
from uvd.errors import UserError
from uvd.runs import EpisodeLog, Run


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "run", {"algorithm": "uvd"})
    yield run
    run.close()


def arrays_of(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full((3, 4), step, np.float32), "count": np.array(step, np.int32)}


def episodes_of(value: int, count: int = 2) -> dict[str, np.ndarray]:
    return {
        "obs": np.full((count, 5, 3), value, np.float32),
        "length": np.full(count, 5, np.int32),
    }


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """Bit for bit: type, shape and every byte, so that NaN payloads and -0.0 count too."""
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        assert a[name].tobytes() == b[name].tobytes(), name


def restored(run: Run) -> tuple[int, dict[str, np.ndarray], dict]:
    """What `restore` gives where it must give something and has nothing to warn of."""
    checkpoint = run.restore(pytest.fail)
    assert checkpoint is not None
    return checkpoint


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed(*args):
    """Nothing catches it and nothing is tidied up: what a kill at this call would leave."""
    raise SystemExit


class TestConfig:
    def test_settings_come_back_with_the_version_and_without_none(self, tmp_path):
        config = {"task": "CliffWalk-v0", "sizes": (400, 400), "seed": None, "agent": {"tau": None}}
        Run.create(tmp_path / "a" / "run", config)
        expected = {"task": "CliffWalk-v0", "sizes": [400, 400], "agent": {}}
        assert Run.open(tmp_path / "a" / "run").config == expected | {
            "uvd_version": uvd.__version__
        }

    def test_an_existing_run_is_refused_and_both_ways_out_are_named(self, run):
        with pytest.raises(UserError, match=r"--resume .*--overwrite") as caught:
            Run.create(run.path, {})
        assert "\n" not in str(caught.value)
        assert Run.open(run.path).config["algorithm"] == "uvd"

    def test_overwrite_leaves_nothing_of_the_old_run(self, run):
        run.report({"step": 1, "updates": 1, "seconds": 0.1, "success": [1.0]})
        run.save(1, arrays_of(1), {})
        run.episodes().append_batch(0, episodes_of(1))
        run.close()
        new = Run.create(run.path, {"algorithm": "her"}, overwrite=True)
        assert [p.name for p in new.path.iterdir()] == ["config.toml"]
        assert [p.name for p in new.path.parent.iterdir()] == ["run"]
        assert new.config["algorithm"] == "her"

    @pytest.mark.parametrize("config", [None, "[profile]\nname = 'not ours'\n", "not toml at all"])
    def test_overwrite_refuses_what_is_not_a_run(self, tmp_path, config):
        (tmp_path / "thesis.tex").write_text("years of work")
        if config is not None:
            (tmp_path / "config.toml").write_text(config)
        with pytest.raises(UserError, match="replaces only runs"):
            Run.create(tmp_path, {}, overwrite=True)
        with pytest.raises(UserError, match="replaces only runs"):
            Run.create(tmp_path / "thesis.tex", {}, overwrite=True)
        assert (tmp_path / "thesis.tex").read_text() == "years of work"
        for path in (tmp_path / "thesis.tex", *([tmp_path] if config is None else [])):
            with pytest.raises(UserError, match="is not a run: choose another with --out"):
                Run.create(path, {})

    def test_what_a_kill_inside_create_leaves_can_be_created_again(self, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", killed)
            with pytest.raises(SystemExit):
                Run.create(tmp_path / "run", {"a": 1})
        with pytest.raises(UserError, match=r"no config\.toml"):
            Run.open(tmp_path / "run")
        assert Run.create(tmp_path / "run", {"a": 2}).config["a"] == 2

    def test_a_full_disk_is_one_line(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(UserError, match=r"cannot create the run .*No space left"):
            Run.create(tmp_path / "run", {})

    def test_open_refuses_what_is_not_a_run(self, tmp_path):
        with pytest.raises(UserError, match="not a run folder"):
            Run.open(tmp_path / "nowhere")
        (tmp_path / "config.toml").write_text("a = ")
        with pytest.raises(UserError, match="cannot read the run") as caught:
            Run.open(tmp_path)
        assert "\n" not in str(caught.value)


class TestMetrics:
    def row(self, step: int) -> dict:
        return {"step": step, "updates": step, "seconds": 0.5, "critic/loss": [step / 2, 1.0]}

    def test_rows_come_back_and_what_is_not_finite_is_null(self, run):
        run.report(self.row(1) | {"critic/loss": np.array([np.nan, 0.5], np.float32)})
        run.report(self.row(2) | {"critic/loss": [float("inf"), -float("inf")], "seconds": np.nan})
        lines = (run.path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == run.rows()
        assert run.rows() == [
            self.row(1) | {"critic/loss": [None, 0.5]},
            self.row(2) | {"critic/loss": [None, None], "seconds": None},
        ]

    def test_no_rows_yet(self, run):
        assert run.rows() == []
        run.truncate_rows(0)

    def test_a_torn_last_line_is_left_out_and_does_not_spoil_the_next(self, run):
        run.report(self.row(1))
        run.report(self.row(2))
        path = run.path / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-9])
        again = Run.open(run.path)
        assert again.rows() == [self.row(1)]
        again.report(self.row(3))
        assert again.rows() == [self.row(1), self.row(3)]
        again.close()

    def test_damage_inside_is_not_passed_over(self, run):
        for step in range(3):
            run.report(self.row(step))
        path = run.path / "metrics.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"step": 1', b'"step": #'))
        with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: remove its line 2"):
            run.rows()

    def test_truncate_rows_between_reports(self, run):
        for step in (10, 20, 30):
            run.report(self.row(step))
        run.truncate_rows(20)
        run.report(self.row(40))
        assert [row["step"] for row in run.rows()] == [10, 20, 40]

    def test_a_row_that_does_not_fit_is_cut_off_again(self, run, monkeypatch):
        run.report(self.row(1))
        write = os.write
        calls = iter([lambda fd, data: write(fd, data[:20]), full_disk])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: next(calls)(fd, data))
            with pytest.raises(UserError, match=r"metrics\.jsonl: No space left"):
                run.report(self.row(2))
        assert next(calls, None) is None
        run.report(self.row(3))
        assert run.rows() == [self.row(1), self.row(3)]

    def test_tensorboard_reads_each_seed_and_a_resumed_run_once(self, run):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for step in (1, 2, 3):
            run.report(self.row(step) | {"nan": [np.nan, 7.0]})
        run.close()
        resumed = Run.open(run.path)
        resumed.truncate_rows(1)
        for step in (2, 4):
            resumed.report(self.row(step) | {"critic/loss": [-step, 0.0]})
        resumed.close()
        seeds = [EventAccumulator(str(run.path / f"tensorboard/seed{k}")) for k in range(2)]
        for seed in seeds:
            seed.Reload()
        assert [seed.Tags()["scalars"] for seed in seeds] == [
            ["critic/loss"],
            ["critic/loss", "nan"],
        ]
        points = seeds[0].Scalars("critic/loss")
        assert [(p.step, p.value) for p in points] == [(1, 0.5), (2, -2.0), (4, -4.0)]


class TestCheckpoints:
    def test_arrays_and_meta_come_back_bit_for_bit(self, run):
        rng = np.random.default_rng(0)
        arrays = {
            "scalar": np.array(np.float32(-0.0)),
            "actor/0/w": rng.standard_normal((5, 7)).astype(np.float32),
            "transposed": rng.standard_normal((5, 7)).astype(np.float32).T,
            "strided": np.arange(20, dtype=np.int32)[::3],
            "key": np.array([0, 2**32 - 1], np.uint32),
            "done": np.array([True, False]),
            "flag": np.array(True),
            "count": np.array(-(2**31), np.int32),
            "empty": np.zeros((0, 3), np.float32),
            "nan": np.array([0x7FC00001, 0xFF800000], np.uint32).view(np.float32),
            "float64": np.array(np.pi),
        }
        meta = {"positions": [np.int64(3), 4], "nested": {"seconds": 0.1}, "when": float("inf")}
        path = run.save(70, arrays, meta)
        assert path == run.path / "checkpoints" / "70"
        step, arrays_back, meta_back = restored(Run.open(run.path))
        assert step == 70
        assert meta_back == {
            "positions": [3, 4],
            "nested": {"seconds": 0.1},
            "when": float("inf"),
        }
        assert_same(arrays, arrays_back)

    def test_none_where_none_was_saved(self, run):
        assert run.restore(pytest.fail) is None

    def test_the_newest_by_number_is_used_and_the_last_few_kept(self, run):
        for step in (8, 9, 10, 11):
            run.save(step, arrays_of(step), {}, keep=3)
        assert restored(run)[0] == 11
        assert {p.name for p in (run.path / "checkpoints").iterdir()} == {"9", "10", "11"}

    @pytest.mark.parametrize("name", ["state.safetensors", "meta.json"])
    def test_damage_anywhere_in_the_newest_falls_back_on_the_one_before(self, run, name):
        for step in (1, 2):
            run.save(step, arrays_of(step), {"positions": [step * 100]})
        path = run.path / "checkpoints" / "2" / name
        whole = path.read_bytes()
        for offset in range(len(whole)):
            flip_bit(path, offset)
            lines: list[str] = []
            checkpoint = Run.open(run.path).restore(lines.append)
            assert checkpoint is not None
            step, arrays, meta = checkpoint
            path.write_bytes(whole)
            if step == 2:  # only white space between the values of the JSON may change unnoticed
                assert name == "meta.json"
                assert whole[offset : offset + 1] in b" \n"
                assert meta == {"positions": [200]}
                continue
            assert (step, meta) == (1, {"positions": [100]})
            assert_same(arrays, arrays_of(1))
            assert len(lines) == 1
            assert "checkpoints/2 is damaged" in lines[0]
            assert "step 1 is used" in lines[0]
            assert "\n" not in lines[0]

    @pytest.mark.parametrize("name", ["state.safetensors", "meta.json"])
    @pytest.mark.parametrize("size", [0, 1, 60, None])
    def test_a_cut_or_missing_file_falls_back_on_the_one_before(self, run, name, size):
        for step in (1, 2):
            run.save(step, arrays_of(step), {})
        path = run.path / "checkpoints" / "2" / name
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)
        with pytest.warns(UserWarning, match="checkpoints/2 is damaged"):
            checkpoint = run.restore()
        assert checkpoint is not None
        assert checkpoint[0] == 1

    def test_all_damaged_is_an_error_that_says_what_to_do(self, run):
        for step in (1, 2):
            run.save(step, arrays_of(step), {})
            flip_bit(run.path / "checkpoints" / str(step) / "state.safetensors", -1)
        with pytest.raises(UserError, match=r"checkpoints/2 is damaged .*--overwrite") as caught:
            run.restore(pytest.fail)
        assert "\n" not in str(caught.value)

    def test_a_checkpoint_under_another_step_is_damaged(self, run):
        os.rename(run.save(1, arrays_of(1), {}), run.path / "checkpoints" / "5")
        with pytest.raises(UserError, match="damaged"):
            run.restore(pytest.fail)

    def test_a_damaged_one_does_not_count_among_those_kept(self, run):
        for step in (1, 2):
            run.save(step, arrays_of(step), {})
        flip_bit(run.path / "checkpoints" / "2" / "state.safetensors", -1)
        resumed = Run.open(run.path)
        with pytest.warns(UserWarning, match="checkpoints/2 is damaged"):
            resumed.restore()
        resumed.save(3, arrays_of(3), {})
        assert {p.name for p in (run.path / "checkpoints").iterdir()} == {"1", "3"}

    def test_a_damaged_one_is_replaced_by_the_resumed_run(self, run):
        for step in (1, 2):
            run.save(step, arrays_of(step), {})
        flip_bit(run.path / "checkpoints" / "2" / "state.safetensors", -1)
        resumed = Run.open(run.path)
        with pytest.warns(UserWarning, match="checkpoints/2 is damaged"):
            resumed.restore()
        resumed.save(2, arrays_of(2), {"again": True})
        assert restored(resumed)[2] == {"again": True}
        assert {p.name for p in (run.path / "checkpoints").iterdir()} == {"1", "2"}

    def test_what_was_just_saved_is_what_is_restored(self, run):
        run.save(9, arrays_of(9), {})
        run.save(5, arrays_of(5), {}, keep=1)
        assert restored(run)[0] == 5

    @pytest.mark.parametrize(("step", "renames"), [(2, 0), (1, 0), (1, 1)])
    def test_a_kill_before_a_rename_leaves_the_previous(self, run, monkeypatch, step, renames):
        """A new step takes one rename, the same step again two."""
        run.save(1, arrays_of(1), {}, keep=1)
        calls = iter([os.replace] * renames + [killed])
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda a, b: next(calls)(a, b))
            with pytest.raises(SystemExit):
                run.save(step, arrays_of(7), {}, keep=1)
        assert (run.path / "checkpoints" / f".tmp-{step}").is_dir()
        again = Run.open(run.path)
        assert_same(restored(again)[1], arrays_of(1))
        again.save(3, arrays_of(3), {}, keep=1)
        assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["3"]

    @pytest.mark.parametrize("call", ["fsync", "replace", "mkdir"])
    def test_a_full_disk_keeps_the_previous_and_says_so(self, run, monkeypatch, call):
        run.save(1, arrays_of(1), {})
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full_disk)
            with pytest.raises(UserError, match=r"No space left.*step 1 survives") as caught:
                run.save(2, arrays_of(2), {})
        assert str(run.path / "checkpoints" / "2") in str(caught.value)
        assert "\n" not in str(caught.value)
        assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["1"]
        assert_same(restored(run)[1], arrays_of(1))

    def test_a_full_disk_at_the_first_one(self, run, monkeypatch):
        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(UserError, match=r"No space left.*there is none before"):
            run.save(1, arrays_of(1), {})
        assert run.restore(pytest.fail) is None

    def test_keep_none_is_refused(self, run):
        with pytest.raises(ValueError, match="keep"):
            run.save(1, arrays_of(1), {}, keep=0)


episode_arrays = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
        lambda name: name not in ("__metadata__", "length")
    ),
    hnp.arrays(
        st.sampled_from([np.float32, np.uint8, np.int32, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
    ),
    max_size=4,
)


class TestEpisodeLog:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 2), episode_arrays), max_size=6), st.data())
    def test_roundtrip_of_any_episodes(self, tmp_path_factory, episodes, data):
        """Also after a cut at any byte past a synced position, as a kill would leave it."""
        folder = tmp_path_factory.mktemp("log")
        log = EpisodeLog(folder)
        synced = data.draw(st.integers(0, len(episodes)))
        written: list[list[dict]] = [[], [], []]
        positions: list[int] = []
        for index, (seed, episode) in enumerate(episodes):
            if index == synced:
                positions = log.sync()
            whole = episode | {"length": np.array(index, np.int32)}
            log.append(seed, whole)
            written[seed].append({name: x[None] for name, x in whole.items()})
        final = log.sync()
        log.close()
        if synced == len(episodes):
            positions = final
        before = [sum(s == seed for s, _ in episodes[:synced]) for seed in range(3)]
        for seed, size in enumerate(final):
            start = positions[seed] if seed < len(positions) else 0
            cut = data.draw(st.integers(start, size))
            if size:
                os.truncate(folder / f"seed{seed}.bin", cut)
            records = list(EpisodeLog(folder).read(seed))
            assert before[seed] <= len(records) <= len(written[seed])
            assert (len(records) == len(written[seed])) == (cut == size)
            for record, expected in zip(records, written[seed]):
                assert_same(record, expected)
            assert len(list(EpisodeLog(folder).read(seed, start))) == before[seed]
        resumed = EpisodeLog(folder)
        resumed.truncate(positions)
        assert resumed.sync()[: len(positions)] == positions
        assert not any(resumed.sync()[len(positions) :])
        for seed in range(3):
            assert len(list(resumed.read(seed))) == before[seed]

    def test_appending_goes_on_after_a_cut(self, run):
        log = run.episodes()
        log.append_batch(0, episodes_of(1))
        log.append_batch(1, episodes_of(1))
        positions = log.sync()
        log.append_batch(0, episodes_of(2))
        log.append_batch(2, episodes_of(2))
        log.truncate(positions)
        log.append_batch(0, episodes_of(3))
        assert [int(r["obs"][0, 0, 0]) for r in log.read(0)] == [1, 3]
        assert [int(r["obs"][0, 0, 0]) for r in log.read(0, positions[0])] == [1]
        assert len(list(log.read(1))) == 1
        assert list(log.read(2)) == list(log.read(3)) == []

    def test_one_episode_is_a_batch_of_one(self, run):
        log = run.episodes()
        log.append(0, {"obs": np.ones((4, 2), np.float32), "length": 4})
        (record,) = log.read(0)
        assert_same(
            record, {"obs": np.ones((1, 4, 2), np.float32), "length": np.array([4], np.int32)}
        )

    @pytest.mark.parametrize(
        "episodes",
        [
            {"obs": np.zeros((2, 3))},
            {"obs": np.zeros((2, 3)), "length": np.zeros(3)},
            {"obs": np.zeros((2, 3)), "length": np.zeros((2, 1))},
            {"obs": np.zeros(()), "length": np.zeros(2)},
        ],
    )
    def test_arrays_that_are_not_a_batch_are_refused(self, run, episodes):
        with pytest.raises(ValueError, match="leading axis"):
            run.episodes().append_batch(0, episodes)

    def test_damage_before_the_position_is_found_wherever_it_is(self, run):
        log = run.episodes()
        for value in range(3):
            log.append_batch(0, episodes_of(value, count=1))
        (position,) = log.sync()
        log.append_batch(0, episodes_of(9))
        path = run.path / "episodes" / "seed0.bin"
        whole, size = path.read_bytes(), position // 3
        for offset in range(0, position, 5):
            flip_bit(path, offset)
            with pytest.raises(UserError, match=r"seed0\.bin is damaged at byte") as caught:
                list(log.read(0, position))
            assert f"byte {offset // size * size} " in str(caught.value)
            with pytest.raises(UserError, match="damaged"):
                list(log.read(0))
            path.write_bytes(whole)
        flip_bit(path, position + 30)
        assert len(list(log.read(0, position))) == 3

    def test_a_log_shorter_than_the_checkpoint_says_is_an_error(self, run):
        log = run.episodes()
        log.append_batch(0, episodes_of(1))
        (position,) = log.sync()
        os.truncate(run.path / "episodes" / "seed0.bin", position - 1)
        with pytest.raises(UserError, match=f"byte {position - 1} .*{position}"):
            list(log.read(0, position))
        with pytest.raises(UserError, match=f"byte {position - 1} .*{position}"):
            log.truncate([position])
        with pytest.raises(UserError, match=r"seed1\.bin"):
            log.truncate([0, 10])

    def test_a_position_inside_a_record_is_an_error(self, run):
        log = run.episodes()
        log.append_batch(0, episodes_of(1))
        (position,) = log.sync()
        for inside in (1, position - 1):
            with pytest.raises(UserError, match="cut short"):
                list(log.read(0, inside))

    def test_a_record_that_does_not_fit_is_cut_off_again(self, run, monkeypatch):
        log = run.episodes()
        log.append_batch(0, episodes_of(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full_disk)
            with pytest.raises(UserError, match=r"seed0\.bin: No space left"):
                log.append_batch(0, episodes_of(2))
        log.append_batch(0, episodes_of(3))
        assert [int(r["obs"][0, 0, 0]) for r in log.read(0)] == [1, 3]


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
        log.append(seed, {"obs": np.full((50, 9), step, np.float32), "length": 50})
    run.report({"step": step, "updates": step, "seconds": 0.0, "success": [1.0, 0.0]})
    arrays = {"w": np.full(200_000, step, np.float32), "key": np.array([step, 1], np.uint32)}
    run.save(step, arrays, {"positions": log.sync()})
    print(step, flush=True)
"""


def test_kill_at_random_moments(run):
    """After each kill -9 the newest checkpoint is good, and log and rows agree with it."""
    reached = 0
    for _ in range(5):
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
        step, arrays, meta = restored(Run.open(run.path))
        assert step in (announced, announced + 1)
        assert step > reached
        reached = step
        assert np.all(arrays["w"] == step)
        assert arrays["key"].tolist() == [step, 1]
        again = Run.open(run.path)
        for seed in range(2):
            records = list(again.episodes().read(seed, meta["positions"][seed]))
            assert [int(r["obs"][0, 0, 0]) for r in records] == list(range(1, step + 1))
            assert len(list(again.episodes().read(seed))) in (step, step + 1)
        assert [row["step"] for row in again.rows()][:step] == list(range(1, step + 1))


def test_no_jax_and_no_tensorboard_are_imported():
    """Worker processes and `uvd list` read runs; both imports are slow."""
    code = "import sys, uvd.runs; print({'jax', 'tensorboard'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
