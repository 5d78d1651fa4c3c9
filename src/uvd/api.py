"""The library's front door: train, load, act, evaluate."""

import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from uvd.actor import Actor
from uvd.collect.device import rollouts
from uvd.collect.exploration import Exploration
from uvd.collect.worker import FRESH, Job
from uvd.collect.workers import Policies, Workers
from uvd.core.config import flatten, require
from uvd.core.episode import Episode
from uvd.core.errors import UserError
from uvd.runs import Run
from uvd.settings import RunConfig, to_file
from uvd.tasks.env import EnvTask
from uvd.tasks.find import find_task, with_previous_action
from uvd.tasks.task import Task
from uvd.training.learner import LearnerState, best_policy, state_from_arrays
from uvd.training.loop import Callback, plan_run, train_run
from uvd.training.plan import Inputs, Plan, configure, make_plan

device_rollouts = jax.jit(rollouts, static_argnums=(0, 4))  # compiled once for all seeds of a run


@dataclass(frozen=True)
class Trained:
    """A run and what it learned, ready to act, to be evaluated or to train on."""

    run: Run
    plan: Plan
    step: int
    state: LearnerState

    @property
    def seeds(self) -> list[int]:
        """The run's seeds, as reports list them."""
        first = self.plan.run.first_seed
        return list(range(first, first + self.plan.run.seeds))

    def seed_state(self, seed: int | None = None) -> LearnerState:
        """The state of one seed (the run's first if not given)."""
        seed = self.seeds[0] if seed is None else seed
        if seed not in self.seeds:
            many = f"seeds {self.seeds[0]} to {self.seeds[-1]}"
            has = many if len(self.seeds) > 1 else f"seed {self.seeds[0]} only"
            raise UserError(f"{self.run.path} has {has}, not {seed}")
        return jax.tree.map(lambda x: x[self.seeds.index(seed)], self.state)

    def policy(self, seed: int | None = None) -> Actor:
        """The policy of one seed (the run's first if not given)."""
        return Actor(best_policy(self.plan.agent, self.seed_state(seed)), self.plan.task)

    def rows(self) -> list[dict[str, Any]]:
        """The run's reports."""
        return self.run.rows()


def train(
    algorithm: str,
    task: str,
    *groups: Any,
    preset: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    callback: Callback | None = None,
    task_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Trains an algorithm on a task and returns the run.

        uvd.train("uvd", "PointPush-v0", seeds=3, steps=100_000, gamma=0.97)

    `settings` are those of the algorithm (`gamma`, `combine`, ...), of the run (`seeds`, `steps`,
    `envs`, `eval_every`, ...) and of the demonstrations (`demos`, `trajectories`, `every`, ...), by
    name, beside those of the `preset` (if it is not given, what suits the task).
    `groups` are whole groups of settings, as typed objects: `RunSettings(seeds=3)`,
    `TD3Config(gamma=0.97)`; they replace the preset's.
    `task_settings` are the task's own, such as `{"noise": "paper"}`.
    `out` is the run's folder; if it is not given, one in `runs/` named after algorithm and task.
    `callback` gets every report, a dictionary with `step` and a list over seeds for each metric; if
    it returns False, training ends there and is saved.
    """
    out = free_folder(algorithm, task, out, overwrite)
    for group in groups:
        settings = {**flatten(group), **settings}
    if isinstance(demos := settings.get("demos"), Path):
        settings["demos"] = str(demos)
    config, inputs = configure(algorithm, task, preset, settings, task_settings)
    return start(config, inputs, out, overwrite, quiet, callback)


def free_folder(algorithm: str, task: str, out: str | Path | None, overwrite: bool) -> Path:
    """The folder of a new run; refused, before anything is read or played, if it is taken."""
    path = Path(out or f"runs/{algorithm}-{file_name(task)}")
    Run.require_free(path, overwrite)
    return path


def start(
    config: RunConfig,
    inputs: Inputs,
    out: Path,
    overwrite: bool = False,
    quiet: bool = False,
    callback: Callback | None = None,
) -> Trained:
    """Trains a new run of complete settings (`configure`) in the folder `out`."""
    plan = make_plan(config, inputs)
    for notice in plan.notices if not quiet else ():
        print(f"uvd: {config.demos.demos}: {notice}", file=sys.stderr)
    try:
        run = Run.create(out, to_file(plan.config), overwrite)
    except BaseException:
        plan.program.close()
        raise
    return Trained(run, plan, *train_run(run, plan, quiet, callback))


def file_name(task: str) -> str:
    """A task's id without what a path cannot hold (`module:space/Id-v0`)."""
    return task.replace("/", "-").replace(":", "-")


def resume(
    path: str | Path,
    steps: int | None = None,
    quiet: bool = False,
    callback: Callback | None = None,
) -> Trained:
    """Goes on with a run from its newest good checkpoint, possibly to more steps."""
    run = Run.open(path)
    run.require_this_version()
    run.require_whole()
    if steps is not None:
        done = run.restore()
        if done is not None and steps < done[0]:
            raise UserError(f"{path} has {done[0]:,} steps already, more than {steps:,}")
        run.config["run"]["steps"] = steps
    plan = plan_run(run)
    if steps is not None:
        run.write_config()
    return Trained(run, plan, *train_run(run, plan, quiet, callback))


def load(path: str | Path) -> Trained:
    """A run's folder, with its newest good checkpoint."""
    run = Run.open(path)
    run.require_this_version()
    found = run.restore()
    if found is None:
        run.require_whole()
        raise UserError(f"{path} has no checkpoint yet; go on with: uvd train --resume {path}")
    step, arrays, _ = found
    plan = plan_run(run)
    plan.program.close()  # workers start again when an evaluation needs them
    like = jax.eval_shape(lambda: plan.program.init(plan.run.first_seed, plan.run.seeds).state)
    return Trained(run, plan, step, state_from_arrays(like, arrays))


def play(
    trained: Trained,
    episodes: int,
    seed: int | None = None,
    task: str | None = None,
    purpose: int = FRESH,
) -> tuple[Task | EnvTask, list[Episode]]:
    """Episodes of one seed's policy without exploration, and the task that was played.

    `task` is another one of the same sizes to play in: one whose episodes do not end, say.
    """
    plan, policy = trained.plan, trained.policy(seed).policy
    played_task = own = plan.task
    require(
        not own.goal_dim, f"{own.id} has goals: only runs without are recorded or played elsewhere"
    )
    if task:
        played_task = find_task(task)
        if plan.config.demos.previous_action:
            played_task = with_previous_action(played_task)
    sizes, wanted = ((t.policy_obs_dim, t.action_dim, t.goal_dim) for t in (played_task, own))
    require(
        sizes == wanted,
        f"{task} has sizes (observation, action, goal) {sizes}, the run's has {wanted}",
    )
    if isinstance(played_task, EnvTask):
        jobs = [Job(0, 0, purpose, i) for i in range(episodes)]
        with closing(Workers(played_task, plan.run.workers, plan.run.episode_seconds)) as workers:
            return played_task, workers.play(jobs, Policies([policy]))
    stacked = device_rollouts(played_task, Exploration(), policy, jax.random.key(purpose), episodes)
    return played_task, list(map(Episode, *map(np.asarray, stacked)))


def evaluate(
    trained: Trained, episodes: int = 100, task: str | None = None
) -> dict[str, list[float]]:
    """Each seed's policy over fresh episodes: success by both measures, or return.

    Without goals, `task` may be another one of the same sizes (one whose episodes do not end).
    """
    if task is not None:
        played = [play(trained, episodes, seed, task)[1] for seed in trained.seeds]
        returns = [np.mean([e.reward.sum(dtype=np.float64) for e in each]) for each in played]
        return {"eval/return": [float(x) for x in returns]}
    with closing(trained.plan.program) as program:
        results = program.evaluate(trained.state, FRESH, episodes)
        return {k: np.asarray(v).tolist() for k, v in results.items()}
