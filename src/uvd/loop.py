"""The one loop: collect, learn, evaluate, save; and go on where a killed run stopped.

The other half is a `Program`: compiled for a task on the device (`program.py`), with worker
processes for an environment (`host.py`). Between two calls of it this loop appends the finished
episodes to the run's log, checks every metric, and now and then evaluates and saves. A checkpoint
holds the learner and a position in the log: replaying the log up to there restores the ring, so a
resumed run ends with the same bits as one that was never interrupted.
"""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uvd.agents import get_algorithm
from uvd.agents.agent import Agent, Algorithm, Demos, Spec
from uvd.agents.td3 import TD3Config
from uvd.collect.worker import EVAL
from uvd.collect.workers import Workers, WorkersError
from uvd.core.policy import Norm
from uvd.core.replay import records, stacked
from uvd.errors import Stopped, UserError
from uvd.host import lagged, make_env_program, make_env_spec
from uvd.program import Learner, Program, aimless, make_program, make_spec, never
from uvd.progress import RunProgress
from uvd.runs import Run
from uvd.settings import DemoSettings, RunSettings, build, check, flatten, override, shared
from uvd.tasks import TASKS, Task, make_task
from uvd.tasks.goalenv import EnvTask, GoalTask
from uvd.tasks.rewardenv import RewardTask, env_task
from uvd.tasks.rewardenv import with_previous_action as env_with_previous_action
from uvd.tasks.task import with_previous_action

UPDATES_PER_CALL = 500  # short enough to answer Ctrl-C, long enough to hide the call


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything a run's settings determine."""

    task: Task | EnvTask
    spec: Spec
    agent: Agent
    td3: TD3Config
    run: RunSettings
    program: Program
    cycles_per_call: int
    cycles_per_report: int
    total_cycles: int
    warm_cycles: int
    updates_per_cycle: int  # of each seed, after the warm-up

    @property
    def steps_per_cycle(self) -> int:
        """Environment steps a seed makes in one cycle."""
        return self.run.envs * self.task.horizon


def find_task(name: str, settings: dict[str, Any]) -> Task | EnvTask:
    """The built-in task of that id, or else the environment."""
    return make_task(name, **settings) if name in TASKS else env_task(name, settings, TASKS)


def imitated(task: Task | EnvTask, asked: Mapping[str, Any]) -> Task | EnvTask:
    """The task as an imitator observes it: where asked for, with the action before."""
    if not asked.get("previous_action"):
        return task
    if isinstance(task, Task):
        return with_previous_action(task)
    assert isinstance(task, RewardTask)
    return env_with_previous_action(task)


def check_fit(
    name: str, algorithm: Algorithm, task: Task | EnvTask, asked: Mapping[str, Any]
) -> None:
    """Refuses an algorithm that cannot learn on such a task, or from what it is given."""
    if algorithm.learns_from == "demos":
        if task.goal_dim:
            raise UserError(f"{name} imitates, but {task.id} has goals: take a task without")
        if getattr(task, "told", 0):
            raise UserError(f"{name} imitates, but {task.id} tells its critics more: take another")
        if not asked.get("demos"):
            raise UserError(f"{name} needs demonstrations: give --demos FILE")
        return
    if not task.goal_dim and not algorithm.takes_rewards:
        raise UserError(
            f"{name} needs a task with goals, and {task.id} has none (td3 learns from its rewards)"
        )
    for given in asked:
        raise UserError(f"{name} does not imitate: leave out --{given.replace('_', '-')}")


def find_demos(
    name: str, algorithm: Algorithm, task: Task | EnvTask, asked: Mapping[str, Any]
) -> tuple[Demos, str]:
    """The demonstrated pairs as the task sees them, and a hash of all that they were taken from.

    `asked` are `DemoSettings`; `task` does not show the action before.
    """
    from uvd import demos as shown  # imports the simulators
    from uvd.formats import load_demos

    loaded = load_demos(asked["demos"])
    digest = shown.digest(loaded)
    told = shown.fit_demos(loaded, task.id, task.obs_dim, task.action_dim)
    if algorithm.needs_actions:
        shown.need_actions(told, name)

    def clip(action: np.ndarray) -> np.ndarray:
        return np.clip(action, -1, 1)

    def unit(t: shown.Trajectory) -> shown.Trajectory:
        if t.action is None:
            return t
        to_unit = task.unit_action if isinstance(task, EnvTask) else clip
        return dataclasses.replace(t, action=to_unit(t.action))

    told = dataclasses.replace(told, trajectories=tuple(map(unit, told.trajectories)))
    if asked.get("previous_action"):
        told = shown.with_previous_action(told)
    pairs = shown.select(
        told, asked.get("trajectories"), asked.get("every", 1), offset=asked.get("offset")
    )
    return Demos(pairs.obs, pairs.action, shown.followed(told, pairs)), digest


def draft_spec(task: Task | EnvTask, demos: Demos, cycle: int) -> Spec:
    """What an imitator is told, all but the feature ranges: enough for it to refuse."""
    sizes = (task.obs_dim, task.obs_dim, 0, 0)
    norm = Norm(*(np.full(n, x, np.float32) for n, x in zip(sizes, (0, 1, 0, 1))))
    every = tuple(range(task.obs_dim))
    return Spec(
        task.obs_dim, task.action_dim, 0, never, norm, (), rewards=True, demos=demos,
        live_obs=every, cycle=cycle,
    )  # fmt: skip


def make_config(
    algorithm: str,
    task: str,
    preset: str,
    run: dict[str, Any],
    settings: dict[str, Any],
    task_settings: dict[str, Any],
    demos: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `config.toml` holds: enough to run it again. Refuses what cannot work.

    `demos` are `DemoSettings` by name, those that were given.
    """
    config = build(algorithm, preset, settings)
    made = find_task(task, task_settings)
    asked = {k: v for k, v in (demos or {}).items() if v != getattr(DemoSettings, k)}
    entry = get_algorithm(algorithm)
    check_fit(algorithm, entry, made, asked)
    if not made.goal_dim and getattr(config, "critic_head", "linear") in ("tanh", "sigmoid"):
        # They need a range of values, which rewards do not come with.
        config = override(config, {"critic_head": "linear"})
    plan = override(RunSettings(), run)
    check(config, plan, made.horizon)
    cut = plan.episode_steps or plan.late_episode_steps
    if cut and not isinstance(made, EnvTask):
        raise UserError(f"{task} is played in whole episodes: leave out --episode-steps")
    if isinstance(made, GoalTask) and getattr(config, "combine", "") == "reward":
        made.success(*[np.zeros((1, made.goal_dim))] * 2)  # refuses where success is unknown
    # Reports keep their places when a run is later resumed to more steps.
    per_cycle = plan.envs * made.horizon
    cycles = max(1, round((plan.eval_every or plan.steps / 20) / per_cycle))
    plan = dataclasses.replace(plan, eval_every=cycles * per_cycle)
    told = {
        "algorithm": algorithm,
        "task": task,
        "preset": preset,
        "task_settings": task_settings,
        "run": dataclasses.asdict(plan),
        "settings": flatten(config),
    }
    if asked:
        pairs, digest = find_demos(algorithm, entry, made, asked)
        try:
            entry.make(config, draft_spec(imitated(made, asked), pairs, per_cycle))
        except UserError as error:
            raise UserError(f"{asked['demos']}: {error}") from error
        path = Path(asked["demos"])
        source = str(path.resolve() if path.exists() else asked["demos"])
        told["demos"] = {**asked, "demos": source, "sha256": digest}
    return told


def make_plan(config: dict[str, Any], demos: Demos | None = None) -> Plan:
    """From a run's configuration to compiled functions.

    An imitator's demonstrations are read from their source unless they are given.
    """
    algorithm = get_algorithm(config["algorithm"])
    settings = override(algorithm.config(), config["settings"])
    run = override(RunSettings(), config["run"])
    task = find_task(config["task"], config.get("task_settings", {}))
    asked = config.get("demos", {})
    if asked and demos is None:
        try:
            demos, digest = find_demos(config["algorithm"], algorithm, task, asked)
        except UserError as error:
            raise UserError(f"the run's demonstrations are needed: {error}") from error
        if digest != asked["sha256"]:
            raise UserError(
                f"{asked['demos']} holds other demonstrations than those this run began with"
            )
    task = imitated(task, asked)
    check(settings, run, task.horizon)
    if run.eval_every < run.envs * task.horizon:
        raise UserError(f"eval_every = {run.eval_every} is less than one cycle of episodes")
    td3 = shared(settings)
    per_cycle = run.envs * task.horizon
    per_report = run.eval_every // per_cycle
    on_policy = algorithm.on_policy
    updates = 1 if on_policy else round(per_cycle * td3.updates_per_step)
    reports = math.ceil(run.steps / (per_report * per_cycle))
    total = reports * per_report
    warm = math.ceil(td3.warmup / per_cycle)
    if isinstance(task, EnvTask):
        per_call = 1
        workers = Workers(task, run.workers, run.episode_seconds)
        try:
            spec = make_env_spec(task, workers, demos, per_cycle, aimless(td3))
            agent = lagged(algorithm.make(settings, spec))
            program = make_env_program(agent, task, spec, td3, run, total, warm, workers, on_policy)
        except BaseException:
            workers.close()
            raise
    else:
        # A cycle of an on-policy algorithm is many updates in one.
        most = 1 if on_policy else max(1, UPDATES_PER_CALL // updates)
        per_call = max(n for n in range(1, min(most, per_report) + 1) if per_report % n == 0)
        spec = make_spec(task, demos, per_cycle, aimless(td3))
        agent = algorithm.make(settings, spec)
        program = make_program(agent, task, spec, td3, run.envs, per_call, warm, on_policy)
    return Plan(task, spec, agent, td3, run, program, per_call, per_report, total, warm, updates)


def plan_run(run: Run) -> Plan:
    """The plan of a run's folder, with the demonstrations that it keeps."""
    kept = run.demos()
    return make_plan(run.config, None if kept is None else Demos(**kept))


def state_arrays(state: Any) -> dict[str, np.ndarray]:
    """A pytree as named arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def state_from_arrays(like: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The pytree of `like`'s structure with the named arrays as leaves."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if name not in arrays or arrays[name].shape != leaf.shape:
            raise UserError(
                f"the checkpoint has no '{name}' of the right shape: made with other settings, "
                "or by another version"
            )
    return jax.tree_util.tree_unflatten(tree, [jnp.asarray(arrays[n]) for n in names])


def first_bad(metrics: dict[str, np.ndarray], first_update: int, first_seed: int = 0) -> str | None:
    """Where a metric first stopped being finite: its name, update and seed.

    `metrics[name]` is `[cycles, seeds]` or `[cycles, seeds, updates]`.
    """
    worst: tuple[int, str, int] | None = None
    for name, values in metrics.items():
        bad = np.argwhere(~np.isfinite(values))
        if len(bad) and values.ndim == 3:
            cycle, seed, i = min(bad.tolist(), key=lambda b: (b[0], b[2]))
            update = first_update + cycle * values.shape[2] + i
            if worst is None or update < worst[0]:
                worst = (update, name, seed)
    if worst is None:
        return None
    return f"{worst[1]} is not finite in update {worst[0]:,} of seed {first_seed + worst[2]}"


def summarise(metrics: list[dict[str, np.ndarray]]) -> dict[str, list[float]]:
    """Over the calls since the last report, per seed: the mean, or the largest for `..._max`."""
    row = {}
    for name in metrics[0]:
        values = np.concatenate([np.asarray(m[name]) for m in metrics])
        per_seed = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
        row[name] = (per_seed.max(1) if name.endswith("_max") else per_seed.mean(1)).tolist()
    return row


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks the loop to stop after the current call; a second one stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: nobody presses Ctrl-C here
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _resume(
    run: Run, plan: Plan, learner: Learner, say: Callable[[str], None]
) -> tuple[Learner, int, float]:
    """The learner as the newest good checkpoint has it, its cycle and the seconds spent so far."""
    log = run.episodes()
    found = run.restore(warn=say)
    if found is None:
        run.truncate_rows(-1)
        log.truncate([])
        return learner, 0, 0.0
    step, arrays, meta = found
    run.truncate_rows(step)
    log.truncate(meta["positions"])
    streams = [log.read(seed) for seed in range(plan.run.seeds)]
    for seeds in zip(*streams, strict=True):
        learner = plan.program.replay(learner, stacked(seeds, plan.task.horizon))
    return (
        learner._replace(agent=state_from_arrays(learner.agent, arrays)),
        meta["cycle"],
        meta["seconds"],
    )


def train_run(run: Run, quiet: bool = False) -> None:
    """Trains a run's folder to its end, from its newest checkpoint if there is one.

    Raises `Stopped` if the user stopped it (it is saved then), `UserError` if it cannot go on.
    """
    plan = plan_run(run)
    try:
        if plan.spec.demos is not None and run.demos() is None:
            shown = plan.spec.demos._asdict()
            run.keep_demos({name: x for name, x in shown.items() if x is not None})
        _train(run, plan, quiet)
    except WorkersError as error:
        raise UserError(f"{error}; go on with: uvd train --resume {run.path}") from error
    finally:
        plan.program.close()
        run.close()


def _train(run: Run, plan: Plan, quiet: bool) -> None:
    program, log = plan.program, run.episodes()
    name = f"{run.config['algorithm']} {run.config['task']}"
    total = plan.total_cycles * plan.steps_per_cycle
    learner, cycle, before = _resume(
        run, plan, program.init(plan.run.first_seed, plan.run.seeds), lambda line: print(line)
    )
    if cycle >= plan.total_cycles and not quiet:
        done = cycle * plan.steps_per_cycle
        print(
            f"{run.path} has all its {done:,} steps; to train on, say --steps with a larger number"
        )
    if plan.warm_cycles >= plan.total_cycles and not quiet:
        print(f"{name}: nothing is learned in {total:,} steps, warmup = {plan.td3.warmup:,}")
    begun = saved = time.monotonic()
    pending: list[dict[str, np.ndarray]] = []
    step = cycle * plan.steps_per_cycle

    def seconds() -> float:
        return before + time.monotonic() - begun

    def save() -> None:
        arrays = state_arrays(learner.agent)
        for key, value in arrays.items():
            # A loss shows parameters before its step: what the last one did shows only here.
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise UserError(f"{name}: {key} is not finite at step {step:,}; stopped, not saved")
        meta = {"cycle": cycle, "seconds": seconds(), "positions": log.sync()}
        run.save(step, arrays, meta)

    def report() -> None:
        nonlocal pending
        scores = program.evaluate(learner.agent, EVAL, plan.run.eval_episodes)
        result = {k: np.asarray(v).tolist() for k, v in scores.items()}
        updates = max(cycle - plan.warm_cycles, 0) * plan.updates_per_cycle
        row = {"step": step, "updates": updates, "seconds": seconds(), **result}
        run.report({**row, **(summarise(pending) if pending else {})})
        pending = []
        progress.report(step, result)

    @contextmanager
    def saving() -> Iterator[None]:
        """Workers that fail for good end the run, in training or evaluation: not its last steps."""
        try:
            yield
        except WorkersError:
            save()
            raise

    progress = RunProgress(name, total, cycle * plan.steps_per_cycle, quiet)
    with progress, interruptible() as stop_asked, saving():
        reported = {row["step"] for row in run.rows()} | {0}
        if cycle % plan.cycles_per_report == 0 and step not in reported:
            report()  # it is this evaluation that workers failed in
        while cycle < plan.total_cycles:
            learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
            host = jax.tree.map(np.asarray, metrics)
            learned = max(plan.warm_cycles - cycle, 0)  # cycles of the warm-up carry no losses
            first_update = max(cycle - plan.warm_cycles, 0) * plan.updates_per_cycle
            losses = {k: v[learned:] for k, v in host.items()}
            if bad := first_bad(losses, first_update, plan.run.first_seed):
                last = run.restore()
                kept = (
                    f"the checkpoint at step {last[0]:,} is kept" if last else "no checkpoint yet"
                )
                raise UserError(f"{name}: {bad}; stopped, {kept} in {run.path}")
            if learned < plan.cycles_per_call:
                pending.append(losses)
            for seed, played in enumerate(records(jax.tree.map(np.asarray, episodes))):
                log.append_batch(seed, played)
            cycle += plan.cycles_per_call
            step = cycle * plan.steps_per_cycle
            if cycle % plan.cycles_per_report == 0:
                report()
            progress.advance(step)
            if cycle >= plan.total_cycles:
                save()
            elif stop_asked():
                save()
                raise Stopped(
                    f"stopped at step {step:,}; go on with: uvd train --resume {run.path}"
                )
            elif time.monotonic() - saved > plan.run.save_seconds:
                save()
                saved = time.monotonic()
