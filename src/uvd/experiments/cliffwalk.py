"""Hindsight bias in a table: TD, HER and UVD on the cliff walk, against exact values.

The paper's section 3.1 and Figure 1. Q-learning over a replay converges to the optimal values of
the dynamics that the replay shows, ``N_g(s, a, s') / N_g(s, a)``, counted over the transitions that
were learned from with goal g. So each learner here counts and solves instead of stepping at some
learning rate; what remains is its bias, plus the noise of a finite sample. A learner plays its own
data, ε-greedy on its own latest values, in a few rounds. Where (s, a, g) has no data, Q is 0.

The line that matters: **a goal may depend on (s, a), never on what came after.** HER draws goals
from the roll-out that contains s', so its N_g belongs to dynamics that favour the goal. UVD draws
them blind to s', so its N_g belongs to the true dynamics, and lets hindsight train only the density
of the next achieved goal, F(g | s, a), which enters the target as (1 − γ)·F + γ·Q'.

What it shows is bias, not speed: plain TD is unbiased too, and on a grid this small random steps
find the goal. HER's usual strategies (future, k = 4) overestimate the start by a few per cent: the
more random the actions are, the less the future says about s'. Here half of them are (ε = 0.5).
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from scipy.stats import sem
from scipy.stats import t as student

from uvd.experiments.curves import label_styles, legend_below, plain, save
from uvd.experiments.tables import Sheet
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import ACTIONS, RIGHT, Array, Episodes, Grid, Index

Rows = list[dict[str, Any]]
Relabel = Callable[[Episodes, np.random.Generator], Index]
"""Goals ``[e, t]`` to learn from, one a transition."""
K = 4
"""Relabelled goals for each intended one, HER's k."""
MARKERS = "xs^vDo"


def intended(episodes: Episodes, rng: np.random.Generator) -> Index:
    """The goal that was pursued; fixed before s' is drawn."""
    return np.broadcast_to(episodes.goals[:, None], episodes.actions.shape)


def future(episodes: Episodes, rng: np.random.Generator) -> Index:
    """A goal achieved later in the same roll-out, uniform over the steps left. Looks at s'."""
    steps = episodes.actions.shape[1]
    now = np.arange(steps)
    ahead = now + 1 + (rng.random(episodes.actions.shape) * (steps - now)).astype(np.int64)
    return np.take_along_axis(episodes.states, ahead, 1)


def final(episodes: Episodes, rng: np.random.Generator) -> Index:
    """The goal achieved at the end of the same roll-out. Looks past s'."""
    return np.broadcast_to(episodes.states[:, -1:], episodes.actions.shape)


def episode(episodes: Episodes, rng: np.random.Generator) -> Index:
    """Any goal achieved in the same roll-out, before or after. Looks at s'."""
    any_step = rng.integers(1, episodes.states.shape[1], episodes.actions.shape)
    return np.take_along_axis(episodes.states, any_step, 1)


def as_worded(episodes: Episodes, rng: np.random.Generator) -> Index:
    """HER in the paper's words: "we alter the goal on unsuccessful roll-outs and only learn about
    the true goal based on successful ones". A roll-out succeeds if it ever reached its goal."""
    succeeded = (episodes.states[:, 1:] == episodes.goals[:, None]).any(1)
    return np.where(succeeded[:, None], intended(episodes, rng), future(episodes, rng))


def mixed(relabel: Relabel) -> Relabel:
    """The intended goal with probability 1 / (1 + k), else the relabelled one."""

    def goals(episodes: Episodes, rng: np.random.Generator) -> Index:
        keep = rng.random(episodes.actions.shape) < 1 / (1 + K)
        return np.where(keep, intended(episodes, rng), relabel(episodes, rng))

    return goals


class Learner(NamedTuple):
    """What a learner's TD step learns from."""

    label: str
    algorithm: str  # whose colour it has
    goals: Relabel | None = None  # the goal that each transition teaches; None: all goals alike

    def see(self, grid: Grid, episodes: Episodes, rng: np.random.Generator) -> Array:
        """Transitions ``N[s, a, p, g]`` that teach goal g; ``[s, a, p, 1]`` if they teach all."""
        return count(grid, episodes, self.goals and self.goals(episodes, rng))


def count(grid: Grid, episodes: Episodes, goals: Index | None = None) -> Array:
    """How often each transition teaches each goal; without goals, how often it was seen."""
    teaches = np.zeros_like(episodes.actions) if goals is None else goals
    shape = (grid.cells, len(ACTIONS), grid.cells, 1 if goals is None else grid.cells)
    places = (episodes.states[:, :-1], episodes.actions, episodes.states[:, 1:], teaches)
    flat = np.ravel_multi_index(places, shape)
    return np.bincount(flat.ravel(), minlength=int(np.prod(shape))).reshape(shape).astype(float)


LEARNERS = {
    "td": Learner("TD (UVFA)", "td3", intended),
    "her-future": Learner("HER future, k = 4", "her", mixed(future)),
    "her-final": Learner("HER final", "her", mixed(final)),
    "her-episode": Learner("HER episode", "her", mixed(episode)),
    "her-paper": Learner("HER, paper's wording", "her", as_worded),
    "uvd": Learner("UVD", "uvd"),
}


# How each learner gathers its own data; the replay keeps everything.
ROUNDS = 6  # times that the values are solved anew
EPISODES = 12_000  # in a round
EPSILON = 0.5  # share of random actions; high, because UVD's error is that of its rarest cell
PRACTICE = 0.5  # share of episodes for a goal drawn uniformly from the safe cells


class Belief(NamedTuple):
    """What a learner ends with: values and the transitions they rest on."""

    q: Array
    """Values ``[s, a, g]``."""
    seen: Array
    """Transitions ``[s, a, p, g]`` that it learned from with each goal."""


def believed_model(seen: Array) -> Array:
    """Dynamics that the counted transitions show; rows without data are zero."""
    return seen / np.maximum(seen.sum(2, keepdims=True), 1)


def learn(grid: Grid, strategy: str, seed: int) -> Belief:
    """Collect and solve in turns; returns the fixed point on the data of all rounds."""
    learner = LEARNERS[strategy]
    rng = np.random.default_rng(seed)
    q = np.zeros((grid.cells, len(ACTIONS), grid.cells))
    steps = np.zeros((*q.shape, 1))
    seen = np.zeros((*q.shape, grid.cells))
    for _ in range(ROUNDS):
        practice = rng.random(EPISODES) < PRACTICE
        goals = np.where(practice, rng.choice(grid.safe, EPISODES), grid.goal)
        played = cliffwalk.simulate(grid, cliffwalk.greedy(q), goals, EPSILON, rng)
        steps += count(grid, played)
        seen += learner.see(grid, played, rng)
        model = believed_model(seen)
        # TD and HER read off the relabelled transition that g was achieved, 1(s' = g). UVD counts
        # F(g | s, a), the density of the goal achieved one step ahead, from all data.
        achieved = np.einsum("sagg->sag", model) if learner.goals else believed_model(steps)[..., 0]
        reward = (1 - grid.gamma) * achieved * seen.any(2)
        q = cliffwalk.solve(model, reward, grid.gamma)
    return Belief(q, seen)


def believed_fall(grid: Grid, belief: Belief) -> float:
    """Probability of falling that the learner sees, for the true goal, in a step right on the edge.

    The truth is slip / 2 in each of these cells, so the data of all may be pooled.
    """
    steps = belief.seen[grid.edge, RIGHT, :, grid.goal]
    falls = np.take_along_axis(steps, grid.cliff[:, None], 1)
    return float(falls.sum() / max(steps.sum(), 1))


def measure(
    seeds: Sequence[int] = range(5),
    slips: Sequence[float] = (0.0, 0.1, 0.2, 0.3),
    strategies: Sequence[str] = tuple(LEARNERS),
) -> Rows:
    """One row for each slip probability, strategy and seed; what is called true is exact.

    `bias_own` compares the believed value of the start with the true value of the same greedy
    policy, `bias_optimal` with the optimal value, both relative. Losses are in success probability.
    """
    rows = []
    for slip in slips:
        grid = Grid(slip=slip)
        model = cliffwalk.true_model(grid)
        reward = cliffwalk.goal_reward(model, grid.gamma)
        best_q = cliffwalk.solve(model, reward, grid.gamma)
        best = cliffwalk.success(grid, cliffwalk.greedy(best_q))
        optimal = best_q[grid.start, :, grid.goal].max()
        for strategy, seed in product(strategies, seeds):
            belief = learn(grid, strategy, seed)
            policy = cliffwalk.greedy(belief.q)
            value = belief.q[grid.start, :, grid.goal].max()
            own = cliffwalk.evaluate(model, reward, policy, grid.gamma)[grid.start, grid.goal]
            got = cliffwalk.success(grid, policy)
            numbers = {
                "bias_own": value / own - 1,
                "bias_optimal": value / optimal - 1,
                "fall": believed_fall(grid, belief),
                "max_error": np.abs(belief.q - best_q).max() / best_q.max(),
                "success_final": got.final,
                "loss_final": best.final - got.final,
            }
            setting = {"strategy": strategy, "slip": slip, "seed": seed}
            rows.append(setting | {name: float(number) for name, number in numbers.items()})
    return rows


def interval(rows: Rows, strategy: str, slip: float, name: str) -> tuple[float, float]:
    """Mean over seeds in per cent, and the half width of its 95 % interval (Student's t)."""
    own = [100 * r[name] for r in rows if (r["strategy"], r["slip"]) == (strategy, slip)]
    width = student.ppf(0.975, len(own) - 1) * sem(own) if len(own) > 1 else 0.0
    return float(np.mean(own)), float(width)


def tabulate(rows: Rows) -> Sheet:
    """Means over seeds with 95 % intervals."""
    columns = {
        "bias_optimal": "start value: bias to optimal, %",
        "fall": "believed fall on the edge (true), %",
        "success_final": "success at the last step, %",
        "loss_final": "success lost, points",
    }
    lines = []
    for slip, strategy in dict.fromkeys((row["slip"], row["strategy"]) for row in rows):
        cells = [f"{slip:g}", LEARNERS[strategy].label]
        for name in columns:
            mean, width = interval(rows, strategy, slip, name)
            true = f" ({50 * slip:g})" if name == "fall" else ""
            cells.append(f"{mean:{'+' * name.startswith('bias')}.1f} ± {width:.1f}{true}")
        lines.append(tuple(cells))
    header = ("slip", "strategy", *columns.values())
    return Sheet("The cliff walk: bias against exact values", header, lines)


def draw_bias(rows: Rows, path: Path) -> None:
    """Bias of the start's value and its cost, over the slips; 95 % intervals."""
    panels = {
        "bias_optimal": "value of the start:\nbelieved over optimal, %",
        "loss_final": "success at the last step:\nlost against optimal, points",
    }
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    styles = label_styles({name: LEARNERS[name].algorithm for name in strategies})
    slips = np.array(sorted({row["slip"] for row in rows}))
    dodge = 0.05 * np.diff(slips).min() if len(slips) > 1 else 0.0
    figure = Figure(figsize=(8, 4), layout="constrained")
    lines: dict[str, Any] = {}
    for ax, (name, title) in zip(figure.subplots(1, len(panels)), panels.items()):
        for i, strategy in enumerate(strategies):
            bars = np.transpose([interval(rows, strategy, slip, name) for slip in slips])
            style = {"color": styles[strategy].color, "marker": MARKERS[i], "capsize": 2}
            at = slips + dodge * (i - (len(strategies) - 1) / 2)
            lines[LEARNERS[strategy].label] = ax.errorbar(at, *bars, **style)
        plain(ax)
        ax.set_title(title, fontsize=11)
        ax.set(xlabel="probability of slipping", xticks=slips)
    legend_below(figure, lines, 3)
    save(figure, path)


def draw_figure1(path: Path, slip: float = 0.3) -> None:
    """The paper's Figure 1: where the greedy policies of exact values, UVD and HER lead.

    The width and strength of an arrow is the expected number of such steps in an episode, red where
    it is a fall; the numbers in the cliff are the probabilities of falling there.
    """
    grid = Grid(slip=slip)
    believed = {"Exact values": cliffwalk.optimal_values(grid)}
    for strategy in ("uvd", "her-future", "her-paper"):
        believed[LEARNERS[strategy].label] = learn(grid, strategy, seed=0).q
    model = cliffwalk.true_model(grid)
    reward = cliffwalk.goal_reward(model, grid.gamma)
    figure = Figure(figsize=(8, 6), layout="constrained")
    for ax, (title, q) in zip(figure.subplots(2, 2).flat, believed.items()):
        policy = cliffwalk.greedy(q)
        value = q[grid.start, :, grid.goal].max()
        true = cliffwalk.evaluate(model, reward, policy, grid.gamma)[grid.start, grid.goal]
        reached = 100 * cliffwalk.success(grid, policy).final
        numbers = f"value {value:.2f} believed, {true:.2f} true; success {reached:.1f} %"
        ax.set_title(f"{title}\n{numbers}", fontsize=10)
        _draw_walk(ax, grid, cliffwalk.flow(grid, policy))
    save(figure, path)


def _draw_walk(ax: Axes, grid: Grid, flow: Array) -> None:
    ax.set(xlim=(-0.52, grid.cols - 0.48), ylim=(grid.rows - 0.48, -0.52), aspect="equal")
    ax.axis("off")
    moves = flow * (1 - np.eye(grid.cells))
    texts = {grid.start: "S", grid.goal: "G"}
    texts |= {cell: f"{100 * moves[:, cell].sum():.1f} %" for cell in grid.cliff}
    for cell in range(grid.cells):
        row, col = divmod(cell, grid.cols)
        cliff = cell in grid.cliff
        face = "black" if cliff else "#d8ecd3" if cell in texts else "white"
        ax.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, fc=face, ec="0.75", lw=0.8))
        color, size = ("white", 9) if cliff else ("0.2", 13)
        text = texts.get(cell, "")
        ax.text(col, row + 0.3, text, color=color, size=size, ha="center", va="center")
    for s, p in zip(*np.nonzero(moves > 0.003)):
        start, end = (np.array(divmod(cell, grid.cols))[::-1] for cell in (s, p))
        step = end - start
        # Moved to its right-hand side, so that both ways between two cells can be seen.
        start = start + 0.1 * np.array([-step[1], step[0]])
        weight = min(1.0, moves[s, p])
        arrow = FancyArrowPatch(
            start + 0.16 * step,
            start + 0.84 * step,
            arrowstyle="-|>",
            mutation_scale=5 + 9 * weight,
            linewidth=0.8 + 3.2 * weight,
            color="#f0483e" if p in grid.cliff else "#1f5fa8",
            alpha=0.3 + 0.7 * weight**0.5,
        )
        ax.add_patch(arrow)
