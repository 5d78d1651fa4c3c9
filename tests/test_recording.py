"""A trained policy's episodes as demonstrations and as a film."""

import imageio.v3 as imageio
import numpy as np
import pytest

import uvd
from uvd.api import Trained
from uvd.core.errors import UserError
from uvd.demos.files import load_demos
from uvd.recording import film, record_demos
from uvd.runs import Run
from uvd.settings import to_file
from uvd.training.plan import configure, make_plan

WALK = "envs:Walk-v0"
# They end in their warm-up: the policies are as they began, which takes little time.
WARM = {
    "hidden": (8,), "envs": 2, "steps": 20, "eval_every": 20, "warmup": 1000, "capacity": 100,
    "eval_episodes": 1, "workers": 1, "quiet": True, "actor_scale": 3.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)


def trained(tmp_path_factory, task, **given):
    out = tmp_path_factory.mktemp("run") / "run"
    return uvd.train("td3", task, out=out, **{**WARM, **given})


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    return trained(tmp_path_factory, WALK, task_settings={"low": 0.0, "high": 4.0}, seeds=2)


@pytest.fixture(scope="module")
def privileged(tmp_path_factory):
    return trained(tmp_path_factory, "envs:PrivilegedWalk-v0")


def test_recorded_episodes_are_the_same_in_every_format(walked):
    returns = [record_demos(walked, name, 3)[1] for name in ("walk-expert", "walk.h5", "walk.npz")]
    np.testing.assert_array_equal(*returns[:2])
    minari, gail, npz = (load_demos(name) for name in ("walk-expert-v0", "walk.h5", "walk"))
    assert [d.kind for d in (minari, gail, npz)] == ["minari", "gail", "npz"]
    for a, b, c in zip(minari.trajectories, gail.trajectories, npz.trajectories, strict=True):
        np.testing.assert_array_equal(a.obs[:-1], b.obs)
        np.testing.assert_array_equal(a.obs, c.obs)
        for other in (b, c):
            np.testing.assert_array_equal(a.action, other.action)
            np.testing.assert_array_equal(a.reward, other.reward)
        np.testing.assert_allclose(a.reward, a.obs[1:, 0])
        assert ((a.action >= 0) & (a.action <= 4)).all()  # the environment's own
        np.testing.assert_allclose(a.obs[1:, 1], a.action[:, 0] / 2 - 1, atol=1e-6)
        # Without exploration, by the policy of the first seed.
        np.testing.assert_allclose(a.action, walked.policy()(a.obs[:-1]), atol=1e-5)
    np.testing.assert_allclose(minari.returns(), returns[0], rtol=1e-6)


def test_another_seed_records_other_episodes(walked):
    record_demos(walked, "first.h5", 1, seed=0)
    record_demos(walked, "second.h5", 1, seed=1)
    first, second = (load_demos(name).trajectories[0] for name in ("first.h5", "second.h5"))
    np.testing.assert_array_equal(first.obs[0], second.obs[0])
    assert not np.array_equal(first.action, second.action)


@pytest.mark.parametrize("task", [None, WALK])
def test_privileged_numbers_are_in_no_demonstration(privileged, task):
    for name in ("own-v0", "own.h5"):
        record_demos(privileged, name, 2, task=task)
        assert {t.obs.shape[1] for t in load_demos(name).trajectories} == {2}


def test_what_cannot_be_recorded_is_refused_before_anything_is_played(walked, tmp_path):
    for name in ("walk-v0", "walk.h5", "walk.npz"):
        record_demos(walked, name, 1)
        with pytest.raises(UserError, match="exists: remove it"):
            record_demos(walked, name, 1)
    for out, given, says in [
        ("a b", {}, "must read NAME-v0"),
        ("x.h5", {"seed": 7}, "has seeds 0 to 1, not 7"),
        ("x.h5", {"task": "PointLoop-v0"}, "PointLoop-v0 has sizes"),
        ("walk.h5/x.h5", {}, "walk.h5 is a file"),
    ]:
        with pytest.raises(UserError, match=says):
            record_demos(walked, out, 1, **given)
    assert not (tmp_path / "x.h5").exists()


def test_a_film_shows_the_chosen_number_of_episodes(tmp_path_factory):
    drawn = trained(tmp_path_factory, "envs:Drawn-v0")
    film(drawn, "new/film.gif", episodes=2)
    assert imageio.imread("new/film.gif").shape[0] == 2 * 11
    with pytest.raises(UserError, match="has goals: only runs without are recorded"):
        record_demos(drawn, "x.h5")


def test_a_task_on_the_device_is_recorded(tmp_path):
    given = {"hidden": (8,), "batch": 8, "envs": 1, "actor_scale": 3.0}
    config, inputs = configure("td3", "PointLoop-v0", given=given)
    plan = make_plan(config, inputs)
    run = Run.create(tmp_path / "run", to_file(config))
    loop = Trained(run, plan, 0, plan.program.init(0, 1).state)
    _, returns = record_demos(loop, "loop.h5", 2)
    recorded = load_demos("loop.h5").trajectories
    assert [t.steps for t in recorded] == [100, 100]
    np.testing.assert_allclose([t.reward.sum() for t in recorded], returns, rtol=1e-4)
    for t in recorded:
        np.testing.assert_allclose(t.action, loop.policy()(t.obs), atol=1e-5)
