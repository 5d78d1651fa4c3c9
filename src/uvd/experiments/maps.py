"""Figures of places: the density over goals from one state, paths around the pit."""

from collections.abc import Callable, Sequence
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

from uvd import api
from uvd.agents import get_algorithm
from uvd.agents.td3 import HEADS, critic_outputs
from uvd.agents.uvd import SHORT, UVDConfig, UVDState, learns_long, long_horizon, make_density
from uvd.collect import worker
from uvd.collect.device import Exploration, explore, rollouts
from uvd.collect.worker import EVAL, Job
from uvd.core.policy import Policy, act
from uvd.core.errors import UserError
from uvd.experiments.curves import run_labels, save
from uvd.training.on_workers import Lagged
from uvd.runs import Run
from uvd.settings import override
from uvd.tasks import TASKS, point
from uvd.tasks.goalenv import GoalTask, make_env
from uvd.tasks.task import Task

PIT_COLOR, FELL, REACHED, LOST = "#3a3a3a", "#d55e00", "#0072b2", "#999999"


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
    run: Path, out: Path, seed: int | None = None, episode: int = 0, step: int | None = None
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
    seed = trained.seeds[0] if seed is None else seed
    state = trained.seed_state(seed)
    agent: UVDState = state.state if isinstance(state, Lagged) else state
    config: UVDConfig = override(get_algorithm("uvd").config(), trained.run.config["settings"])
    density = make_density(config, plan.spec)
    head = HEADS[config.td3.critic_head](density.bound, config.td3.critic_start)
    how = Exploration(config.td3.noise, config.td3.random, config.td3.hold)
    policy = plan.agent.result(state)
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
        td3, normed = agent.td3, config.td3.critic_norm
        return head.value(critic_outputs(td3.critic, td3.norm, obs, goals, best, normed)).min(0)

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
    save(figure, out)


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
                plan.task, Exploration(), plan.agent.result(state), jax.random.key(1),
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
    save(figure, out)
