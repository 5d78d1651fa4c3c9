"""The library's front door: train, load, act, evaluate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from uvd.collect.worker import FRESH
from uvd.core.policy import Policy, act
from uvd.errors import UserError
from uvd.loop import Plan, make_config, make_plan, state_from_arrays, train_run
from uvd.runs import Run
from uvd.settings import RunSettings
from uvd.tasks import Task
from uvd.tasks.goalenv import GoalTask, goal_task
from uvd.video import Film, write_video


class Actor:
    """A trained policy: `actor(obs, goal)` gives the task's action, for one pair or a batch.

    NumPy in, NumPy out.
    """

    def __init__(self, policy: Policy, task: Task | GoalTask) -> None:
        self.policy: Policy = jax.tree.map(np.asarray, policy)
        self.task = task

    def __call__(self, obs: Any, goal: Any) -> np.ndarray:
        action = act(self.policy, np.asarray(obs, np.float32), np.asarray(goal, np.float32))
        return self.task.own_action(action) if isinstance(self.task, GoalTask) else action


@dataclass(frozen=True)
class Trained:
    """A run with its newest checkpoint loaded."""

    run: Run
    plan: Plan
    step: int
    state: Any  # the agent's, stacked over seeds

    @property
    def seeds(self) -> range:
        """The run's seeds, in the order of every list over seeds."""
        first = self.plan.run.first_seed
        return range(first, first + self.plan.run.seeds)

    def seed_state(self, seed: int | None = None) -> Any:
        """The agent's state of one seed (the run's first if not given)."""
        seed = self.seeds[0] if seed is None else seed
        if seed not in self.seeds:
            many = f"seeds {self.seeds[0]} to {self.seeds[-1]}"
            has = many if len(self.seeds) > 1 else f"seed {self.seeds[0]} only"
            raise UserError(f"{self.run.path} has {has}, not {seed}")
        return jax.tree.map(lambda x: x[self.seeds.index(seed)], self.state)

    def policy(self, seed: int | None = None) -> Actor:
        """The policy of one seed (the run's first if not given)."""
        return Actor(self.plan.agent.policy(self.seed_state(seed)), self.plan.task)

    def rows(self) -> list[dict[str, Any]]:
        """The run's reports."""
        return self.run.rows()


def train(
    algorithm: str,
    task: str,
    *,
    preset: str = "default",
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    task_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Trains an algorithm on a task and returns the run.

    Settings are those of the algorithm (`gamma`, `combine`, ...) and of the run (`seeds`, `steps`,
    `envs`, `eval_every`, ...), by name; `task_settings` are the task's own, such as
    `{"noise": "paper"}`. `out` is the run's folder; without it, one in `runs/` named after
    algorithm and task.
    """
    names = set(RunSettings.__dataclass_fields__)
    run_settings = {k: v for k, v in settings.items() if k in names}
    rest = {k: v for k, v in settings.items() if k not in names}
    config = make_config(algorithm, task, preset, run_settings, rest, task_settings or {})
    run = Run.create(out or f"runs/{algorithm}-{file_name(task)}", config, overwrite)
    train_run(run, quiet)
    return load(run.path)


def file_name(task: str) -> str:
    """A task's id without what a path cannot hold (`module:space/Id-v0`)."""
    return task.replace("/", "-").replace(":", "-")


def resume(path: str | Path, steps: int | None = None, quiet: bool = False) -> Trained:
    """Goes on with a run from its newest good checkpoint, possibly to more steps."""
    run = Run.open(path)
    if steps is not None:
        run.config["run"]["steps"] = steps
        make_plan(run.config).program.close()  # refuses nonsense before it is written down
        run.write_config()
    train_run(run, quiet)
    return load(path)


def load(path: str | Path) -> Trained:
    """A run's folder, with its newest good checkpoint."""
    run = Run.open(path)
    found = run.restore()
    if found is None:
        raise UserError(f"{path} has no checkpoint yet; go on with: uvd train --resume {path}")
    step, arrays, _ = found
    plan = make_plan(run.config)
    plan.program.close()  # workers start again when an evaluation needs them
    like = jax.eval_shape(lambda: plan.program.init(plan.run.first_seed, plan.run.seeds).agent)
    return Trained(run, plan, step, state_from_arrays(like, arrays))


def evaluate(trained: Trained, episodes: int = 100) -> dict[str, list[float]]:
    """Success of each seed's policy over fresh episodes, by both measures."""
    program = trained.plan.program
    try:
        results = program.evaluate(trained.state, FRESH, episodes)
        return {k: np.asarray(v).tolist() for k, v in results.items()}
    finally:
        program.close()


def film(trained: Trained, out: str | Path, episodes: int = 4, seed: int | None = None) -> None:
    """A video, mp4 or gif, of one seed's policy (the first's if not given) in fresh episodes."""
    task = trained.plan.task
    if not isinstance(task, GoalTask):
        settings = trained.run.config.get("task_settings", {})
        task = goal_task(f"uvd.tasks.gym:{task.id}", settings)
    write_video(Film(task, trained.policy(seed).policy, episodes, Path(out)))
