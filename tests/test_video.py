from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest

from uvd.collect.worker import FRESH, Job, play
from uvd.core.policy import MLP, Norm, Policy
from uvd.core.errors import UserError
from uvd.tasks.goalenv import goal_task, make_env
from uvd.collect.video import EDGE, REACHED, Film, write_video

TASK = goal_task("envs:Drawn-v0")
ONES = [np.ones(n, np.float32) for n in (3, 2)]
# Straight to the goal, which is features 3 and 4 relative to the place.
WAY = np.vstack([np.zeros((3, 2)), 9 * np.eye(2)]).astype(np.float32)
POLICY = Policy(
    MLP((WAY,), (np.zeros(2, np.float32),)),
    Norm(0 * ONES[0], ONES[0], 0 * ONES[1], ONES[1], np.array([0, 1])),
)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)


def test_a_film_has_every_step_and_shows_where_the_goal_is_achieved(tmp_path):
    out = tmp_path / "new" / "a.gif"
    write_video(Film(TASK, POLICY, 2, out))  # the first way of drawing fails, the second does not
    pictures = imageio.imread(out, mode="RGB")
    assert pictures.shape == (22, 32, 48, 3)
    middle = pictures[:, 16, 24].astype(int)
    np.testing.assert_allclose(
        middle, 20 * np.tile(np.arange(11), 2)[:, None] * [[1, 1, 1]], atol=8
    )
    framed = (abs(pictures[:, EDGE // 2, EDGE // 2].astype(int) - REACHED) < 12).all(-1)
    episodes = [play(TASK, make_env(TASK), POLICY, Job(0, 0, FRESH, i)) for i in range(2)]
    said = np.concatenate([[False, *episode.success] for episode in episodes])
    assert said.any()
    assert framed.tolist() == said.tolist()


def test_mp4(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    write_video(Film(TASK, POLICY, 1, tmp_path / "a.mp4"))
    assert (tmp_path / "a.mp4").stat().st_size > 500


@pytest.mark.parametrize(
    ("task", "out", "way", "message"),
    [
        (TASK, "a.avi", "", r"a.avi: a video's name ends in .mp4 or .gif"),
        (goal_task("envs:Line-v0"), "a.gif", "", "envs:Line-v0 cannot be drawn: it has no render"),
        (TASK, "a.gif", "egl", "cannot draw envs:Drawn-v0 with MUJOCO_GL=egl: .*no display"),
        (TASK, "/dev/null/a.gif", "", "cannot write /dev/null/a.gif"),
    ],
)
def test_what_cannot_be_filmed_is_said_in_one_line(tmp_path, monkeypatch, task, out, way, message):
    if way:
        monkeypatch.setenv("MUJOCO_GL", way)
    with pytest.raises(UserError, match=message) as error:
        write_video(Film(task, POLICY, 1, tmp_path / Path(out)))
    assert "\n" not in str(error.value)
