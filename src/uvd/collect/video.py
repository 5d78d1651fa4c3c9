"""Episodes of a trained policy as a film, mp4 or gif.

A process of its own plays and draws: MuJoCo chooses how to draw when it is first imported, and here
that has often happened long before. No JAX in this module, for that process's sake.
"""

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from uvd.collect.worker import FRESH, Job, play
from uvd.core.config import require
from uvd.core.errors import UserError, one_line, refused
from uvd.core.policy import Policy
from uvd.tasks.env import EnvTask, is_success, make_env

WAYS = ("egl", "osmesa")  # how MuJoCo may draw without a screen, best first
REACHED = (0, 114, 178)  # the frame around a picture in which the goal is achieved
EDGE = 8
_START = "import sys; sys.path = sys.argv[1:]; from uvd.collect.video import main; main()"


def check_out(out: Path) -> None:
    """Refuses a file that cannot be written, before anything is played."""
    known = out.suffix in (".mp4", ".gif")
    require(known, f"cannot write {out}: a video's name ends in .mp4 or .gif")
    can_write = out.suffix == ".gif" or find_spec("imageio_ffmpeg")
    require(can_write, "mp4 needs imageio-ffmpeg: pip install imageio-ffmpeg, or write a .gif")


def write_video(task: EnvTask, policy: Policy, episodes: int, out: Path) -> None:
    """Plays the first fresh episodes, the goal achieved wherever the picture has a blue frame."""
    check_out(out)
    film = pickle.dumps((task, policy, episodes, out))
    asked = os.environ.get("MUJOCO_GL")
    ways = (asked,) if asked else WAYS
    for way in ways:
        end = subprocess.run(
            [sys.executable, "-c", _START, *sys.path], input=film,
            stderr=subprocess.PIPE, env={**os.environ, "MUJOCO_GL": way},
        )  # fmt: skip
        if end.returncode == 0:
            return
        said = (end.stderr.decode(errors="replace").strip() or "it died").split("\n")[-1]
        if end.returncode == 2:
            raise UserError(said)
    raise UserError(f"cannot draw {task.id} with MUJOCO_GL={' or '.join(ways)}: {said[:200]}")


class _Camera(gym.Wrapper):
    """Takes a picture after every step and hands it to the film."""

    def __init__(self, env: gym.Env, out: Path) -> None:
        super().__init__(env)
        self.out = out
        self.writer: Any = None

    def reset(self, **settings: Any) -> Any:
        answer = self.env.reset(**settings)
        self._take(False)
        return answer

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        self._take(bool(is_success(answer[-1])))
        return answer

    def _take(self, reached: bool) -> None:
        picture = np.array(self.env.render(), np.uint8)
        if reached:
            inside = picture[EDGE:-EDGE, EDGE:-EDGE].copy()
            picture[:] = REACHED
            picture[EDGE:-EDGE, EDGE:-EDGE] = inside
        if self.writer is None:
            self.writer = _open(self.out, self.env.metadata.get("render_fps", 25))
        self.writer.append_data(picture)


def _open(out: Path, fps: float) -> Any:
    import imageio.v2 as imageio

    with refused(f"cannot write {out}", OSError):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".gif":
            return imageio.get_writer(out, duration=1000 / fps, loop=0)
        return imageio.get_writer(out, fps=fps)


def main() -> None:
    """The process that draws; exit code 2 for what another way of drawing would not change."""
    try:
        task, policy, episodes, out = pickle.load(sys.stdin.buffer)
        with make_env(task) as env:
            drawn = "rgb_array" in env.metadata.get("render_modes", ())
        require(drawn, f"{task.id} cannot be drawn: it has no render mode 'rgb_array'")
        camera = _Camera(make_env(task, render_mode="rgb_array"), out)
        for number in range(episodes):
            play(task, camera, policy, Job(0, 0, FRESH, number))
        camera.writer.close()
        camera.close()
    except Exception as error:
        print(error if isinstance(error, UserError) else one_line(error), file=sys.stderr)
        sys.stderr.flush()
        os._exit(2 if isinstance(error, UserError) else 1)  # a broken display may hang an exit
