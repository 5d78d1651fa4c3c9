"""Demonstrations in files: what is read, and how bad files are refused."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest

from randomdemos import CHEETAH, made
from uvd.core.errors import UserError
from uvd.demos import files
from uvd.demos.files import load_demos
from uvd.demos.memory import Demos, Trajectory
from uvd.demos.write import write_gail, write_minari, write_npz
from uvd.tasks.env import make_env
from uvd.tasks.find import find_task


def gail_file(path: Path, trajectories: list[Trajectory], **changed: Any) -> Path:
    """A file in GAIL's layout, padded with NaN; `changed` replaces datasets (None: not there)."""
    longest = max(t.steps for t in trajectories)

    def padded(name: str) -> np.ndarray:
        rows = [getattr(t, name)[: t.steps] for t in trajectories]
        widths = [[(0, longest - len(x))] + [(0, 0)] * (x.ndim - 1) for x in rows]
        return np.stack([np.pad(x, w, constant_values=np.nan) for x, w in zip(rows, widths)])

    arrays = {
        "obs_B_T_Do": padded("obs"),
        "a_B_T_Da": padded("action"),
        "r_B_T": padded("reward"),
        "len_B": np.array([t.steps for t in trajectories], np.int32),
    }
    with h5py.File(path, "w") as file:
        for name, x in (arrays | changed).items():
            if x is not None:
                file[name] = x
    return path


def refusal(source: Any, *parts: str) -> None:
    """The source is refused in one line that has all of these parts."""
    with pytest.raises(UserError) as caught:
        load_demos(source)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def same(read: Demos, written: list[Trajectory], rows: Callable[[Trajectory], int]) -> None:
    for one, two in zip(read.trajectories, written, strict=True):
        np.testing.assert_array_equal(one.obs, two.obs[: rows(two)])
        for x, y in [(one.action, two.action), (one.reward, two.reward)]:
            assert (x is None) == (y is None)
            if x is not None:
                assert x.dtype == np.float32
                np.testing.assert_array_equal(x, y)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships two tiny files."""
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    for name in ("cheetah-expert", "humanoid-expert"):
        write_gail(made(seed=len(name)), tmp_path / "shipped" / f"{name}.h5")
    return tmp_path / "shipped"


def test_what_is_shipped_is_found_by_its_name(shipped, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = load_demos("cheetah-expert")
    assert (read.name, read.kind) == ("cheetah-expert", "shipped")
    same(read, made(seed=len("cheetah-expert")), lambda t: t.steps)
    assert list(files.shipped()) == ["cheetah-expert", "humanoid-expert"]
    refusal("cheetah-exprt", "no such file or folder", "nearest: cheetah-expert")
    refusal("nothing-like-it", "cheetah-expert", "humanoid-expert")
    write_minari(made(lengths=(3,)), "cheetah-expert-v0")  # the user's own comes first
    assert load_demos("cheetah-expert").kind == "minari"


def test_a_wheel_would_contain_what_is_shipped() -> None:
    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    name = (files.SHIPPED / "any.h5").relative_to(root / "src" / "uvd")
    assert any(name.match(pattern) for pattern in patterns["package-data"]["uvd"])
    assert {path.suffix for path in files.SHIPPED.iterdir()} == {".h5", ".md"}
    for source in files.shipped():  # and all of them can be read
        assert load_demos(source).returns() is not None


def test_gail_has_t_observations_without_the_padding(tmp_path: Path) -> None:
    written = made()
    read = load_demos(gail_file(tmp_path / "x.h5", written))
    same(read, written, lambda t: t.steps)
    assert (read.kind, read.obs_dim, read.action_dim) == ("gail", 16, 6)
    assert [t.steps for t in read.trajectories] == [7, 4]
    returns = read.returns()
    assert returns is not None
    np.testing.assert_allclose(returns, [t.reward.sum() for t in written], rtol=1e-5)
    read = load_demos(gail_file(tmp_path / "y.h5", written, a_B_T_Da=None, r_B_T=None))
    assert read.action_dim is None
    assert read.returns() is None
    assert [t.steps for t in read.trajectories] == [7, 4]


def test_minari_has_one_more_observation_by_id_and_by_folder(minari_root: Path) -> None:
    written = made()
    folder = write_minari(written, "cheetah/expert-v0", CHEETAH, algorithm_name="none")
    for source in ("cheetah/expert-v0", "cheetah/expert", folder, folder / "data"):
        read = load_demos(source)
        same(read, written, lambda t: t.steps + 1)
        assert read.kind == "minari"


@pytest.mark.parametrize("extra", [0, 1])
def test_npz_has_either(tmp_path: Path, extra: int) -> None:
    written = made(extra=extra)
    same(load_demos(write_npz(written, tmp_path / "a")), written, lambda t: t.steps + extra)
    alone = [Trajectory(t.obs) for t in written]
    read = load_demos(write_npz(alone, tmp_path / "b"))
    same(read, alone, lambda t: len(t.obs))
    assert [t.steps for t in read.trajectories] == [7 + extra, 4 + extra]


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # of metadata that is not given
def test_recorded_observations_of_parts_are_flattened_as_in_play() -> None:
    flat = make_env(find_task("envs:Mixed-v0"))
    recorder = minari.DataCollector(gym.make("envs:Mixed-v0"))
    expected, actions = [], np.linspace(-1, 1, 10, dtype=np.float32)[:, None]
    for seed in (0, 1):
        recorder.reset(seed=seed)
        rows = [flat.reset(seed=seed)[0]]
        for action in actions:
            recorder.step(action)
            rows.append(flat.step(action)[0])
        expected.append(rows)
    recorder.create_dataset("mixed-v0")
    read = load_demos("mixed-v0")
    assert read.obs_dim == 5
    for t, rows in zip(read.trajectories, expected, strict=True):
        np.testing.assert_array_equal(t.obs, np.float32(rows))
        np.testing.assert_array_equal(t.action, actions)


def at(x: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    x = x.copy()
    x[place] = value
    return x


OBS, ACT, REW = np.zeros((2, 7, 16)), np.zeros((2, 7, 6)), np.zeros((2, 7))


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"obs_B_T_Do": None}, ["dataset obs_B_T_Do is missing", "a_B_T_Da, len_B, r_B_T"]),
        ({"len_B": None}, ["dataset len_B is missing"]),
        ({"len_B": np.array([7, 0])}, ["len_B[1] is 0, expected 1 to 7"]),
        ({"len_B": np.array([8, 4])}, ["len_B[0] is 8, expected 1 to 7"]),
        ({"len_B": np.array([7.0, 4.0])}, ["len_B is float64", "integers"]),
        ({"len_B": np.array([], int)}, ["len_B is empty"]),
        ({"obs_B_T_Do": OBS[:, :0], "a_B_T_Da": None, "r_B_T": None}, ["obs_B_T_Do has no steps"]),
        ({"len_B": "seven"}, ["len_B is |S5 of shape []", "integers"]),
        ({"obs_B_T_Do": h5py.Empty("f")}, ["obs_B_T_Do is object of shape []"]),
        ({"obs_B_T_Do": OBS[:1]}, ["obs_B_T_Do is float64 of shape [1, 7, 16]", "[2, T, D]"]),
        ({"obs_B_T_Do": OBS[0]}, ["obs_B_T_Do is float64 of shape [7, 16]"]),
        ({"a_B_T_Da": ACT[:, :5]}, ["a_B_T_Da", "expected shape [2, 7, D]"]),
        ({"r_B_T": REW[..., None]}, ["r_B_T", "expected shape [2, 7]"]),
        ({"obs_B_T_Do": at(OBS, (1, 2, 5), np.nan)}, ["obs_B_T_Do[1] is nan at step 2, entry 5"]),
        ({"a_B_T_Da": at(ACT, (0, 6, 1), np.inf)}, ["a_B_T_Da[0] is inf at step 6, entry 1"]),
        ({"r_B_T": at(REW, (0, 3), -np.inf)}, ["r_B_T[0] is -inf at step 3, expected finite"]),
        (
            {"obs_B_T_Do": at(OBS, (0, 0, 0), 1e300)},
            ["obs_B_T_Do[0] is 1e+300 at step 0", "single"],
        ),
        ({"obs_B_T_Do": OBS.astype(str).astype("S8")}, ["obs_B_T_Do[0]", "expected numbers"]),
    ],
)
def test_bad_gail_files(tmp_path: Path, changed: dict[str, Any], parts: list[str]) -> None:
    path = gail_file(tmp_path / "bad.h5", made(), **changed)
    refusal(path, str(path), *parts)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_truncated_hdf5(tmp_path: Path, share: float) -> None:
    whole = gail_file(tmp_path / "x.h5", made((50, 50))).read_bytes()
    path = tmp_path / "cut.h5"
    path.write_bytes(whole[: int(share * len(whole))])
    refusal(path, str(path), "damaged")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not really"])
def test_not_hdf5(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(content)
    refusal(path, f"{path} is not an HDF5 file")


def test_a_group_is_no_dataset(tmp_path: Path) -> None:
    path = gail_file(tmp_path / "x.h5", made(), obs_B_T_Do=None)
    with h5py.File(path, "a") as file:
        file.create_group("obs_B_T_Do")
    refusal(path, "dataset obs_B_T_Do is missing; the file has a_B_T_Da, len_B, r_B_T")


def test_unknown_sources(tmp_path: Path, minari_root: Path) -> None:
    refusal(tmp_path / ("x" * 300), "no such file or folder")
    refusal("cheetah/exprt-v0", "no such file or folder", "and not shipped (halfcheetah-expert")
    assert not minari_root.exists(), "a refusal must make nothing"
    write_minari(made(), "cheetah/expert-v0")
    write_minari(made(), "walker-v1")
    refusal("cheetah/exprt-v0", f"of that id in {minari_root},", "nearest: cheetah/expert-v0")


def test_bad_minari_datasets() -> None:
    data = write_minari(made(), "x-v0") / "data"
    whole = (data / "main_data.hdf5").read_bytes()
    (data / "main_data.hdf5").write_bytes(whole[: len(whole) // 2])
    refusal("x-v0", str(data), "cannot be read as a Minari dataset")
    (data / "main_data.hdf5").write_bytes(whole)
    with h5py.File(data / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][2, 3] = np.nan
    refusal("x-v0", f"{data}: episode_1/observations is nan at step 2, entry 3")
    with h5py.File(data / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][2, 3] = 0
        file["episode_1/observations"].resize((4, 16))
    refusal("x-v0", "episode_1/observations has 4 rows, expected 5")
    (data / "metadata.json").write_text("{")
    refusal("x-v0", "cannot be read as a Minari dataset")


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"action": np.zeros((4, 6))}, "obs is missing; the file has action"),
        ({"obs": np.zeros((0, 16))}, "obs has zero length"),
        ({"obs": np.zeros((1, 16)), "action": np.zeros((0, 6))}, "action has zero length"),
        ({"obs": np.zeros(16)}, "obs is float64 of shape [16], expected numbers of shape [T, D]"),
        ({"obs": np.zeros((4, 0))}, "obs is float64 of shape [4, 0]"),
        ({"obs": np.full((4, 16), np.nan)}, "obs is nan at step 0, entry 0"),
        ({"obs": np.zeros((6, 16)), "action": np.zeros((4, 6))}, "6 rows, expected 4 or 5"),
        (
            {"obs": np.zeros((4, 16)), "action": np.zeros((4, 6)), "reward": np.zeros(3)},
            "reward has 3 rows, expected 4",
        ),
        ({"obs": np.zeros((4, 15))}, "obs is of size 15, but of size 16 in the first"),
        ({"obs": np.zeros((4, 16))}, "action is missing, but of size 6 in the first"),
        (
            {"obs": np.zeros((4, 16)), "actions": np.zeros((4, 6))},
            "no field action; rename actions",
        ),
        ({"obs": np.array([[{}]], object)}, "cannot be read as .npz"),
        ({"obs": np.zeros((4, 16), complex)}, "complex128"),
    ],
)
def test_bad_npz_files(tmp_path: Path, arrays: dict[str, Any], part: str) -> None:
    folder = write_npz(made(), tmp_path / "a")
    np.savez(folder / "00002.npz", **arrays)
    refusal(folder, str(folder / "00002.npz"), part)


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    path = gail_file(tmp_path / "x.h5", made())
    monkeypatch.setattr(h5py, "is_hdf5", denied)
    refusal(path, f"cannot read {path}: Permission denied")
    monkeypatch.setattr("os.listdir", denied)
    refusal(tmp_path, f"cannot read {tmp_path}: Permission denied")


def test_folders_without_demonstrations(tmp_path: Path) -> None:
    refusal(tmp_path, str(tmp_path), "has no .npz files")
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 not really")
    refusal(tmp_path, str(tmp_path / "x.npz"), "cannot be read as .npz")
