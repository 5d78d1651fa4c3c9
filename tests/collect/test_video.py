"""Films of episodes: every step is in them, and a frame marks success."""

from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

from uvd.collect.video import EDGE, REACHED, write_video
from uvd.collect.worker import FRESH, Job, play
from uvd.core.errors import UserError
from uvd.core.policy import MLP, Norm, Policy
from uvd.tasks.env import make_env
from uvd.tasks.find import find_task

ZEROS = [np.zeros(n, np.float32) for n in (3, 2)]
# Straight to the goal: features 3 and 4 are the goal relative to the position.
TO_GOAL = np.vstack([np.zeros((3, 2)), 9 * np.eye(2)]).astype(np.float32)
POLICY = Policy(
    MLP((TO_GOAL,), (np.zeros(2, np.float32),)),
    Norm(ZEROS[0], ZEROS[0] + 1, ZEROS[1], ZEROS[1] + 1, np.array([0, 1])),
)


@pytest.fixture(scope="module")
def task():
    return find_task("envs:Drawn-v0")


def test_a_film_has_every_step_and_a_frame_where_the_goal_is_achieved(task, tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    out = tmp_path / "new" / "a.gif"
    write_video(task, POLICY, 2, out)  # the first way of drawing fails, the second does not
    pictures = imageio.imread(out, mode="RGB")
    assert pictures.shape == (22, 32, 48, 3)
    middle = pictures[:, 16, 24].astype(int)
    np.testing.assert_allclose(
        middle, 20 * np.tile(np.arange(11), 2)[:, None] * [[1, 1, 1]], atol=8
    )
    framed = (abs(pictures[:, EDGE // 2, EDGE // 2].astype(int) - REACHED) < 12).all(-1)
    episodes = [play(task, make_env(task), POLICY, Job(0, 0, FRESH, i)) for i in range(2)]
    success = np.concatenate([[False, *episode.success] for episode in episodes])
    assert success.any()
    assert framed.tolist() == success.tolist()


def test_mp4(task, tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    write_video(task, POLICY, 1, tmp_path / "a.mp4")
    assert (tmp_path / "a.mp4").stat().st_size > 500


@pytest.mark.parametrize(
    ("name", "out", "way", "message"),
    [
        ("Drawn", "a.avi", "", r"a.avi: a video's name ends in .mp4 or .gif"),
        ("Line", "a.gif", "osmesa", "envs:Line-v0 cannot be drawn: it has no render"),
        ("Drawn", "a.gif", "egl", "cannot draw envs:Drawn-v0 with MUJOCO_GL=egl: .*no display"),
        ("Drawn", "/dev/null/a.gif", "osmesa", "cannot write /dev/null/a.gif"),
    ],
)
def test_what_cannot_be_filmed_is_refused_in_one_line(
    tmp_path, monkeypatch, name, out, way, message
):
    monkeypatch.setenv("MUJOCO_GL", way)
    with pytest.raises(UserError, match=message) as error:
        write_video(find_task(f"envs:{name}-v0"), POLICY, 1, tmp_path / Path(out))
    assert "\n" not in str(error.value)
