"""What is written is read again, is Minari's own, and is there whole or not at all."""

from pathlib import Path

import minari
import numpy as np
import pytest

from randomdemos import CHEETAH, made
from uvd.core.errors import UserError
from uvd.demos.files import load_demos
from uvd.demos.memory import Trajectory
from uvd.demos.write import write_gail, write_minari, write_npz


def test_gails_layout_pads_and_has_no_last_observation(tmp_path: Path) -> None:
    written = [Trajectory(t.obs, t.action) for t in made((4, 7))]
    read = load_demos(write_gail(written, tmp_path / "d.h5"))
    for a, b in zip(written, read.trajectories, strict=True):
        np.testing.assert_array_equal(a.obs[:-1], b.obs)
        np.testing.assert_array_equal(a.action, b.action)
        assert b.reward is None


def test_a_minari_dataset_is_minaris_own() -> None:
    with pytest.raises(UserError, match="terminated has 1 entries for 2 trajectories"):
        write_minari(made(), "expert-v3", CHEETAH, terminated=[True])
    write_minari(made(), "expert-v3", CHEETAH, terminated=[True, False], author={"me"})
    dataset = minari.load_dataset("expert-v3")
    assert list(minari.list_local_datasets()) == ["expert-v3"]
    assert (dataset.total_episodes, dataset.total_steps) == (2, 11)
    one, two = dataset.iterate_episodes()
    assert one.terminations.tolist() == [False] * 6 + [True]
    assert two.truncations.tolist() == [False] * 3 + [True]
    assert not one.truncations.any()
    assert not two.terminations.any()
    env = dataset.recover_environment()
    assert env.observation_space.shape == (16,)
    assert env.action_space == dataset.action_space


@pytest.mark.parametrize(
    ("trajectories", "message"),
    [
        ([], "no trajectories"),
        ([Trajectory(np.zeros((3, 16)))], "has no actions or no rewards"),
        (made(extra=0), "obs of trajectory 0 has 7 rows, expected 8"),
        ([*made(), *made(obs=15)], "obs of trajectory 2 is of size 15, but of size 16"),
        (made(obs=15), "obs has 15 numbers"),
        ([Trajectory(np.full((2, 16), np.nan), np.ones((1, 6)), np.ones(1))], "nan at step 0"),
    ],
)
def test_what_minari_cannot_hold_is_not_begun(minari_root: Path, trajectories, message) -> None:
    with pytest.raises(UserError, match=message):
        write_minari(trajectories, "x-v0", CHEETAH)
    assert not minari_root.exists()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("HalfCheetahNonExpl-v0", "nearest: HalfCheetahNonExp"),
        ("CartPole-v1", "CartPole-v1 cannot be trained on: its actions are"),
        ("PointLoop-v0", "PointLoop-v0 is not a Gymnasium environment without goals"),
        ("FetchReach-v4", "FetchReach-v4 is not a Gymnasium environment without goals"),
    ],
)
def test_environments_that_are_no_source_of_demonstrations(env_id: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_minari(made(), "x-v0", env_id)


def test_nothing_is_left_half_done(tmp_path: Path, minari_root: Path) -> None:
    with pytest.raises(UserError, match="must read NAME-v0"):
        write_minari(made(), "expert")
    write_minari(made(), "x-v0")
    folder, file = write_npz(made(), tmp_path / "a"), write_gail(made(), tmp_path / "a.h5")
    for again in (
        lambda: write_minari(made(seed=1), "x-v0"),
        lambda: write_npz(made(seed=1), folder),
        lambda: write_gail(made(seed=1), file),
    ):
        with pytest.raises(UserError, match="exists: remove it"):
            again()
    with pytest.raises(AssertionError):  # Minari's own, when it has begun: authors are a set
        write_minari(made(), "y-v0", author="me")
    assert [p.name for p in minari_root.iterdir()] == ["x-v0"]
    for write in (write_gail, write_npz):
        for path in (file / "in.h5", tmp_path / ("x" * 300)):
            with pytest.raises(UserError, match=f"cannot write {path}"):
                write(made(), path)
    assert {p.name for p in tmp_path.iterdir()} == {"minari", "a", "a.h5"}
    np.testing.assert_array_equal(load_demos("x-v0").trajectories[1].obs, made()[1].obs)
