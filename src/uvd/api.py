"""The library's front door: train, load, act, evaluate."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from uvd.agents import get_algorithm
from uvd.collect.device import rollouts
from uvd.collect.exploration import Exploration
from uvd.collect.worker import FRESH, RECORD, Job
from uvd.collect.workers import Policies, Workers
from uvd.core.policy import Policy, act, greedy
from uvd.errors import UserError, nearest
from uvd.loop import (
    Plan,
    find_task,
    imitated,
    make_config,
    plan_run,
    state_from_arrays,
    train_run,
)  # fmt: skip
from uvd.runs import Run
from uvd.settings import DemoSettings, RunSettings, flatten, suited
from uvd.tasks import TASKS, Task
from uvd.tasks.goalenv import EnvTask, GoalTask
from uvd.tasks.rewardenv import RewardTask, env_task
from uvd.video import Film, write_video

if TYPE_CHECKING:
    from uvd.demos import Trajectory


_rollouts = jax.jit(rollouts, static_argnums=(0, 4))  # compiled once for all seeds of a run


class Actor:
    """A trained policy: `actor(obs, goal)` gives the task's action, for one pair or a batch.

    NumPy in, NumPy out. Without goals it is `actor(obs)`.
    """

    def __init__(self, policy: Policy, task: Task | EnvTask) -> None:
        self.policy: Policy = jax.tree.map(np.asarray, greedy(policy))
        self.task = task

    def __call__(self, obs: Any, goal: Any = None) -> np.ndarray:
        obs = np.asarray(obs, np.float32)
        # What only critics are told may be left out.
        if obs.shape[-1] not in (self.task.obs_dim, shown(self.task)):
            hidden = isinstance(self.task, GoalTask) and not self.task.shown
            more = ": the environment's and the achieved goal" if hidden else ""
            if isinstance(self.task, RewardTask) and self.task.previous_action:
                more = ": the environment's and the action before, by policy.task.unit_action"
            raise UserError(
                f"an observation of {self.task.id} is {self.task.obs_dim} numbers{more}, "
                f"not {obs.shape[-1]}"
            )
        if goal is None:
            if self.task.goal_dim:
                raise UserError(f"{self.task.id} has goals: act on (obs, goal)")
            goal = np.zeros((*obs.shape[:-1], 0))
        elif np.shape(goal)[-1:] != (self.task.goal_dim,):
            wanted = f"a goal of {self.task.id} is {self.task.goal_dim} numbers"
            if not self.task.goal_dim:
                wanted = f"{self.task.id} has no goals: act on obs alone"
            raise UserError(f"{wanted}, not an array of shape {np.shape(goal)}")
        return own_action(self.task, act(self.policy, obs, np.asarray(goal, np.float32)))


def own_action(task: Task | EnvTask, action: np.ndarray) -> np.ndarray:
    """The task's own action for one in [-1, 1]."""
    return task.own_action(action) if isinstance(task, EnvTask) else action


@dataclass(frozen=True, repr=False)
class Trained:
    """A run with its newest checkpoint loaded."""

    run: Run
    plan: Plan
    step: int
    state: Any  # the agent's, stacked over seeds

    def __repr__(self) -> str:
        return f"Trained({str(self.run.path)!r}, step {self.step})"

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
        return Actor(self.plan.agent.result(self.seed_state(seed)), self.plan.task)

    def rows(self) -> list[dict[str, Any]]:
        """The run's reports."""
        return self.run.rows()


def train(
    algorithm: str,
    task: str,
    *,
    preset: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    task_settings: dict[str, Any] | None = None,
    demos: str | Path | None = None,
    **settings: Any,
) -> Trained:
    """Trains an algorithm on a task and returns the run.

    Settings are those of the algorithm (`gamma`, `combine`, ...) and of the run (`seeds`, `steps`,
    `envs`, `eval_every`, ...), by name, beside those of the `preset` (without one, what suits the
    task); `task_settings` are the task's own, such as
    `{"noise": "paper"}`. `out` is the run's folder; without it, one in `runs/` named after
    algorithm and task. An algorithm that imitates needs `demos`, and takes `trajectories`, `every`,
    `offset` and `previous_action`.
    """
    of_run, of_demos = (set(s.__dataclass_fields__) for s in (RunSettings, DemoSettings))
    run_settings = {k: v for k, v in settings.items() if k in of_run}
    shown = {k: v for k, v in settings.items() if k in of_demos}
    rest = {k: v for k, v in settings.items() if k not in of_run | of_demos}
    own = flatten(get_algorithm(algorithm).config())
    for name in rest.keys() - own.keys():
        raise nearest(name, {*own, *of_run, *of_demos}, "setting")
    if demos is not None:
        shown["demos"] = str(demos)
    preset = preset or suited(algorithm, task)
    config = make_config(algorithm, task, preset, run_settings, rest, task_settings or {}, shown)
    run = Run.create(out or f"runs/{algorithm}-{file_name(task)}", config, overwrite)
    train_run(run, quiet)
    return load(run.path)


def file_name(task: str) -> str:
    """A task's id without what a path cannot hold (`module:space/Id-v0`)."""
    return task.replace("/", "-").replace(":", "-")


def resume(path: str | Path, steps: int | None = None, quiet: bool = False) -> Trained:
    """Goes on with a run from its newest good checkpoint, possibly to more steps."""
    run = Run.open(path)
    run.require_whole()
    if steps is not None:
        done = run.restore()
        if done is not None and steps < done[0]:
            raise UserError(f"{path} has {done[0]:,} steps already, more than {steps:,}")
        run.config["run"]["steps"] = steps
        plan_run(run).program.close()  # refuses nonsense before it is written down
        run.write_config()
    train_run(run, quiet)
    return load(path)


def load(path: str | Path) -> Trained:
    """A run's folder, with its newest good checkpoint."""
    run = Run.open(path)
    found = run.restore()
    if found is None:
        run.require_whole()
        raise UserError(f"{path} has no checkpoint yet; go on with: uvd train --resume {path}")
    step, arrays, _ = found
    plan = plan_run(run)
    plan.program.close()  # workers start again when an evaluation needs them
    like = jax.eval_shape(lambda: plan.program.init(plan.run.first_seed, plan.run.seeds).agent)
    return Trained(run, plan, step, state_from_arrays(like, arrays))


def evaluate(
    trained: Trained, episodes: int = 100, task: str | None = None
) -> dict[str, list[float]]:
    """Each seed's policy over fresh episodes: success by both measures, or return.

    Without goals, `task` may be another one of the same sizes (one whose episodes do not end).
    """
    if task is not None:
        played = [record(trained, episodes, seed, task, FRESH)[0] for seed in trained.seeds]
        return {"eval/return": [float(returns(each).mean()) for each in played]}
    program = trained.plan.program
    try:
        results = program.evaluate(trained.state, FRESH, episodes)
        return {k: np.asarray(v).tolist() for k, v in results.items()}
    finally:
        program.close()


def film(trained: Trained, out: str | Path, episodes: int = 4, seed: int | None = None) -> None:
    """A video, mp4 or gif, of one seed's policy (the first's if not given) in fresh episodes."""
    task, config = trained.plan.task, trained.run.config
    if not isinstance(task, EnvTask):
        made = env_task(f"uvd.tasks.gym:{task.id}", config.get("task_settings", {}))
        task = imitated(made, config.get("demos", {}))
        assert isinstance(task, EnvTask)
    write_video(Film(task, trained.policy(seed).policy, episodes, Path(out)))


def check_demos_out(out: str) -> None:
    """Refuses a name for demonstrations that is taken or cannot be one, before anything is played.

    A Minari dataset unless the name ends in .h5, .hdf5 or .npz.
    """
    from uvd.formats import check_minari_id

    path = Path(out)
    if path.suffix in (".h5", ".hdf5", ".npz"):
        path = path.with_suffix("") if path.suffix == ".npz" else path
    else:
        path = check_minari_id(minari_id(out))
    if os.path.exists(path):
        raise UserError(f"{path} exists: remove it, or choose another name")
    if os.path.isfile(path.parent):
        raise UserError(f"{path.parent} is a file: {path} cannot be in it")


def returns(trajectories: list["Trajectory"]) -> np.ndarray:
    """The sum of each one's rewards."""
    earned = [t.reward for t in trajectories if t.reward is not None]
    return np.array([np.sum(r, dtype=np.float64) for r in earned])


def minari_id(name: str) -> str:
    """A dataset's id; a name without a version is its version 0."""
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def record_demos(
    trained: Trained, out: str, episodes: int = 20, seed: int | None = None, task: str | None = None
) -> tuple[Path, np.ndarray]:
    """Records and writes demonstrations; where they are, and their returns."""
    from uvd.formats import write_gail, write_minari, write_npz

    check_demos_out(out)
    trajectories, ended = record(trained, episodes, seed, task)
    if Path(out).suffix == ".npz":
        path = write_npz(trajectories, Path(out).with_suffix(""))
    elif Path(out).suffix in (".h5", ".hdf5"):
        path = write_gail(trajectories, out)
    else:
        config = trained.run.config
        played = trained.seeds[0] if seed is None else seed
        env_id = task or config["task"]
        env_id = f"uvd.tasks.gym:{env_id}" if env_id in TASKS else env_id
        if not task and shown(trained.plan.task) < trained.plan.task.obs_dim:
            env_id = None  # that one shows more than was recorded
        path = write_minari(
            trajectories, minari_id(out), env_id, ended, algorithm_name=config["algorithm"],
            description=f"seed {played} of a run of {trained.step:,} steps",
        )  # fmt: skip
    return path, returns(trajectories)


def shown(task: Task | EnvTask) -> int:
    """How many numbers of an observation a policy reads: not those that only critics are told."""
    return task.obs_dim - getattr(task, "told", 0)


def record(
    trained: Trained, episodes: int, seed: int | None = None, task: str | None = None,
    purpose: int = RECORD,
) -> tuple[list["Trajectory"], list[bool]]:  # fmt: skip
    """Episodes of one seed's policy as demonstrations, and which of them ended by themselves.

    In the task's own observations and actions, without exploration. `task` is another one of the
    same sizes to play in: one whose episodes do not end, say.
    """
    from uvd.demos import Trajectory

    plan, config = trained.plan, trained.run.config
    if plan.task.goal_dim:
        raise UserError(
            f"{plan.task.id} has goals: only runs without are recorded or played elsewhere"
        )
    own = find_task(task or config["task"], {} if task else config.get("task_settings", {}))
    where = imitated(own, config.get("demos", {})) if task else plan.task
    sizes = [(shown(t), t.action_dim, t.goal_dim) for t in (where, plan.task)]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{own.id} has sizes (observation, action, goal) {sizes[0]}, the run's has {sizes[1]}"
        )
    policy = trained.policy(seed).policy
    if isinstance(where, EnvTask):
        workers = Workers(where, plan.run.workers, plan.run.episode_seconds)
        try:
            jobs = [Job(0, 0, purpose, i) for i in range(episodes)]
            played = workers.play(jobs, Policies([policy]))
        finally:
            workers.close()
        found = [(p.obs, p.action, p.reward) for p in played]
        ended = [p.terminated for p in played]
    else:
        key = jax.random.key(purpose)
        many = _rollouts(where, Exploration(), policy, key, episodes)
        found = list(zip(*map(np.asarray, (many.obs, many.action, many.reward))))
        ended = [False] * episodes
    return [
        Trajectory(obs[:, : shown(own)], own_action(where, action), reward)
        for obs, action, reward in found
    ], ended
