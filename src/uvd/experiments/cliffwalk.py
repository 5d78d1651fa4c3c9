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
find the goal. HER's usual strategies (future, k = 4) overestimate the start by a few per cent, and
by less the more random the actions are, because then the future says less about s'. ε = 0.5 is
mild to them: they lose 0 to 2 points of success; at ε ≤ 0.3 and slip 0.3 they lose 13 to 22.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from scipy.stats import t as student

from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import ACTIONS, RIGHT, Array, Episodes, Grid, Index

Rows = list[dict[str, Any]]
Relabel = Callable[[Episodes, np.random.Generator], Index]
"""Goals ``[e, t]`` to learn from, one a transition."""
K = 4
"""Relabelled goals for each intended one, HER's k."""


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


def shuffled(episodes: Episodes, rng: np.random.Generator) -> Index:
    """The pursued goal of some other transition. Blind to s'."""
    return rng.permutation(intended(episodes, rng).ravel()).reshape(episodes.actions.shape)


def marginal(episodes: Episodes, rng: np.random.Generator) -> Index:
    """A goal achieved by some other transition. Blind to s'."""
    return rng.permutation(episodes.states[:, 1:].ravel()).reshape(episodes.actions.shape)


def density(episodes: Episodes, rng: np.random.Generator) -> Index:
    """A draw from the counted long-horizon density of goals given (s, a). Blind to s'.

    That is the future of some visit to the same (s, a): HER's useful goals, without its bias. Now
    and then it is this very visit; that fades as visits grow.
    """
    pair = (episodes.states[:, :-1] * len(ACTIONS) + episodes.actions).ravel()
    visits = np.bincount(pair)
    by_pair = np.argsort(pair.astype(np.int16), kind="stable")  # 16 bits: a radix sort
    pick = (rng.random(len(pair)) * visits[pair]).astype(np.int64)
    other = by_pair[(visits.cumsum() - visits)[pair] + pick]
    return future(episodes, rng).ravel()[other].reshape(episodes.actions.shape)


def mixed(relabel: Relabel) -> Relabel:
    """The intended goal with probability 1 / (1 + k), else the relabelled one."""

    def goals(episodes: Episodes, rng: np.random.Generator) -> Index:
        keep = rng.random(episodes.actions.shape) < 1 / (1 + K)
        return np.where(keep, intended(episodes, rng), relabel(episodes, rng))

    return goals


See = Callable[[Grid, Episodes, np.random.Generator], Array]
"""Transitions ``N[s, a, p, g]`` that the TD step sees for goal g; ``[s, a, p, 1]`` if for all."""


def one_goal(relabel: Relabel) -> See:
    """Each transition teaches one goal, that of `relabel`."""
    return lambda grid, episodes, rng: _count(grid, episodes, relabel(episodes, rng), grid.cells)


def every_goal(grid: Grid, episodes: Episodes, rng: np.random.Generator) -> Array:
    """Each transition teaches all goals alike: blind to s' without drawing any."""
    return _count(grid, episodes, 0, 1)


def _count(grid: Grid, episodes: Episodes, goals: Index | int, width: int) -> Array:
    pair = episodes.states[:, :-1] * len(ACTIONS) + episodes.actions
    flat = (pair * grid.cells + episodes.states[:, 1:]) * width + goals
    shape = (grid.cells, len(ACTIONS), grid.cells, width)
    return np.bincount(flat.ravel(), minlength=int(np.prod(shape))).reshape(shape).astype(float)


def observed(model: Array, steps: Array) -> Array:
    """TD and HER: the reward is read off the relabelled transition, 1(s' = g)."""
    return np.einsum("sagg->sag", model)


def counted_density(model: Array, steps: Array) -> Array:
    """UVD: F(g | s, a), the density of the goal achieved one step ahead, counted from all data."""
    return steps[..., 0]


class Learner(NamedTuple):
    """What the TD step sees, how it knows that g was achieved, and how the learner is drawn."""

    label: str
    see: See
    achieved: Callable[[Array, Array], Array]
    color: str
    marker: str


def _her(label: str, relabel: Relabel, color: str, marker: str) -> Learner:
    return Learner(label, one_goal(relabel), observed, color, marker)


def _uvd(label: str, see: See, color: str, marker: str) -> Learner:
    return Learner(label, see, counted_density, color, marker)


LEARNERS = {
    "td": _her("TD (UVFA)", intended, "0.45", "x"),
    "her-future": _her("HER future, k = 4", mixed(future), "#e6a23c", "s"),
    "her-final": _her("HER final", mixed(final), "#d9762b", "^"),
    "her-episode": _her("HER episode", mixed(episode), "#b8860b", "v"),
    "her-paper": _her("HER, paper's wording", as_worded, "#b22222", "D"),
    "uvd": _uvd("UVD", every_goal, "#08306b", "o"),
    "uvd-intended": _uvd("UVD, intended goals", one_goal(intended), "#2171b5", "P"),
    "uvd-shuffled": _uvd("UVD, shuffled goals", one_goal(mixed(shuffled)), "#4aa3c7", "<"),
    "uvd-marginal": _uvd("UVD, marginal goals", one_goal(mixed(marginal)), "#3cb4a0", ">"),
    "uvd-density": _uvd("UVD, density goals", one_goal(mixed(density)), "#7b5ea7", "*"),
}


@dataclass(frozen=True)
class Collect:
    """How each learner gathers its own data; the replay keeps everything."""

    rounds: int = 6
    """Times that the values are solved anew."""
    episodes: int = 12_000
    """Episodes in a round."""
    epsilon: float = 0.5
    """Share of random actions; high, because the error of UVD is that of its rarest cell."""
    practice: float = 0.5
    """Share of episodes for a goal drawn uniformly from the safe cells, not for the true one."""


STANDARD = Collect()


class Belief(NamedTuple):
    """What a learner ends with: values and the transitions they rest on."""

    q: Array
    """Values ``[s, a, g]``."""
    seen: Array
    """Transitions ``[s, a, p, g]`` that it learned from with each goal."""


def believed_model(seen: Array) -> Array:
    """Dynamics that the counted transitions show; rows without data are zero."""
    return seen / np.maximum(seen.sum(2, keepdims=True), 1)


def learn(grid: Grid, strategy: str, seed: int, collect: Collect = STANDARD) -> Belief:
    """Collect and solve in turns; returns the fixed point on the data of all rounds."""
    learner = LEARNERS[strategy]
    rng = np.random.default_rng(seed)
    q = np.zeros((grid.cells, len(ACTIONS), grid.cells))
    steps = np.zeros((*q.shape, 1))
    seen = np.zeros((*q.shape, grid.cells))
    for _ in range(collect.rounds):
        practice = rng.random(collect.episodes) < collect.practice
        goals = np.where(practice, rng.choice(grid.safe, collect.episodes), grid.goal)
        played = cliffwalk.simulate(grid, cliffwalk.greedy(q), goals, collect.epsilon, rng)
        steps += every_goal(grid, played, rng)
        seen += learner.see(grid, played, rng)
        model = believed_model(seen)
        achieved = learner.achieved(model, believed_model(steps))
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
    collect: Collect = STANDARD,
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
            belief = learn(grid, strategy, seed, collect)
            policy = cliffwalk.greedy(belief.q)
            value = belief.q[grid.start, :, grid.goal].max()
            own = cliffwalk.evaluate(model, reward, policy, grid.gamma)[grid.start, grid.goal]
            got = cliffwalk.success(grid, policy)
            numbers = {
                "value": value,
                "value_own": own,
                "value_optimal": optimal,
                "bias_own": value / own - 1,
                "bias_optimal": value / optimal - 1,
                "fall": believed_fall(grid, belief),
                "fall_bias": believed_fall(grid, belief) - slip / 2,
                "max_error": np.abs(belief.q - best_q).max() / best_q.max(),
                "success_final": got.final,
                "success_ever": got.ever,
                "loss_final": best.final - got.final,
                "loss_ever": best.ever - got.ever,
            }
            setting = {"strategy": strategy, "slip": slip, "epsilon": collect.epsilon, "seed": seed}
            rows.append(setting | {name: float(number) for name, number in numbers.items()})
    return rows


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval (Student's t); zero width for a single value."""
    n = len(values)
    if n == 1:
        return values[0], 0.0
    width = student.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    return float(np.mean(values)), float(width)


def _groups(rows: Rows, *keys: str) -> dict[tuple[Any, ...], Rows]:
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def write_table(rows: Rows, path: str | Path) -> None:
    """Markdown: means over seeds with 95 % intervals."""
    lines = [
        "| slip | ε | strategy | start value: bias to optimal, % | bias to own policy, % "
        "| believed fall on the edge (true), % | success at the last step, % | ever, % "
        "| success lost, points | max error of Q, worst seed |",
        "|--:|--:|:--|--:|--:|--:|--:|--:|--:|--:|",
    ]
    columns = ("bias_optimal", "bias_own", "fall", "success_final", "success_ever", "loss_final")
    for (slip, epsilon, strategy), group in _groups(rows, "slip", "epsilon", "strategy").items():
        cells = [f"{slip:g}", f"{epsilon:g}", LEARNERS[strategy].label]
        for name in columns:
            mean, width = interval([100 * row[name] for row in group])
            true = f" ({50 * slip:g})" if name == "fall" else ""
            cells.append(f"{mean:{'+' * name.startswith('bias')}.1f} ± {width:.1f}{true}")
        # Only UVD by every goal learns all of Q; elsewhere the error is that of goals without data.
        error = f"{max(row['max_error'] for row in group):.3f}" if strategy == "uvd" else "–"
        lines.append("| " + " | ".join([*cells, error]) + " |")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw_bias(rows: Rows, path: str | Path, over: str = "slip") -> None:
    """Bias of the start's value, its cause and cost, over `slip` or `epsilon`; 95 % intervals."""
    panels = {
        "bias_optimal": "value of the start:\nbelieved over optimal, %",
        "fall_bias": "probability of a fall on the edge:\nbelieved over true, points",
        "loss_final": "success at the last step:\nlost against optimal, points",
    }
    names = {"slip": "probability of slipping", "epsilon": "share of random actions"}
    groups = _groups(rows, "strategy", over)
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    at = np.array(sorted({row[over] for row in rows}))
    dodge = 0.05 * np.diff(at).min() if len(at) > 1 else 0.0
    fig = Figure(figsize=(11, 4.4), layout="constrained")
    axes = fig.subplots(1, len(panels))
    for ax, (name, title) in zip(axes, panels.items()):
        ax.axhline(0, color="0.6", lw=0.8, zorder=0)
        for i, strategy in enumerate(strategies):
            bars = [interval([100 * row[name] for row in groups[strategy, x]]) for x in at]
            ax.errorbar(
                at + dodge * (i - (len(strategies) - 1) / 2),
                *np.transpose(bars),
                label=LEARNERS[strategy].label,
                color=LEARNERS[strategy].color,
                marker=LEARNERS[strategy].marker,
                markersize=5,
                linewidth=1.2,
                capsize=2,
            )
        ax.set_title(title, fontsize=10)
        ax.set(xlabel=names[over], xticks=at)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    fig.savefig(path, dpi=200)


def draw_figure1(path: str | Path, slip: float = 0.3, seed: int = 0) -> None:
    """The paper's Figure 1: where the greedy policies of exact values, of UVD and of HER lead.

    The width and strength of an arrow is the expected number of such steps in an episode, red where
    it is a fall; the numbers in the cliff are the probabilities of falling there.
    """
    grid = Grid(slip=slip)
    believed = {
        "Exact values": cliffwalk.optimal_values(grid),
        "UVD": learn(grid, "uvd", seed).q,
        "HER as the paper words it": learn(grid, "her-paper", seed).q,
    }
    model = cliffwalk.true_model(grid)
    reward = cliffwalk.goal_reward(model, grid.gamma)
    fig = Figure(figsize=(11, 3.0), layout="constrained")
    for ax, (title, q) in zip(fig.subplots(1, len(believed)), believed.items()):
        policy = cliffwalk.greedy(q)
        value = q[grid.start, :, grid.goal].max()
        true = cliffwalk.evaluate(model, reward, policy, grid.gamma)[grid.start, grid.goal]
        reached = 100 * cliffwalk.success(grid, policy).final
        numbers = f"value {value:.2f} believed, {true:.2f} true; success {reached:.1f} %"
        ax.set_title(f"{title}\n{numbers}", fontsize=10)
        _draw_walk(ax, grid, cliffwalk.flow(grid, policy))
    fig.savefig(path, dpi=200, bbox_inches="tight")


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
