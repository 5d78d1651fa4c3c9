"""Figures of places: the density over goals from one state, paths around the pit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from uvd import api
from uvd.agents.actor_critic import ActorCritic
from uvd.agents.futures import SHORT_TERM, Context, long_term
from uvd.agents.goal_density import GoalDensity
from uvd.agents.heads import make_head
from uvd.collect import worker
from uvd.collect.exploration import Exploration
from uvd.core.config import require
from uvd.core.policy import Policy, act
from uvd.experiments.curves import legend_below, method_name, save
from uvd.runs import Run
from uvd.tasks import point
from uvd.tasks.env import EnvTask, make_env
from uvd.tasks.task import Task
from uvd.training.learner import exploration_at

CLIFF = "PointCliff-v0"
GRID = 81  # goals along an edge of a map
EDGE = 1.05  # the maps reach a little beyond the walls at ±1
ROLLOUTS = 400  # from which the map of what was reached is made
PATHS = 12  # without exploration, drawn over it
REPEATS = 40  # roll-outs of an environment, whose steps take longer
MOVED = 1e-3  # metres or whatever the goal's unit is
NARROW = 0.05  # kernel of the map of what was reached, where the density was trained without one
PIT_COLOR, FELL, REACHED, LOST = "#3a3a3a", "#d55e00", "#0072b2", "#999999"
DRAWN = 60  # paths in a panel: enough to see the way, few enough to see each

Style = dict[str, Any]
POINT_MARK: Style = {"marker": "o", "mfc": "white", "mec": "black", "ms": 6}
PUCK_MARK: Style = {"marker": "s", "mfc": "#f5c8dc", "mec": "black", "ms": 7}
GOAL_MARK: Style = {"marker": "*", "mfc": "#ff7043", "mec": "white", "ms": 11}
# On a dark ground, like the maps: most marks are white.
LEGEND: Style = {"facecolor": "#3b3b52", "labelcolor": "white", "framealpha": 1.0, "fontsize": 8}


class Scene(NamedTuple):
    """What a density map is drawn for: a state, the action there, and what really follows."""

    step: int
    obs: np.ndarray
    action: np.ndarray
    achieved: np.ndarray
    goal: np.ndarray
    reached: np.ndarray  # [all later steps of all roll-outs, goal], exploring as in training
    paths: Any  # without exploration, each [step, goal]
    how: str = "exploring as in training"


def _require_step(step: int, steps: int) -> None:
    require(step < steps, f"step = {step} is outside the episode: take 0 to {steps - 1}")


def point_scene(task: Task, policy: Policy, how: Exploration, episode: int, step: int) -> Scene:
    """Plays the episode up to the step, and from there on to its end, many times."""
    _require_step(step, task.horizon)
    key = jax.random.fold_in(jax.random.key(3), episode)
    key_start, key_noise, key_explore, key_clean = jax.random.split(key, 4)

    @jax.jit
    def move(state: Any, key: jax.Array) -> Any:
        return task.step(state, act(policy, task.observe(state), task.goal(state)), key)

    state = task.reset(key_start)
    for key in jax.random.split(key_noise, task.horizon)[:step]:
        state = move(state, key)
    # Episodes that begin with the outcome of the action.
    later = task._replace(reset=lambda key: move(state, key), horizon=task.horizon - step - 1)
    reached, paths = (
        np.asarray(api.device_rollouts(later, how, policy, key, ROLLOUTS).achieved)
        for how, key in ((how, key_explore), (Exploration(), key_clean))
    )
    obs, achieved, goal = (np.asarray(f(state)) for f in (task.observe, task.achieved, task.goal))
    action = act(policy, obs, goal)
    reached = reached.reshape(-1, task.goal_dim)
    return Scene(step, obs, action, achieved, goal, reached, paths[:PATHS])


def env_scene(
    task: EnvTask, policy: Policy, how: Exploration, episode: int, step: int | None
) -> Scene:
    """Plays an evaluation episode, and again from the step on, with other exploration and noise.

    Without a step, the one before what is achieved first changes: the hand is at the object then.
    An environment that does not repeat itself leaves only the episode itself.
    """
    env, job = make_env(task), worker.Job(0, 0, worker.EVAL, episode)
    played = worker.play(task, env, policy, job)
    if step is None:
        moved = np.linalg.norm(played.achieved - played.achieved[0], axis=1) > MOVED
        step = max(int(moved.argmax()) - 1, 0)
    _require_step(step, len(played.action))

    def again(number: int) -> np.ndarray | None:
        """What is achieved after the step; None where the way to it was another."""
        rng = np.random.default_rng(number)
        raw, _ = env.reset(seed=worker.randomness(job)[0])
        for action in played.action[:step]:
            raw = env.step(task.env_action(action))[0]
        if not np.array_equal(np.float32(raw["observation"]), played.obs[step]):
            return None
        env.unwrapped.np_random = rng  # noise of its own from here on
        action, is_random, path = played.action[step], False, []
        for _ in range(task.horizon - step):
            taken = np.clip(action, -1, 1)
            raw, _, terminated, truncated, _ = env.step(task.env_action(taken))
            obs, achieved, goal = task.split(raw, taken)
            path.append(achieved)
            if terminated or truncated:
                break
            action, is_random = worker.behave(task, policy, how, rng, obs, goal, action, is_random)
        return np.array(path)

    repeats = [path for path in map(again, range(REPEATS)) if path is not None]
    env.close()
    later = played.achieved[step:]
    here = (played.obs[step], played.action[step], played.achieved[step], played.goal)
    if not repeats:
        how_words = "this episode only: it cannot be repeated"
        return Scene(step, *here, later[1:], [later], how_words)
    return Scene(step, *here, np.concatenate(repeats), [later])


class Map(NamedTuple):
    """One panel of a density map."""

    title: str
    values: jax.Array  # [goals]
    scale: str  # what the values are; maps of one scale share their colours


def make_maps(trained: api.Trained, seed: int, scene: Scene, goals: jax.Array) -> list[Map]:
    """For goals `[N, goal]`: how often they were reached, the density F that learned it, and Q."""
    plan, config = trained.plan, trained.plan.config.settings
    density = GoalDensity(config.density, plan.spec, config.td3.optimiser, config.td3.gamma)
    kernel = density.kernel
    head = make_head(config.td3.critic_head, density.bound, config.td3.critic_start)
    ac = ActorCritic(config.td3, head, plan.spec)
    state, updates = trained.seed_state(seed).agent, jnp.asarray(_updates(trained))
    norm, rows = state.td3.norm, (scene.obs, scene.action, scene.achieved, scene.goal)
    context = Context(*(jnp.tile(x, (len(goals), 1)) for x in rows))
    width = kernel.width(updates) if config.density.smoothing else NARROW

    def soft_success(goal: jax.Array) -> jax.Array:
        gap = (goal - scene.reached)[:, kernel.columns] / (width * kernel.unit)
        return jnp.exp(-(gap**2).sum(-1) / 2).mean()

    def learned(time_code: jax.Array | float) -> jax.Array:
        log_f = density.log_prob(state.flow, norm, context, goals, time_code)
        return density.scaled(log_f, updates) / density.bound

    title = f"really reached, all later steps\n({scene.how})"
    soft, steps = "soft probability of achieving g", config.density.lookahead
    maps = [Map(title, jax.lax.map(soft_success, goals), soft)]
    if config.goals.needs_long_spans:
        title = "F learned, all later steps\n(proposes goals)"
        spans = long_term(jnp.arange(1, plan.task.horizon + 1))
        maps.append(Map(title, jax.lax.map(learned, spans).mean(0), soft))
    ahead = f"next {steps} steps" if steps > 1 else "next step"
    title, now = f"F learned, {ahead}\n(enters the target)", learned(SHORT_TERM)
    maps.append(Map(title, now, f"{soft}, {ahead}"))
    action = ac.action(state.td3.actor_target, norm, context.obs, goals)
    outputs = ac.critic_outputs(state.td3.critic, norm, context.obs, goals, action)
    value = head.value(outputs).min(0) / density.bound
    return [*maps, Map("the critic: Q(s, μ(s; g); g)", value, "share of its bound")]


def _updates(trained: api.Trained) -> int:
    """Updates that the run has made."""
    schedule = trained.plan.schedule
    return max(schedule.updates_before(trained.step // schedule.steps), 0)


def draw_density(
    run: Path, out: Path, seed: int | None = None, episode: int = 0, step: int | None = None
) -> None:
    """Density maps from one state.

    F is drawn as the algorithm uses it, in units of its kernel's peak: the expectation of
    exp(-|g - achieved|² / 2 smoothing²), a soft probability of achieving g. What was reached is
    that same expectation over roll-outs with the exploration of training, which is what F models.
    Of goals with more than two dimensions the first two are drawn, the others as they are now.
    """
    for name, number in (("episode", episode), ("step", step or 0)):
        require(number >= 0, f"{name} = {number} must not be negative")
    algorithm = Run.open(run).config["algorithm"]
    require(algorithm == "uvd", f"density maps need a run of uvd, {run} is of {algorithm}")
    trained = api.load(run)
    task = trained.plan.task
    require(task.goal_dim >= 2, f"density maps need goals of two dimensions, {task.id} has one")
    seed = trained.seeds[0] if seed is None else seed
    policy = trained.policy(seed).policy
    how = exploration_at(trained.plan.collect, _updates(trained))
    radius = trained.plan.spec.radius
    if isinstance(task, EnvTask):
        scene = env_scene(task, policy, how, episode, step)
    else:
        assert isinstance(task, Task)
        scene = point_scene(task, policy, how, episode, step or 0)
    marks = {"achieved": (scene.achieved, PUCK_MARK), "intended goal": (scene.goal, GOAL_MARK)}
    places_first = isinstance(task, Task) or ("Fetch" in task.id and task.obs_dim == 25)
    if places_first and not np.array_equal(scene.obs[:2], scene.achieved[:2]):
        marks = {"hand" if task.goal_dim > 2 else "point": (scene.obs, POINT_MARK), **marks}
    centre, half = np.zeros(2), EDGE
    if isinstance(task, EnvTask):
        centre = scene.achieved[:2]
        far = np.quantile(abs(scene.reached - scene.achieved)[:, :2].max(1), 0.98)
        marked = max(abs(place[:2] - centre).max() for place, _ in marks.values())
        half = 1.1 * max(far, marked + (radius or 0.0), MOVED)
    xy = np.stack(np.meshgrid(*(np.linspace(x - half, x + half, GRID) for x in centre)), -1)
    goals = np.tile(scene.achieved, (GRID * GRID, 1))
    goals[:, :2] = xy.reshape(-1, 2)
    maps = make_maps(trained, seed, scene, jnp.asarray(goals))

    figure, axes = _panels(len(maps))
    box = (centre[0] - half, centre[0] + half, centre[1] - half, centre[1] + half)
    for ax, m in zip(axes, maps):
        largest = max(float(other.values.max()) for other in maps if other.scale == m.scale)
        # The root of the value as brightness: what is rare but possible stays visible.
        norm = PowerNorm(0.5, 0.0, max(1e-6, largest))
        square = np.asarray(m.values).reshape(GRID, GRID)
        image = ax.imshow(square, origin="lower", extent=box, norm=norm)
        figure.colorbar(image, ax=ax, shrink=0.8).set_label(m.scale, fontsize=9)
        ax.set_title(m.title, fontsize=10)
        for place, mark in marks.values():
            ax.plot(*place[:2], ls="", zorder=5, **mark)
        if radius is not None:
            ax.add_patch(Circle(tuple(scene.goal[:2]), radius, fill=False, ec="white", zorder=4))
        if task.id == CLIFF:
            ax.add_patch(_pit(fill=False, ec="white", lw=1, ls="--"))
        ax.set(xlim=box[:2], ylim=box[2:])
        ax.locator_params(nbins=4)
    legend = {name: {"ls": "", **mark} for name, (_, mark) in marks.items()}
    legend["paths without exploration"] = {"color": "white", "lw": 0.8}
    for path in scene.paths:
        axes[0].plot(*path[:, :2].T, color="white", lw=0.5, alpha=0.7)
    if isinstance(task, EnvTask):
        legend["reached"] = {"ls": "", "marker": ".", "color": "#cc79a7"}
        axes[0].plot(*scene.reached[:, :2].T, ms=1.5, **legend["reached"])
    if task.id == CLIFF:
        legend["pit"] = {"color": "white", "lw": 1, "ls": "--"}
    handles = [Line2D([], [], label=name, **style) for name, style in legend.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), **LEGEND)
    figure.suptitle(f"{task.id}, seed {seed}, episode {episode}, step {scene.step}", fontsize=11)
    save(figure, out)


def _panels(many: int) -> tuple[Figure, list[Axes]]:
    """A figure of as many panels, two beside each other."""
    columns, rows = min(many, 2), -(-many // 2)
    figure = Figure(figsize=(0.4 + 4 * columns, 0.8 + 3.6 * rows), layout="compressed")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for ax in axes[many:]:
        ax.remove()
    return figure, axes[:many]


def _pit(**style: Any) -> Rectangle:
    left, right, top = point.PIT
    return Rectangle((left, -1.0), right - left, top + 1.0, **style)


def draw_paths(runs: Sequence[Path], out: Path) -> None:
    """PointCliff's evaluation episodes, a panel a run: ways round the pit, falls into it."""
    require(runs, "there are no runs to draw")
    for path in runs:
        task = Run.open(path).config["task"]
        require(task == CLIFF, f"{path} is of {task}; paths are drawn over the pit of {CLIFF}")
    figure, axes = _panels(len(runs))
    for ax, path in zip(axes, runs):
        _draw_run_paths(ax, api.load(path))
    lines = {
        "at the goal in the end": Line2D([], [], color=REACHED),
        "fell into the pit": Line2D([], [], color=FELL, marker="x"),
        "neither": Line2D([], [], color=LOST),
        "start": Line2D([], [], ls="", marker=".", color="0.2"),
        "goal": Line2D([], [], ls="", marker="*", mfc="#f0e442", mec="0.2", ms=8),
    }
    legend_below(figure, lines, 5 if len(runs) > 1 else 2)
    save(figure, out)


def _draw_run_paths(ax: Axes, trained: api.Trained) -> None:
    """The evaluation episodes of all seeds."""
    task, key, number = trained.plan.task, jax.random.key(1), trained.plan.run.eval_episodes
    policies = [trained.policy(seed).policy for seed in trained.seeds]
    played = [api.device_rollouts(task, Exploration(), p, key, number) for p in policies]
    paths, goals, success = (
        np.concatenate([getattr(e, name) for e in played])
        for name in ("achieved", "goal", "success")
    )
    left, right, top = point.PIT
    (x, y), reached = paths[:, -1].T, success[:, -1]
    fell = (x > left) & (x < right) & (y < top)
    percent = f"reached {100 * reached.mean():.0f} %, fell {100 * fell.mean():.0f} %"
    ax.set_title(f"{method_name(trained.run)}\n{percent}", fontsize=11)
    ax.add_patch(_pit(fc=PIT_COLOR, ec="none"))
    for i in range(0, len(paths), max(1, len(paths) // DRAWN)):
        path, goal, down, there = paths[i], goals[i], fell[i], reached[i]
        color = FELL if down else REACHED if there else LOST
        ax.plot(*path.T, color=color, lw=0.7, alpha=0.9 if down else 0.45, zorder=2 + down)
        ax.plot(*path[0], ".", color="0.2", ms=3, zorder=4)
        ax.plot(*goal, "*", mfc="#f0e442", mec="0.2", mew=0.4, ms=7, zorder=4)
        if down:
            ax.plot(*path[-1], "x", color=FELL, ms=5, zorder=5)
    ax.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
    ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
