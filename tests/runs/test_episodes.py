"""The episode log comes back record by record, up to the last complete one."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from uvd.core.errors import UserError
from uvd.runs.episodes import EpisodeLog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "episodes"


def episodes_of(value: int, count: int = 2) -> dict[str, np.ndarray]:
    obs = np.full((count, 5, 3), value, np.float32)
    return {"obs": obs, "length": np.full(count, 5, np.int32)}


def values(log: EpisodeLog, seed: int) -> list[int]:
    return [int(record["obs"][0, 0, 0]) for record in log.read(seed)]


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
episode_arrays = st.dictionaries(
    names.filter(lambda name: name not in ("__metadata__", "length")),
    hnp.arrays(
        st.sampled_from([np.float32, np.uint8, np.int32, np.bool_]),
        st.tuples(st.just(2), st.integers(0, 6)) | st.just((2,)),
    ),
    max_size=4,
)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), episode_arrays), max_size=6), st.data())
def test_roundtrip_of_any_episodes(tmp_path_factory, batches, data):
    """Also after a cut at any byte past a synced position, as a kill would leave it."""
    folder = tmp_path_factory.mktemp("log")
    log = EpisodeLog(folder)
    written: list[list[dict]] = [[], [], []]

    def append(seed: int, batch: dict) -> None:
        written[seed].append(batch | {"length": np.array([1, 2], np.int32)})
        log.append_batch(seed, written[seed][-1])

    for seed in range(3):
        append(seed, {})
    synced = data.draw(st.integers(0, len(batches)))
    for seed, batch in batches[:synced]:
        append(seed, batch)
    positions = log.sync()
    before = [len(records) for records in written]
    for seed, batch in batches[synced:]:
        append(seed, batch)
    for seed, (start, end) in enumerate(zip(positions, log.sync())):
        cut = data.draw(st.integers(start, end))
        os.truncate(folder / f"seed{seed}.bin", cut)
        records = list(EpisodeLog(folder).read(seed))
        assert before[seed] <= len(records) <= len(written[seed])
        assert (len(records) == len(written[seed])) == (cut == end)
        for record, expected in zip(records, written[seed]):
            assert record.keys() == expected.keys()
            for name, x in record.items():
                assert (x.dtype, x.shape) == (expected[name].dtype, expected[name].shape)
                assert x.tobytes() == expected[name].tobytes()
    log.truncate(positions)
    assert log.sync() == positions
    assert [len(list(log.read(seed))) for seed in range(3)] == before


def test_appending_goes_on_after_a_cut(folder):
    log = EpisodeLog(folder)
    assert log.sync() == []
    log.append_batch(0, episodes_of(1))
    positions = log.sync()
    log.append_batch(0, episodes_of(2))
    log.append_batch(1, episodes_of(2))
    log.truncate(positions)
    log.append_batch(0, episodes_of(3))
    assert [values(log, seed) for seed in range(3)] == [[1, 3], [], []]
    log.truncate([])
    assert values(log, 0) == []


def test_damage_is_found_wherever_it_is(folder):
    log = EpisodeLog(folder)
    for value in range(3):
        log.append_batch(0, episodes_of(value, count=1))
    path = folder / "seed0.bin"
    whole = path.read_bytes()
    for offset in range(0, len(whole), 5):
        data = bytearray(whole)
        data[offset] ^= 1
        path.write_bytes(data)
        size = len(whole) // 3
        message = rf"seed0\.bin is damaged at byte {offset // size * size} "
        with pytest.raises(UserError, match=message):
            list(log.read(0))


def test_a_log_shorter_than_the_checkpoint_says_is_an_error(folder):
    log = EpisodeLog(folder)
    log.append_batch(0, episodes_of(1))
    (position,) = log.sync()
    os.truncate(folder / "seed0.bin", position - 1)
    with pytest.raises(UserError, match=f"byte {position - 1} .*{position}"):
        log.truncate([position])
    with pytest.raises(UserError, match=r"seed1\.bin"):
        log.truncate([0, 10])


def test_a_record_that_does_not_fit_is_cut_off_again(folder, full_disk):
    log = EpisodeLog(folder)
    log.append_batch(0, episodes_of(1))
    with full_disk("write"), pytest.raises(UserError, match=r"seed0\.bin: No space left"):
        log.append_batch(0, episodes_of(2))
    log.append_batch(0, episodes_of(3))
    assert values(log, 0) == [1, 3]
