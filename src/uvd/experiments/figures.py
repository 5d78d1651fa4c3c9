"""Figures from run folders: learning curves, the density over goals, paths around the pit."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import MaxNLocator

from uvd import api
from uvd.agents import get_algorithm
from uvd.agents.td3 import HEADS, critic_outputs
from uvd.agents.uvd import SHORT, UVDConfig, UVDState, learns_long, long_horizon, make_density
from uvd.collect import worker
from uvd.collect.device import Exploration, explore, rollouts
from uvd.collect.worker import EVAL, Job
from uvd.core.policy import Policy, act
from uvd.demos import Demos
from uvd.errors import UserError, nearest
from uvd.experiments import statistics
from uvd.host import Lagged
from uvd.runs import Run
from uvd.settings import override
from uvd.tasks import TASKS, point
from uvd.tasks.goalenv import GoalTask, make_env
from uvd.tasks.task import Task

# Okabe and Ito's palette, which colour-blind readers tell apart. An algorithm keeps its colours in
# every figure: the first is its own, the others are for variants (HER: one for each strategy).
COLORS: dict[str, tuple[str, ...]] = {
    "td3": ("#777777", "#aaaaaa", "#444444", "#c4c4c4"),
    "her": ("#e69f00", "#d55e00", "#cc79a7", "#8c6d1f"),
    "uvd": ("#0072b2", "#56b4e9", "#003f66", "#5e7fa8"),
}
OTHERS = ("#009e73", "#000000", "#8a5fbf", "#66b39a")  # algorithms without colours of their own
HER_COLORS = {"future": 0, "paper": 1, "final": 2, "episode": 3}
DASHES = ("-", "--", "-.", ":")
PIT_COLOR, FELL, REACHED, LOST = "#3a3a3a", "#d55e00", "#0072b2", "#999999"
AXIS_NAMES = {
    "eval/success_final": "success at the final step",
    "eval/success_ever": "success at any step",
    "eval/return": "return",
}
MANY = 3  # from this many differing settings on, a run is called by its preset


def task_name(config: Mapping[str, Any]) -> str:
    """A run's task, with those of its settings that are not its defaults."""
    changed = [f"{name} {value}" for name, value in config.get("task_settings", {}).items()]
    return config["task"] + (f" ({', '.join(changed)})" if changed else "")


def run_labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each run: its algorithm, and what sets it apart from others of that algorithm."""
    names = []
    for config in configs:
        kin = [c for c in configs if c["algorithm"] == config["algorithm"]]
        differ = [
            name
            for name, value in config["settings"].items()
            if any(c["settings"].get(name, value) != value for c in kin)
        ]
        if len(differ) >= MANY and len({c["preset"] for c in kin}) > 1:
            parts = [f"preset {config['preset']}"]
        else:
            parts = [
                str(config["settings"][name])
                if name == "strategy"
                else f"{name} {config['settings'][name]}"
                for name in differ
            ]
        names.append(config["algorithm"].upper() + (f" ({', '.join(parts)})" if parts else ""))
    return names


class Style(NamedTuple):
    """How a run is drawn."""

    color: str
    dashes: str


def run_styles(configs: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> dict[str, Style]:
    """A colour and a line for each label; the same label looks the same in every figure."""
    styles: dict[str, Style] = {}
    places = {name: count() for name in [*COLORS, "others"]}
    for config, label in sorted(zip(configs, labels), key=lambda pair: pair[1]):
        if label in styles:
            continue
        algorithm = config["algorithm"]
        palette = COLORS.get(algorithm, OTHERS)
        place = next(places[algorithm if algorithm in COLORS else "others"])
        if algorithm == "her":
            place = HER_COLORS.get(config["settings"]["strategy"], place)
        styles[label] = Style(palette[place % len(palette)], DASHES[place % len(DASHES)])
    return styles


def _metric(run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps of the reports that have the metric, and its values `[seeds, reports]`."""
    rows = run.rows()
    if not rows:
        raise UserError(f"{run.path} has no reports yet; go on with: uvd train --resume {run.path}")
    having = [row for row in rows if isinstance(row.get(metric), list)]
    if not having:
        known = {name for row in rows for name, value in row.items() if isinstance(value, list)}
        raise nearest(metric, known, f"metric of {run.path}")
    values = np.array([row[metric] for row in having], float).T  # None, not finite, becomes NaN
    return np.array([row["step"] for row in having]), values


def _reports(run: Run, metric: str) -> bool:
    return any(isinstance(row.get(metric), list) for row in run.rows())


def _pooled(runs: Sequence[Run], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Runs that differ in their seeds only, as one: at the steps that all of them report."""
    found = [_metric(run, metric) for run in runs]
    steps = found[0][0]
    for other, _ in found[1:]:
        steps = np.intersect1d(steps, other)
    if not len(steps):
        names = ", ".join(str(run.path) for run in runs)
        raise UserError(f"{names} have the same settings but report at no common step")
    return steps, np.concatenate([values[:, np.isin(s, steps)] for s, values in found])


def _save(figure: Figure, out: Path) -> None:
    out = Path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=160, bbox_inches="tight")
    except (OSError, ValueError) as error:  # ValueError: a format that Matplotlib does not write
        raise UserError(f"cannot write {out}: {error}") from error


def main_metric(runs: Sequence[Path]) -> str:
    """What to draw of runs if nothing is asked for: the return where none of them has goals."""
    rewarded = runs and all(_reports(Run.open(path), "eval/return") for path in runs)
    return "eval/return" if rewarded else "eval/success_final"


def draw_curves(
    runs: Sequence[Path],
    out: Path,
    metric: str = "eval/success_final",
    titles: Mapping[str, str] | None = None,
    columns: int = 3,
) -> None:
    """Learning curves, a panel a task: interquartile mean over seeds, bootstrap 95 % bands.

    `titles` gives tasks other names than their ids.
    """
    tasks = list(dict.fromkeys(task_name(Run.open(path).config) for path in runs))
    columns = min(len(tasks), columns)
    _draw_panels(runs, out, [(task, metric) for task in tasks], columns, titles or {})


def draw_watched(
    runs: Sequence[Path], out: Path, metrics: Sequence[str], titles: Mapping[str, str] | None = None
) -> None:
    """Several metrics of the same runs: a row a metric, a column a task."""
    tasks = list(dict.fromkeys(task_name(Run.open(path).config) for path in runs))
    panels = [(task, metric) for metric in metrics for task in tasks]
    _draw_panels(runs, out, panels, len(tasks), titles or {})


def _draw_panels(
    runs: Sequence[Path],
    out: Path,
    panels: Sequence[tuple[str, str]],
    columns: int,
    titles: Mapping[str, str],
) -> None:
    """A panel for each task and metric, with those of the runs that report it."""
    if not runs:
        raise UserError("there are no runs to draw")
    opened = [Run.open(path) for path in runs]
    configs = [run.config for run in opened]
    labels = run_labels(configs)
    styles = run_styles(configs, labels)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(0.6 + 4.2 * columns, 0.8 + 3.1 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    shown: dict[str, Line2D] = {}
    alone = len({metric for _, metric in panels}) == 1
    for place, (ax, (task, metric)) in enumerate(zip(axes.flat, panels)):
        groups: dict[str, list[Run]] = {}
        for run, label in zip(opened, labels):
            if task_name(run.config) == task and (alone or _reports(run, metric)):
                groups.setdefault(label, []).append(run)
        seeds = set()
        for label, group in groups.items():
            steps, values = _pooled(group, metric)
            seeds.add(len(values))
            middle, low, high = statistics.curve(values)
            color, dashes = styles[label]
            thousands = steps / 1000
            ax.fill_between(thousands, low, high, color=color, alpha=0.18, lw=0)
            (shown[label],) = ax.plot(thousands, middle, dashes, color=color, lw=1.8)
        if place < columns or alone:
            many = "–".join(str(n) for n in sorted({min(seeds), max(seeds)})) if seeds else "no"
            plural = "" if seeds == {1} else "s"
            ax.set_title(f"{titles.get(task, task)}, {many} seed{plural}", fontsize=11)
        ax.set(xlabel="environment steps, thousands", xlim=(0, None))
        if metric in AXIS_NAMES and metric != "eval/return":
            ax.set(ylim=(-0.02, 1.02))
        if place % columns == 0:
            ax.set_ylabel(AXIS_NAMES.get(metric, metric))
        ax.grid(color="0.92")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    ordered = sorted(shown)
    figure.legend(
        [shown[label] for label in ordered],
        ordered,
        loc="outside lower center",
        ncols=min(len(ordered), 2 * columns),
        frameon=False,
    )
    _save(figure, out)


def _load(path: Path, fits: Callable[[dict[str, Any]], bool], kind: str) -> api.Trained:
    """A trained run, refused before it is restored if the figure cannot show it."""
    config = Run.open(path).config
    if not fits(config):
        raise UserError(f"{path} is {config['algorithm']} on {config['task']}; {kind}")
    return api.load(path)


GRID = 81  # goals along an edge of a map
EDGE = 1.05  # the maps reach a little beyond the walls at ±1
ROLLOUTS = 400  # from which the map of what was reached is made
PATHS = 12  # drawn over it
REPEATS = 40  # the same for an environment, whose steps take longer
MOVED = 1e-3  # metres or whatever the goal's unit is
NARROW = 0.05  # kernel of the map of what was reached, where the density was trained without one


Marks = dict[str, tuple[np.ndarray, dict[str, Any]]]  # places in a map, and how they are marked


class Scene(NamedTuple):
    """What a density map is drawn for: a state, the action there, and what really follows."""

    step: int
    obs: jax.Array
    action: jax.Array
    achieved: jax.Array
    goal: jax.Array
    reached: jax.Array  # [all later steps of all roll-outs, goal], exploring as in training
    clean: Sequence[np.ndarray]  # paths without exploration
    marks: Marks
    centre: tuple[float, float]  # of the maps
    half: float  # of their edges
    how: str  # the roll-outs, in words


def _point_scene(task: Task, policy: Policy, how: Exploration, episode: int, step: int) -> Scene:
    """Plays the episode up to the step, and from there on to its end, many times."""
    if step >= task.horizon:
        raise UserError(f"step = {step} is outside the episode: take 0 to {task.horizon - 1}")

    def act_on(policy: Policy, state: point.World) -> jax.Array:
        return act(policy, task.observe(state), task.goal(state))

    def follow(
        policy: Policy, how: Exploration, state: point.World, action: jax.Array, key: jax.Array
    ) -> jax.Array:
        """What is achieved after (state, action) until the episode ends."""

        def go(carry: tuple[point.World, jax.Array, jax.Array], key: jax.Array):
            state, last, wild = carry
            key_explore, key_task = jax.random.split(key)
            taken, wild = explore(how, key_explore, act_on(policy, state), last, wild)
            state = task.step(state, taken, key_task)
            return (state, taken, wild), task.achieved(state)

        keys = jax.random.split(key, task.horizon - step)
        first = task.step(state, action, keys[0])
        _, later = jax.lax.scan(go, (first, action, jnp.zeros((), bool)), keys[1:])
        return jnp.concatenate([task.achieved(first)[None], later])

    @jax.jit
    def play(policy: Policy, key: jax.Array) -> tuple[point.World, jax.Array, Any, Any]:
        key_start, key_noise, key_after, key_clean = jax.random.split(key, 4)
        state, _ = jax.lax.scan(
            lambda s, k: (task.step(s, act_on(policy, s), k), None),
            task.reset(key_start),
            jax.random.split(key_noise, task.horizon)[:step],
        )
        action = act_on(policy, state)
        reached, clean = (
            jax.vmap(lambda k, how=how: follow(policy, how, state, action, k))(
                jax.random.split(key, n)
            )
            for how, key, n in ((how, key_after, ROLLOUTS), (Exploration(), key_clean, PATHS))
        )
        return state, action, reached, clean

    key = jax.random.fold_in(jax.random.key(3), episode)
    state, action, reached, clean = play(policy, key)
    return Scene(
        step, task.observe(state), action, task.achieved(state), task.goal(state),
        reached.reshape(-1, 2), list(np.asarray(clean)), _marks(task, state), (0.0, 0.0), EDGE,
        "exploring as in training",
    )  # fmt: skip


def _env_scene(
    task: GoalTask, policy: Policy, how: Exploration, episode: int, step: int | None
) -> Scene:
    """Plays an evaluation episode, and again from the step on, with other exploration and noise.

    Without a step, the one before what is achieved first changes: the hand is at the object then.
    An environment that does not repeat itself leaves only the episode itself.
    """
    env, job = make_env(task), Job(0, 0, EVAL, episode)
    played = worker.play(task, env, policy, job)
    if step is None:
        moved = np.linalg.norm(played.achieved - played.achieved[0], axis=1) > MOVED
        step = max(int(moved.argmax()) - 1, 0)
    if step >= len(played.action):
        last = len(played.action) - 1
        raise UserError(f"step = {step} is outside the episode: take 0 to {last}")

    def again(number: int) -> np.ndarray | None:
        """What is achieved after the step; None where the way to it was another."""
        rng = np.random.default_rng(number)
        seen, _ = env.reset(seed=worker.randomness(job)[0])
        for action in played.action[:step]:
            seen = env.step(task.own_action(action))[0]
        if not np.array_equal(np.float32(seen["observation"]), played.obs[step]):
            return None
        env.unwrapped.np_random = rng  # noise of its own from here on
        action, wild, path = played.action[step], False, []
        for _ in range(task.horizon - step):
            seen, _, terminated, truncated, _ = env.step(task.own_action(action))
            path.append(np.float32(seen["achieved_goal"]))
            if terminated or truncated:
                break
            greedy = act(policy, np.float32(seen["observation"]), played.goal)
            action, wild = worker.explore(how, rng, greedy, action, wild)
        return np.array(path)

    repeats = [again(number) for number in range(REPEATS)]
    env.close()
    paths = [path for path in repeats if path is not None]
    words = "exploring as in training" if paths else "this episode only: it cannot be repeated"
    later = played.achieved[step + 1 :]
    reached = np.concatenate(paths or [later])
    here, goal = played.achieved[step], played.goal
    marks: Marks = {"achieved": (here[:2], PUCK_MARK), "intended goal": (goal[:2], GOAL_MARK)}
    if "Fetch" in task.id and task.obs_dim == 25:
        marks = {"hand": (played.obs[step, :2], POINT_MARK)} | marks
    marked = max(float(abs(place - here[:2]).max()) for place, _ in marks.values())
    far = float(np.quantile(abs(reached - here)[:, :2].max(1), 0.98))  # some fall off the table
    half = 1.1 * max(marked + (task.reward.radius or 0.0), far, MOVED)
    return Scene(
        step, jnp.asarray(played.obs[step]), jnp.asarray(played.action[step]), jnp.asarray(here),
        jnp.asarray(goal), jnp.asarray(reached), [played.achieved[step:, :2]], marks,
        (float(here[0]), float(here[1])), half, words,
    )  # fmt: skip


def draw_density(
    run: Path, out: Path, seed: int = 0, episode: int = 0, step: int | None = None
) -> None:
    """Over all goals, from one state: what is really reached, the density F that learned it, and Q.

    F is shown as the algorithm uses it, in units of its kernel's peak: the expectation of
    exp(-|g - achieved|² / 2 smoothing²), a soft probability of achieving g. What was reached is
    that same expectation over roll-outs with the exploration of training, which is what F models.
    Of goals with more than two dimensions the first two are drawn, the others as they are now.
    """
    trained = _load(
        run,
        lambda c: (
            c["algorithm"] == "uvd" and (c["task"] not in TASKS or c["task"].startswith("Point"))
        ),
        "density maps need a run of uvd on a point task or an environment",
    )
    task, plan = trained.plan.task, trained.plan
    assert isinstance(task, Task | GoalTask)
    if task.goal_dim < 2:
        raise UserError(f"density maps need goals of two dimensions, {task.id} has one")
    for name, number in (("episode", episode), ("step", step or 0)):
        if number < 0:
            raise UserError(f"{name} = {number} must not be negative")
    state = trained.seed_state(seed)
    agent: UVDState = state.state if isinstance(state, Lagged) else state
    config: UVDConfig = override(get_algorithm("uvd").config(), trained.run.config["settings"])
    density = make_density(config, plan.spec)
    head = HEADS[config.td3.critic_head](density.bound, config.td3.critic_start)
    how = Exploration(config.td3.noise, config.td3.random, config.td3.hold)
    policy = plan.agent.policy(state)
    if isinstance(task, GoalTask):
        scene = _env_scene(task, trained.policy(seed).policy, how, episode, step)
    else:
        scene = _point_scene(task, policy, how, episode, step or 0)

    axes_xy = [jnp.linspace(at - scene.half, at + scene.half, GRID) for at in scene.centre]
    xy = jnp.stack(jnp.meshgrid(*axes_xy), -1).reshape(-1, 2)
    goals = jnp.broadcast_to(scene.achieved, (len(xy), task.goal_dim)).at[:, :2].set(xy)
    cycles = trained.step // plan.steps_per_cycle
    updates = jnp.asarray(max(cycles - plan.warm_cycles, 0) * plan.updates_per_cycle)

    def repeated(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x, (len(goals), *x.shape))

    def learned(horizon: jax.Array | float) -> jax.Array:
        log_f = density.log_prob(
            agent.flow, agent.td3.norm, repeated(scene.obs), repeated(scene.action),
            repeated(scene.achieved), goals, repeated(scene.goal),
            jnp.full((len(goals), 1), horizon),
        )  # fmt: skip
        scaled = jnp.exp(jnp.minimum(log_f + density.log_scale(updates), jnp.log(density.bound)))
        return scaled / density.bound

    def real() -> jax.Array:
        width = density.smoothing(updates) if config.smoothing else NARROW
        unit = width * jnp.asarray(plan.spec.norm.goal_scale)

        # The kernel is a product over the dimensions, so its mean over all that was reached is a
        # product of matrices.
        def near(dim: int, at: jax.Array) -> jax.Array:
            return jnp.exp(-0.5 * ((at[..., None] - scene.reached[:, dim]) / unit[dim]) ** 2)

        x, y = (near(dim, axis) for dim, axis in enumerate(axes_xy))
        for dim in (d for d in plan.spec.live if d > 1):
            y = y * near(dim, scene.achieved[dim])
        return y @ x.T / len(scene.reached)

    def value() -> jax.Array:
        obs = repeated(scene.obs)
        best = act(policy, obs, goals)
        return head.value(critic_outputs(agent.td3.critic, agent.td3.norm, obs, goals, best)).min(0)

    ahead = f"next {config.horizon} steps" if config.horizon > 1 else "next step"
    panels = [(f"really reached, all later steps\n({scene.how})", real(), "F")]
    if learns_long(config):
        offsets = long_horizon(jnp.arange(1, plan.task.horizon + 1))
        later = jax.lax.map(learned, offsets).mean(0)
        panels.append(("F learned, all later steps\n(proposes goals)", later, "F"))
    panels.append((f"F learned, {ahead}\n(enters the target)", learned(SHORT), "near"))
    panels.append(("Q(s, μ(s; g); g)", value() / density.bound, "Q"))
    tops: dict[str, float] = {}
    for _, map_, scale in panels:
        tops[scale] = max(tops.get(scale, 0.0), float(map_.max()), 1e-6)

    figure = Figure(figsize=(0.4 + 3.4 * len(panels), 4.3), layout="compressed")
    axes = figure.subplots(1, len(panels), sharey=True)
    images: dict[str, tuple[list[Axes], AxesImage]] = {}
    for ax, (title, map_, scale) in zip(axes, panels):
        # The root of the value as brightness: what is rare but possible stays visible.
        image = ax.imshow(
            np.asarray(map_).reshape(GRID, GRID), origin="lower", cmap="viridis",
            extent=[float(axis[i]) for axis in axes_xy for i in (0, -1)],
            norm=PowerNorm(0.5, 0.0, tops[scale]),
        )  # fmt: skip
        images.setdefault(scale, ([], image))[0].append(ax)
        ax.set_title(title, fontsize=10)
        _mark(ax, task, scene)
    if isinstance(task, GoalTask):
        axes[0].plot(*np.asarray(scene.reached)[:, :2].T, ".", color="#cc79a7", ms=1.5)
    for path in scene.clean:
        axes[0].plot(*path.T, color="white", lw=0.5, alpha=0.7)
    names = {"F": "soft probability of achieving g", "near": "the same", "Q": "share of its bound"}
    for scale, (where, image) in images.items():
        figure.colorbar(image, ax=where, location="bottom", aspect=14 * len(where)).set_label(
            names[scale], fontsize=9
        )
    axes[-1].legend(handles=_legend(task, scene), **LEGEND)
    name = f"{task.id}, seed {seed}, episode {episode}, step {scene.step} of {task.horizon}"
    figure.suptitle(f"{name}: where does this state lead?", fontsize=11)
    _save(figure, out)


# On a dark ground, like the maps: most marks are white.
LEGEND: dict[str, Any] = {
    "loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "facecolor": "#3b3b52",
    "labelcolor": "white", "framealpha": 1.0, "fontsize": 8,
}  # fmt: skip
POINT_MARK: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": "black", "ms": 6}
PUCK_MARK: dict[str, Any] = {"marker": "s", "mfc": "#f5c8dc", "mec": "black", "ms": 7}
GOAL_MARK: dict[str, Any] = {"marker": "*", "mfc": "#ff7043", "mec": "white", "ms": 11}


def _marks(task: Task, state: point.World) -> Marks:
    marks = {"point": (np.asarray(state.point), POINT_MARK)}
    if not np.array_equal(
        task.achieved(state), state.point
    ):  # what is achieved is the puck's place
        marks["puck"] = (np.asarray(state.puck), PUCK_MARK)
    return marks | {"intended goal": (np.asarray(task.goal(state)), GOAL_MARK)}


def _mark(ax: Axes, task: Task | GoalTask, scene: Scene) -> None:
    for where, mark in scene.marks.values():
        ax.plot(*where, ls="", zorder=5, **mark)
    radius = task.reward.radius if isinstance(task, GoalTask) else task.radius
    if radius is not None:
        goal = (float(scene.goal[0]), float(scene.goal[1]))
        ax.add_patch(Circle(goal, radius, fill=False, ec="white", lw=1, zorder=4))
    if task.id == CLIFF:
        ax.add_patch(_pit(fill=False, ec="white", lw=1, ls="--"))
    (x, y), half = scene.centre, scene.half
    ax.set(xlim=(x - half, x + half), ylim=(y - half, y + half))
    if isinstance(task, Task):
        ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def _legend(task: Task | GoalTask, scene: Scene) -> list[Line2D]:
    handles = [Line2D([], [], ls="", label=name, **mark) for name, (_, mark) in scene.marks.items()]
    handles.append(Line2D([], [], color="white", lw=0.8, label="paths without\nexploration"))
    if isinstance(task, GoalTask):
        handles.append(Line2D([], [], ls="", marker=".", color="#cc79a7", label="reached"))
    if task.id == CLIFF:
        handles.append(Line2D([], [], color="white", lw=1, ls="--", label="pit"))
    return handles


CLIFF = "PointCliff-v0"


def _pit(**style: Any) -> Rectangle:
    left, right, top = point.PIT
    return Rectangle((left, -1.0), right - left, top + 1.0, **style)


DRAWN = 60  # paths in a panel: enough to see the way, few enough to see each


def draw_paths(runs: Sequence[Path], out: Path) -> None:
    """PointCliff's evaluation episodes, a panel a run: the ways round the pit, and who fell in."""
    loaded = [
        _load(path, lambda c: c["task"] == CLIFF, f"paths are drawn over the pit of {CLIFF}")
        for path in runs
    ]
    if not loaded:
        raise UserError("there are no runs to draw")
    labels = run_labels([trained.run.config for trained in loaded])
    left, right, top = point.PIT
    figure = Figure(figsize=(0.4 + 3.3 * len(loaded), 4.1), layout="compressed")
    axes = figure.subplots(1, len(loaded), squeeze=False, sharey=True)[0]
    for ax, trained, label in zip(axes, loaded, labels):
        plan = trained.plan
        assert isinstance(plan.task, Task)
        play = jax.vmap(
            lambda state, plan=plan: rollouts(
                plan.task, Exploration(), plan.agent.policy(state), jax.random.key(1),
                plan.run.eval_episodes,
            )
        )  # fmt: skip
        played = jax.tree.map(np.asarray, jax.jit(play)(trained.state))
        # [seed, episode, ...] -> episodes, those of all seeds in turn
        paths, goals = (
            np.concatenate(np.swapaxes(x, 0, 1)) for x in (played.achieved, played.goal)
        )
        end = paths[:, -1]
        fell = (end[:, 0] > left) & (end[:, 0] < right) & (end[:, 1] < top)
        reached = plan.task.success(end, goals)
        ax.set_title(
            f"{label}\nreached {100 * reached.mean():.0f} %, fell {100 * fell.mean():.0f} %",
            fontsize=11,
        )
        ax.add_patch(_pit(fc=PIT_COLOR, ec="none"))
        for path, goal, down, there in zip(paths[:DRAWN], goals, fell, reached):
            color = FELL if down else REACHED if there else LOST
            ax.plot(*path.T, color=color, lw=0.7, alpha=0.9 if down else 0.45, zorder=2 + down)
            ax.plot(*path[0], ".", color="0.2", ms=3, zorder=4)
            ax.plot(*goal, "*", mfc="#f0e442", mec="0.2", mew=0.4, ms=7, zorder=4)
            if down:
                ax.plot(*path[-1], "x", color=FELL, ms=5, zorder=5)
        ax.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
        ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    columns = 5 if len(loaded) > 1 else 2
    handles = [
        Line2D([], [], color=REACHED, label="at the goal in the end"),
        Line2D([], [], color=FELL, marker="x", label="fell into the pit"),
        Line2D([], [], color=LOST, label="neither"),
        Line2D([], [], ls="", marker=".", color="0.2", label="start"),
        Line2D([], [], ls="", marker="*", mfc="#f0e442", mec="0.2", ms=8, label="goal"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    _save(figure, out)


def draw_demos(demos: Demos, out: Path, features: int = 6, shown: int = 3) -> None:
    """Returns (lengths where there are no rewards), and a few features over time."""
    returns = demos.returns()
    bars = [t.steps for t in demos.trajectories] if returns is None else returns
    chosen = np.unique(np.linspace(0, demos.obs_dim - 1, features).astype(int))
    figure = Figure(figsize=(11, 2.6 + 1.1 * len(chosen)), layout="constrained")
    top, *rest = figure.subplots(
        1 + len(chosen), 1, height_ratios=[2] + [1] * len(chosen), squeeze=False
    )[:, 0]
    top.bar(np.arange(len(bars)), bars, color=OTHERS[0])
    top.xaxis.set_major_locator(MaxNLocator(integer=True))
    top.set_xlabel("trajectory")
    top.set_ylabel("steps" if returns is None else "return")
    top.set_title(Path(demos.name).name)
    for ax, feature in zip(rest, chosen):
        for t, color in zip(demos.trajectories[:shown], OTHERS):
            ax.plot(t.obs[:200, feature], color=color, linewidth=0.8)
        ax.set_ylabel(f"obs[{feature}]")
    for ax in rest[:-1]:
        ax.tick_params(labelbottom=False)
    rest[-1].set_xlabel(f"step (the first {min(shown, len(bars))} trajectories)")
    _save(figure, out)
