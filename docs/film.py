"""The film of half a minute: the cliff walk, FetchPush, Humanoid.

    python docs/film.py [docs/static/film.mp4]

The walks of the first scene are simulated here. The other two are stored beside the results of the
policies that they show.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as iio
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from uvd.experiments.cliffwalk import learn
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import Grid

ROOT = Path(__file__).parents[1]
FPS, SIZE, DPI = 25, (8.0, 4.5), 120  # 960 x 540 pixels
WALKERS, FRAMES_A_STEP, SHOWN = 60, 7, 40  # the first steps of each walk
FALLEN, ARRIVED, WALKING = "#f0483e", "#2e8b57", "#1f5fa8"


def picture(figure: Figure) -> np.ndarray:
    """The pixels of a figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def cliff_walk() -> Iterator[np.ndarray]:
    """Walks by the policies of UVD and of HER, side by side."""
    grid = Grid(slip=0.3)
    panels = {"UVD": "uvd", "HER, as the paper words it": "her-paper"}
    figure = Figure(figsize=SIZE, dpi=DPI)
    figure.text(
        0.5, 0.93, "Cliff walk: a step may slip sideways; an agent that falls stays in the cliff",
        ha="center", size=13,
    )  # fmt: skip
    figure.text(
        0.5, 0.06,
        "HER learns about the goal from roll-outs that reached it: the edge looks safer than it is",
        ha="center", size=11,
    )  # fmt: skip
    walks = []
    for i, (title, strategy) in enumerate(panels.items()):
        ax = figure.add_axes((0.03 + 0.48 * i, 0.14, 0.46, 0.72))
        ax.set(xlim=(-0.52, grid.cols - 0.48), ylim=(grid.rows - 0.48, -0.52), aspect="equal")
        ax.axis("off")
        for cell in range(grid.cells):
            row, col = divmod(cell, grid.cols)
            face = {grid.start: "#d8ecd3", grid.goal: "#d8ecd3"}.get(cell, "white")
            face = "black" if cell in grid.cliff else face
            ax.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, fc=face, ec="0.75", lw=0.8))
        for cell, text in ((grid.start, "start"), (grid.goal, "goal")):
            ax.text(cell % grid.cols, grid.rows - 0.65, text, ha="center", size=9, color="0.3")
        policy = cliffwalk.greedy(learn(grid, strategy, 0).q)
        rng = np.random.default_rng(0)
        walk = cliffwalk.simulate(grid, policy, np.full(WALKERS, grid.goal), 0.0, rng).states
        spread = rng.uniform(-0.28, 0.28, (WALKERS, 2))
        walks.append((ax, title, walk, spread, ax.scatter([], [], s=22, zorder=3)))
    for t in range(SHOWN):
        for k in range(FRAMES_A_STEP):
            share = min(1.0, 1.6 * k / FRAMES_A_STEP)  # a short stop after every step
            for ax, title, walk, spread, dots in walks:
                before, after = (
                    np.stack(np.divmod(walk[:, t + j], grid.cols)[::-1], -1) for j in (0, 1)
                )
                dots.set_offsets(before + share * (after - before) + spread)
                now = walk[:, t if share < 1 else t + 1]
                fallen, there = np.isin(now, grid.cliff), now == grid.goal
                dots.set_color(np.where(fallen, FALLEN, np.where(there, ARRIVED, WALKING)))
                counts = f"{there.sum()} of {WALKERS} at the goal, {fallen.sum()} fallen"
                ax.set_title(f"{title}\n{counts}", size=11)
            yield picture(figure)


def clip(path: Path, lines: str, begin: float, seconds: float) -> Iterator[np.ndarray]:
    """A stored film with text beside it."""
    rate = iio.immeta(path)["fps"]
    frames = iio.imread(path)
    figure = Figure(figsize=SIZE, dpi=DPI)
    ax = figure.add_axes((0.0, 0.0, 0.5625, 1.0))
    ax.axis("off")
    shown = ax.imshow(frames[0])
    figure.text(0.59, 0.5, lines, va="center", size=13, linespacing=1.6)
    for k in range(int(seconds * FPS)):
        shown.set_data(frames[min(int((begin + k / FPS) * rate), len(frames) - 1)])
        yield picture(figure)


def scenes() -> Iterator[np.ndarray]:
    """All frames."""
    yield from cliff_walk()
    yield from clip(
        ROOT / "results/figure2/push.mp4",
        "FetchPush\n\nUVD, from a reward\nfor success only.\n\nThe frame is blue\nwhen the box is"
        "\nat the goal.",
        0.0, 8.2,
    )  # fmt: skip
    yield from clip(
        ROOT / "results/figure3/humanoid-vdi.mp4",
        "Humanoid\n\nKDI, from 50 states\nof one trajectory of\nan expert, without\nrewards.\n\n"
        "It stands, and walks\nslowly.",
        0.0, 10.6,
    )  # fmt: skip


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/static/film.mp4"
    with iio.imopen(out, "w", plugin="FFMPEG") as film:
        film.write(
            np.stack(list(scenes())), fps=FPS, macro_block_size=4,
            output_params=["-crf", "30", "-movflags", "+faststart"],
        )  # fmt: skip


if __name__ == "__main__":
    main()
