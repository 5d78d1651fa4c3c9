"""Demonstrations: what is read, what is chosen, and how bad files are refused."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvd import demos as d
from uvd import formats as f
from uvd.cli import main
from uvd.demos import Demos, Trajectory, select
from uvd.errors import UserError
from uvd.formats import load_demos
from uvd.loop import make_config

CHEETAH = "HalfCheetahNonExploitable-v0"


@pytest.fixture(autouse=True)
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


def made(lengths=(7, 4), obs=16, action=6, more=1, seed=0) -> list[Trajectory]:
    """Trajectories of random numbers."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return [Trajectory(draw(n + more, obs), draw(n, action), draw(n)) for n in lengths]


def write_gail(path: Path, trajectories: list[Trajectory], **changed: Any) -> Path:
    """A file in GAIL's layout; `changed` replaces datasets, None leaves one out."""
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


def refusal(source: Any, *names: str, env_id: str | None = None) -> str:
    """The one line with which a source is refused; it names everything in `names`."""
    with pytest.raises(UserError) as caught:
        load_demos(source, env_id)
    text = str(caught.value)
    assert "\n" not in text
    for name in names:
        assert name in text
    return text


def same(read: Demos, written: list[Trajectory], rows: Callable[[Trajectory], int]) -> None:
    assert len(read.trajectories) == len(written)
    for one, two in zip(read.trajectories, written):
        np.testing.assert_array_equal(one.obs, two.obs[: rows(two)])
        for x, y in [(one.action, two.action), (one.reward, two.reward)]:
            assert (x is None) == (y is None)
            if x is not None:
                assert x.dtype == np.float32
                np.testing.assert_array_equal(x, y)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships two tiny files."""
    monkeypatch.setattr(f, "SHIPPED", tmp_path / "data")
    for name in ("cheetah-expert", "humanoid-expert"):
        f.write_gail(made(seed=len(name)), tmp_path / "data" / f"{name}.h5")
    return tmp_path / "data"


def test_what_is_shipped_is_found_by_its_name(shipped, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = load_demos("cheetah-expert", CHEETAH)
    assert (read.name, read.kind) == ("cheetah-expert", "shipped")
    same(read, made(seed=len("cheetah-expert")), lambda t: t.steps)
    assert main(["demos", "info", "humanoid-expert"]) == 0
    assert "humanoid-expert (shipped)" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert "demonstrations: cheetah-expert, humanoid-expert" in capsys.readouterr().out
    refusal("cheetah-exprt", "no such file or folder", "nearest: cheetah-expert")
    refusal("nothing-like-it", "cheetah-expert", "humanoid-expert")
    f.write_minari(made(lengths=(3,)), "cheetah-expert-v0")  # the user's own comes first
    assert load_demos("cheetah-expert").kind == "minari"


def test_a_run_keeps_the_name_of_what_is_shipped(shipped) -> None:
    asked = {"demos": "cheetah-expert", "every": 2}
    config = make_config("vdi", CHEETAH, "cheetah", {}, {}, {}, asked)
    assert config["demos"]["demos"] == "cheetah-expert"  # a path would hold on one machine only
    assert config["demos"]["sha256"] == d.digest(load_demos(shipped / "cheetah-expert.h5"))


def test_a_wheel_would_contain_what_is_shipped() -> None:
    root = Path(__file__).parents[1]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = root / "src" / "uvd"
    name = (f.SHIPPED / "any.h5").relative_to(Path(f.__file__).parent)
    assert any(name.match(pattern) for pattern in patterns["package-data"]["uvd"])
    for path in (package / "data").iterdir():
        assert path.suffix in (".h5", ".md")
    for name in f.shipped():  # and all of them can be read
        assert load_demos(name).returns() is not None


def test_gail_has_t_observations_without_the_padding(tmp_path: Path) -> None:
    written = made()
    read = load_demos(write_gail(tmp_path / "x.h5", written), CHEETAH)
    same(read, written, lambda t: t.steps)
    assert (read.kind, read.obs_dim, read.action_dim) == ("gail", 16, 6)
    assert [t.steps for t in read.trajectories] == [7, 4]
    returns = read.returns()
    assert returns is not None
    np.testing.assert_allclose(returns, [t.reward.sum() for t in written], rtol=1e-5)  # type: ignore[union-attr]


def test_gail_without_actions_and_rewards(tmp_path: Path) -> None:
    path = write_gail(tmp_path / "x.h5", made(), a_B_T_Da=None, r_B_T=None)
    read = load_demos(path, CHEETAH)
    assert read.action_dim is None
    assert read.returns() is None
    assert [t.steps for t in read.trajectories] == [7, 4]


def test_minari_has_one_more_observation_by_id_and_by_folder(minari_root: Path) -> None:
    written = made()
    folder = f.write_minari(written, "cheetah/expert-v0", CHEETAH, algorithm_name="none")
    for source in ("cheetah/expert-v0", folder, folder / "data"):
        read = load_demos(source, CHEETAH)
        same(read, written, lambda t: t.steps + 1)
        assert read.kind == "minari"


@pytest.mark.parametrize("more", [0, 1])
def test_npz_has_either(tmp_path: Path, more: int) -> None:
    written = made(more=more)
    f.write_npz(written, tmp_path / "a")
    same(load_demos(tmp_path / "a", CHEETAH), written, lambda t: t.steps + more)
    alone = [Trajectory(t.obs) for t in written]
    f.write_npz(alone, tmp_path / "b")
    read = load_demos(tmp_path / "b", CHEETAH)
    same(read, alone, lambda t: len(t.obs))
    assert [t.steps for t in read.trajectories] == [7 + more, 4 + more]


def test_what_was_written_is_minaris_own(minari_root: Path) -> None:
    with pytest.raises(UserError, match="terminated has 1 entries for 2 trajectories"):
        f.write_minari(made(), "expert-v3", CHEETAH, terminated=[True])
    f.write_minari(made(), "expert-v3", CHEETAH, terminated=[True, False], author={"me"})
    dataset = minari.load_dataset("expert-v3")
    assert list(minari.list_local_datasets()) == ["expert-v3"]
    assert (dataset.total_episodes, dataset.total_steps) == (2, 11)
    one, two = dataset.iterate_episodes()
    assert one.terminations.tolist() == [False] * 6 + [True]
    assert two.truncations.tolist() == [False] * 3 + [True]
    assert not one.truncations.any()
    assert not two.terminations.any()
    assert dataset.recover_environment().observation_space.shape == (16,)


@pytest.mark.parametrize("size", [17, 16])
def test_upstreams_cheetah_loses_its_x_velocity(tmp_path: Path, size: int) -> None:
    written = made(obs=size)
    read = load_demos(write_gail(tmp_path / "x.h5", written), CHEETAH)
    kept = [i for i in range(size) if size == 16 or i != 8]
    np.testing.assert_array_equal(read.trajectories[0].obs, written[0].obs[:7, kept])
    assert load_demos(tmp_path / "x.h5").obs_dim == size  # without a task, as it is


@pytest.mark.parametrize("size", [43, 45, 348, 376])
def test_upstreams_humanoids_lose_what_ours_hides(tmp_path: Path, size: int) -> None:
    written = made(obs=size, action=17)
    read = load_demos(write_gail(tmp_path / "x.h5", written), "HumanoidNonExploitable-v0")
    kept = list(range(43)) if size == 43 else [*range(22), *range(24, 45)]
    np.testing.assert_array_equal(read.trajectories[1].obs, written[1].obs[:4, kept])


def test_previous_actions() -> None:
    for more in (0, 1):
        written = made(more=more)
        read = d.with_previous_action(Demos("x", "npz", tuple(written)))
        assert read.obs_dim == 22
        for t, old in zip(read.trajectories, written):
            np.testing.assert_array_equal(t.obs[:, :16], old.obs)
            assert not t.obs[0, 16:].any()
            assert old.action is not None
            np.testing.assert_array_equal(t.obs[1:, 16:], old.action[: len(t.obs) - 1])
            assert t.action is old.action
    with pytest.raises(UserError, match="x has no actions: the previous action"):
        d.with_previous_action(Demos("x", "npz", (Trajectory(written[0].obs),)))


def test_every_method_sees_the_same_pairs() -> None:
    written = made((40, 50), more=1)
    pairs = select(Demos("x", "npz", tuple(written)), every=20)
    assert pairs.step.tolist() == [10, 30, 10, 30]  # from half the stride, as the authors did
    assert pairs.trajectory.tolist() == [0, 0, 1, 1]
    seen = Demos("x", "npz", tuple(Trajectory(t.obs[: t.steps]) for t in written))
    blind = select(seen, every=20)
    np.testing.assert_array_equal(blind.obs, pairs.obs)
    assert blind.action is None


@given(
    lengths=st.lists(st.integers(20, 60), min_size=1, max_size=6),
    every=st.integers(1, 39),
    more=st.integers(0, 1),
    seed=st.none() | st.integers(0, 9),
)
def test_selected_pairs_belong_together(lengths, every, more, seed) -> None:
    written = made(lengths, obs=3, action=2, more=more)
    data = Demos("x", "npz", tuple(written))
    for wanted in range(1, len(lengths) + 1):
        pairs = select(data, wanted, every, seed)
        assert pairs.action is not None
        assert len(set(pairs.trajectory)) == wanted
        for o, a, i, t in zip(pairs.obs, pairs.action, pairs.trajectory, pairs.step):
            np.testing.assert_array_equal(o, written[i].obs[t])
            np.testing.assert_array_equal(a, written[i].action[t])  # type: ignore[index]
            assert (t - every // 2) % every == 0
        for i in set(pairs.trajectory):
            expected = range(every // 2, lengths[i], every)
            assert pairs.step[pairs.trajectory == i].tolist() == list(expected)
        if wanted > 1:  # fewer are among more
            assert set(select(data, wanted - 1, every, seed).trajectory) < set(pairs.trajectory)


def test_which_trajectories() -> None:
    data = Demos("x", "npz", tuple(made((5,) * 8)))
    assert list(dict.fromkeys(select(data, [6, 2]).trajectory)) == [6, 2]
    assert set(select(data, 3).trajectory) == {0, 1, 2}
    drawn = [tuple(select(data, 3, seed=s).trajectory) for s in range(5)]
    assert len(set(drawn)) > 1
    assert drawn[2] == tuple(select(data, 3, seed=2).trajectory)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"trajectories": 3}, "x has 2 trajectories, 3 were asked for"),
        ({"trajectories": 0}, "trajectories = 0 must be at least 1"),
        ({"every": 2.5}, "every = 2.5 must be a whole number"),
        ({"trajectories": []}, "x: no trajectories were asked for"),
        ({"trajectories": [0, 2]}, "x has trajectories 0 to 1, not 2"),
        ({"every": 0}, "every = 0"),
        ({"every": 8}, "x: trajectory 1 has 4 steps, of which every = 8 takes none"),
    ],
)
def test_selections_that_cannot_be(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        select(Demos("x", "npz", tuple(made())), **keywords)
    assert says in str(caught.value)


def at(x: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    x = x.copy()
    x[place] = value
    return x


OBS, ACT, REW = np.zeros((2, 7, 16)), np.zeros((2, 7, 6)), np.zeros((2, 7))


@pytest.mark.parametrize(
    ("changed", "names"),
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
        ({"obs_B_T_Do": OBS[..., :15]}, ["obs_B_T_Do has 15", CHEETAH, "16, or upstream's 17"]),
        ({"a_B_T_Da": ACT[..., :5]}, ["a_B_T_Da has 5 numbers", CHEETAH, "expects 6"]),
        ({"obs_B_T_Do": OBS.astype(str).astype("S8")}, ["obs_B_T_Do[0]", "expected numbers"]),
    ],
)
def test_bad_gail_files(tmp_path: Path, changed: dict[str, Any], names: list[str]) -> None:
    path = write_gail(tmp_path / "bad.h5", made(), **changed)
    refusal(path, str(path), *names, env_id=CHEETAH)


def test_padding_may_be_anything(tmp_path: Path) -> None:
    path = write_gail(tmp_path / "x.h5", made(), r_B_T=at(REW, (1, 5), np.nan))
    assert load_demos(path).trajectories[1].steps == 4


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_truncated_hdf5(tmp_path: Path, share: float) -> None:
    whole = write_gail(tmp_path / "x.h5", made((50, 50))).read_bytes()
    path = tmp_path / "cut.h5"
    path.write_bytes(whole[: int(share * len(whole))])
    refusal(path, str(path), "damaged")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not really"])
def test_not_hdf5(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(content)
    refusal(path, f"{path} is not an HDF5 file")


def test_paths_that_cannot_be(tmp_path: Path, minari_root: Path) -> None:
    file, long = tmp_path / "file", "x" * 300
    file.touch()
    refusal(tmp_path / long, "no such file or folder")
    for write in (f.write_gail, f.write_npz):
        for path in (file / "in.h5", tmp_path / long):
            with pytest.raises(UserError, match=f"cannot write {path}"):
                write(made(), path)
    assert list(tmp_path.iterdir()) == [file]


def test_a_group_is_no_dataset(tmp_path: Path) -> None:
    path = write_gail(tmp_path / "x.h5", made(), obs_B_T_Do=None)
    with h5py.File(path, "a") as file:
        file.create_group("obs_B_T_Do")
    refusal(path, "dataset obs_B_T_Do is missing; the file has a_B_T_Da, len_B, r_B_T")


def test_unknown_minari_ids(tmp_path: Path, minari_root: Path) -> None:
    refusal("cheetah/exprt-v0", "no such file or folder", "and not shipped (halfcheetah-expert")
    assert not minari_root.exists(), "a refusal must make nothing"
    f.write_minari(made(), "cheetah/expert-v0")
    f.write_minari(made(), "walker-v1")
    refusal("cheetah/exprt-v0", f"of that id in {minari_root},", "nearest: cheetah/expert-v0")


def test_bad_minari_datasets(minari_root: Path) -> None:
    data = f.write_minari(made(), "x-v0") / "data"
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
    ("arrays", "names"),
    [
        ({"action": np.zeros((4, 6))}, ["obs is missing", "the file has action"]),
        ({"obs": np.zeros((0, 16))}, ["obs has zero length"]),
        ({"obs": np.zeros((1, 16)), "action": np.zeros((0, 6))}, ["action has zero length"]),
        ({"obs": np.zeros(16)}, ["obs is float64 of shape [16]", "[T, D]"]),
        ({"obs": np.zeros((4, 0))}, ["obs is float64 of shape [4, 0]"]),
        ({"obs": np.full((4, 16), np.nan)}, ["obs is nan at step 0, entry 0"]),
        ({"obs": np.zeros((6, 16)), "action": np.zeros((4, 6))}, ["6 rows, expected 4 or 5"]),
        ({"obs": np.zeros((4, 16)), "action": np.zeros((4, 6)), "reward": np.zeros(3)},
         ["reward has 3 rows, expected 4"]),
        ({"obs": np.zeros((4, 15))}, ["obs is of size 15, but of size 16 in the first"]),
        ({"obs": np.zeros((4, 16))}, ["action is missing, but of size 6 in the first"]),
        ({"obs": np.zeros((4, 16)), "actions": np.zeros((4, 6))},
         ["no field action; rename actions"]),
        ({"obs": np.array([[{}]], object)}, ["cannot be read as .npz"]),
        ({"obs": np.zeros((4, 16), complex)}, ["complex128", "expected numbers"]),
    ],
)  # fmt: skip
def test_bad_npz_files(tmp_path: Path, arrays: dict[str, Any], names: list[str]) -> None:
    folder = f.write_npz(made(), tmp_path / "a")
    np.savez(folder / "00002.npz", **arrays)
    refusal(folder, str(folder / "00002.npz"), *names)


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_gail(tmp_path / "x.h5", made())
    monkeypatch.setattr(h5py, "is_hdf5", denied)
    refusal(path, f"cannot read {path}: Permission denied")
    monkeypatch.setattr("uvd.formats.os.listdir", denied)
    refusal(tmp_path, f"cannot read {tmp_path}: Permission denied")


def test_other_bad_sources(tmp_path: Path) -> None:
    refusal(tmp_path, str(tmp_path), "has no .npz files")
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 not really")
    refusal(tmp_path, str(tmp_path / "x.npz"), "cannot be read as .npz")
    (tmp_path / "x.npz").unlink()
    f.write_npz(made(), tmp_path / "a")
    refusal(tmp_path / "a", "nearest: HalfCheetahNonExp", env_id="HalfCheetahNonExpl-v0")
    refusal(tmp_path / "a", "CartPole-v1: actions are a Discrete", env_id="CartPole-v1")


@pytest.mark.parametrize(
    ("trajectories", "says"),
    [
        ([], "no trajectories"),
        ([Trajectory(np.zeros((3, 16)))], "has no actions or no rewards"),
        (made(more=0), "obs of trajectory 0 has 7 rows, expected 8"),
        ([*made(), *made(obs=15)], "obs of trajectory 2 is of size 15, but of size 16"),
        (made(obs=15), "obs has 15 numbers"),
        ([Trajectory(np.full((2, 16), np.nan), np.ones((1, 6)), np.ones(1))], "nan at step 0"),
    ],
)
def test_what_minari_cannot_hold_is_not_begun(
    minari_root: Path, trajectories: list[Trajectory], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        f.write_minari(trajectories, "x-v0", CHEETAH)
    assert says in str(caught.value)
    assert not minari_root.exists()


def test_writing_leaves_nothing_half_done(tmp_path: Path, minari_root: Path) -> None:
    with pytest.raises(UserError, match="must read NAME-v0"):
        f.write_minari(made(), "expert")
    f.write_minari(made(), "x-v0")
    f.write_npz(made(), tmp_path / "a")
    for again in (
        lambda: f.write_minari(made(seed=1), "x-v0"),
        lambda: f.write_npz(made(seed=1), tmp_path / "a"),
    ):
        with pytest.raises(UserError, match="exists"):
            again()
    with pytest.raises(AssertionError):  # Minari's own, when it has begun: authors are a set
        f.write_minari(made(), "y-v0", author="me")
    assert [p.name for p in minari_root.iterdir()] == ["x-v0"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        f.write_npz(made(), tmp_path / "file" / "a")
    same(load_demos("x-v0"), made(), lambda t: t.steps + 1)


def test_info(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_gail(tmp_path / "x.h5", made(obs=17))
    picture = tmp_path / "plot.png"
    assert main(["demos", "info", str(path), "--task", CHEETAH, "-o", str(picture)]) == 0
    text = capsys.readouterr().out
    actions = np.concatenate([t.action for t in made(obs=17)])
    span = f"6 numbers, {actions.min():.3g} to {actions.max():.3g}"
    for part in ("gail", "11 (each 4 to 7)", "16 numbers", span, "mean"):
        assert part in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    f.write_npz([Trajectory(t.obs[:, :1]) for t in made()], tmp_path / "a")
    assert main(["demos", "info", str(tmp_path / "a"), "-o", str(picture)]) == 0
    assert "no rewards" in capsys.readouterr().out
    for args, says in (
        (["info", str(tmp_path / "no")], "no such file or folder"),
        (["inf"], "nearest: info"),
        (["info", str(path), "--tsk=x"], "--task"),
        (["info", str(path), "--task", "PointLoop-v0"], "PointLoop-v0 expects 4"),
        (["info", str(path), "-o", str(tmp_path / "picture")], "give the picture a suffix"),
    ):
        assert main(["demos", *args]) == 2
        text = capsys.readouterr().err
        assert says in text
        assert text.count("\n") == 1
    assert main(["demos"]) == 0
    assert capsys.readouterr().out.count("uvd demos") == 2
