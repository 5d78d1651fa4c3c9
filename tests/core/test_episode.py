"""Episodes stacked for the device, and as records for the log: what happened, without padding."""

import numpy as np
import pytest

from uvd.core.episode import Episode, from_records, stack, to_records

HORIZON = 6
EXTRA_ROW = ("obs", "achieved")  # of which an episode has one more than it has steps


def make_episode(length: int, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return Episode(
        obs=draw(length + 1, 3),
        action=draw(length, 2),
        achieved=draw(length + 1, 1),
        goal=draw(1),
        length=np.int32(length),
        terminated=np.bool_(seed % 2),
        success=rng.random(length) < 0.5,
        reward=draw(length),
    )


SEEDS = [[make_episode(3, 0), make_episode(5, 1)], [make_episode(n, n) for n in (1, 4, 2)]]


@pytest.fixture(scope="module")
def stacked() -> Episode:
    return stack(SEEDS, HORIZON)


def test_stacking_pads_with_zeros_to_the_horizon(stacked):
    assert stacked.obs.shape == (2, 3, HORIZON + 1, 3)
    assert stacked.action.shape == (2, 3, HORIZON, 2)
    assert stacked.achieved.shape == (2, 3, HORIZON + 1, 1)
    assert stacked.goal.shape == (2, 3, 1)
    assert stacked.success.shape == stacked.reward.shape == (2, 3, HORIZON)
    assert stacked.length.tolist() == [[3, 5, 0], [1, 4, 2]]
    for seed, episodes in enumerate(SEEDS):
        for place, episode in enumerate(episodes):
            for name, x in episode._asdict().items():
                row = getattr(stacked, name)[seed, place]
                assert row.dtype == np.asarray(x).dtype
                if name in ("goal", "length", "terminated"):
                    np.testing.assert_array_equal(row, x)
                else:
                    np.testing.assert_array_equal(row[: len(x)], x)
                    assert not row[len(x) :].any()
    assert not any(np.any(x[0, 2]) for x in stacked), "the first seed has no third episode"


def test_records_hold_each_seeds_episodes_without_the_common_padding(stacked):
    records = to_records(stacked)
    assert [r["length"].tolist() for r in records] == [[3, 5], [1, 4, 2]]
    for record, episodes in zip(records, SEEDS, strict=True):
        longest = max(len(e.action) for e in episodes)
        for name, x in record.items():
            assert len(x) == len(episodes)
            if name not in ("goal", "length", "terminated"):
                assert x.shape[1] == longest + (name in EXTRA_ROW)
            for row, episode in zip(x, episodes, strict=True):
                value = np.asarray(getattr(episode, name))
                np.testing.assert_array_equal(row[: len(value)] if value.ndim else row, value)


def test_records_become_the_same_stack_again(stacked):
    again = from_records(to_records(stacked), HORIZON)
    for name, x in stacked._asdict().items():
        y = getattr(again, name)
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        np.testing.assert_array_equal(x, y, err_msg=name)


def test_a_seed_without_episodes_has_an_empty_record(stacked):
    empty = stacked._replace(length=np.where([[True], [False]], 0, stacked.length))
    first, second = to_records(empty)
    assert len(first["length"]) == 0
    assert first["obs"].shape == (0, 1, 3)
    assert second["length"].tolist() == [1, 4, 2]
