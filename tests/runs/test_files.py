"""Files are appended or replaced whole, and arrays come back bit for bit or not at all."""

import os

import numpy as np
import pytest

from uvd.core.errors import UserError
from uvd.runs.files import append_to_file, read_arrays, replace_file, write_arrays


def test_a_piece_that_does_not_fit_is_cut_off_again(tmp_path, monkeypatch, full_disk):
    path = tmp_path / "folder" / "log"
    append_to_file(path, b"one")
    write = os.write
    sizes = iter([2])

    def fill(fd, data):
        size = next(sizes, None)
        if size is None:
            with full_disk("write"):
                return os.write(fd, data)
        return write(fd, data[:size])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        with pytest.raises(UserError, match=r"cannot write .*log: No space left"):
            append_to_file(path, b"two")
    append_to_file(path, b"three")
    assert path.read_bytes() == b"onethree"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, full_disk, call):
    path = tmp_path / "file"
    replace_file(path, b"old")
    with full_disk(call), pytest.raises(UserError, match=r"cannot write .*file: No space left"):
        replace_file(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_arrays_and_meta_come_back_bit_for_bit(tmp_path):
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
    write_arrays(tmp_path / "x", arrays, meta)
    arrays_back, meta_back = read_arrays(tmp_path / "x")
    assert meta_back == meta
    assert arrays_back.keys() == arrays.keys()
    for name, x in arrays_back.items():
        assert (x.dtype, x.shape) == (arrays[name].dtype, arrays[name].shape), name
        assert x.tobytes() == arrays[name].tobytes(), name


def test_damage_anywhere_is_found(tmp_path):
    path = tmp_path / "x"
    write_arrays(path, {"w": np.ones((3, 4), np.float32), "n": np.array(2)}, {"positions": [100]})
    whole = path.read_bytes()
    flipped = [bytearray(whole) for _ in whole]
    for offset, data in enumerate(flipped):
        data[offset] ^= 1
    for data in (*flipped, b"", whole[:1], whole[:60], whole[:-1]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r".") as caught:
            read_arrays(path)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ValueError, match="No such file"):
        read_arrays(path)
