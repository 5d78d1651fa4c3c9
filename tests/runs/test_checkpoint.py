"""The newest good checkpoint is restored, whatever happened to the others."""

import os
from pathlib import Path

import numpy as np
import pytest

from uvd.core.errors import UserError
from uvd.runs import Run


def arrays_of(value: int) -> dict[str, np.ndarray]:
    return {"w": np.full((3, 4), value, np.float32), "count": np.array(value, np.int32)}


def file(run: Run, step: int) -> Path:
    return run.path / "checkpoints" / f"{step}.safetensors"


def steps(run: Run) -> set[int]:
    """The checkpoints that are there; nothing else may be."""
    return {int(path.stem) for path in (run.path / "checkpoints").iterdir()}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def restored(run: Run, value: int) -> tuple[int, dict]:
    """Step and meta of a checkpoint with these arrays, restored without a warning."""
    checkpoint = run.restore(pytest.fail)
    assert checkpoint is not None
    for name, x in arrays_of(value).items():
        np.testing.assert_array_equal(checkpoint.arrays[name], x)
    return checkpoint.step, checkpoint.meta


def test_the_newest_by_number_is_used_and_the_last_two_stay(run):
    assert run.restore(pytest.fail) is None
    for step in (8, 9, 10, 11):
        run.save(step, arrays_of(step), {"positions": [np.int64(step)]})
    assert restored(Run.open(run.path), 11) == (11, {"positions": [11]})
    assert steps(run) == {10, 11}


@pytest.mark.parametrize("kind", ["flipped", "cut", "of another step", "a folder"])
def test_a_damaged_one_falls_back_on_the_one_before(run, kind):
    for step in (1, 2):
        run.save(step, arrays_of(step), {})
    newest = file(run, 2)
    if kind == "flipped":
        damage(newest)
    elif kind == "cut":
        os.truncate(newest, 60)
    elif kind == "of another step":
        newest = newest.rename(file(run, 5))
    else:
        newest.unlink()
        newest.mkdir()
    lines: list[str] = []
    checkpoint = Run.open(run.path).restore(lines.append)
    assert checkpoint is not None
    assert checkpoint.step == 1
    (line,) = lines
    assert f"{newest} is damaged" in line
    assert "step 1 is used" in line
    assert "\n" not in line
    with pytest.warns(UserWarning, match="is damaged"):
        run.restore()


def test_all_damaged_is_an_error_that_says_what_to_do(run):
    for step in (1, 2):
        run.save(step, arrays_of(step), {})
        damage(file(run, step))
    with pytest.raises(UserError, match=r"checkpoints/2.* is damaged .*--overwrite") as caught:
        run.restore(pytest.fail)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", [2, 3])
def test_a_damaged_one_is_replaced_or_removed_by_the_resumed_run(run, step):
    for earlier in (1, 2):
        run.save(earlier, arrays_of(earlier), {})
    damage(file(run, 2))
    resumed = Run.open(run.path)
    resumed.save(step, arrays_of(7), {"again": True})
    assert restored(resumed, 7) == (step, {"again": True})
    assert steps(run) == {1, step}


def test_what_was_just_saved_is_what_is_restored(run):
    run.save(9, arrays_of(9), {})
    run.save(5, arrays_of(5), {})
    assert restored(run, 5) == (5, {})
    assert steps(run) == {5}


def test_what_a_kill_leaves_is_removed(run):
    run.save(1, arrays_of(1), {})
    (run.path / "checkpoints" / ".tmp-2.safetensors").write_bytes(b"half of it")
    assert restored(run, 1) == (1, {})
    run.save(3, arrays_of(3), {})
    assert steps(run) == {1, 3}


@pytest.mark.parametrize("step", [1, 2])
def test_a_full_disk_keeps_the_previous_and_says_so(run, full_disk, step):
    run.save(1, arrays_of(1), {})
    with (
        full_disk("replace"),
        pytest.raises(UserError, match=r"No space left.*step 1 survives") as caught,
    ):
        run.save(step, arrays_of(7), {})
    assert str(file(run, step)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert steps(run) == {1}
    assert restored(run, 1) == (1, {})


def test_a_full_disk_at_the_first_one(run, full_disk):
    with full_disk("fsync"), pytest.raises(UserError, match=r"No space left.*there is none before"):
        run.save(1, arrays_of(1), {})
    assert run.restore(pytest.fail) is None
