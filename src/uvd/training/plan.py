"""From settings to a plan: task, demonstrations, algorithm and compiled program of a run.

`configure` makes settings complete, `make_plan` makes the plan. Both refuse what cannot work, in
one line, before anything is written.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from uvd.agents import get_algorithm
from uvd.agents.agent import Agent, Facts, Spec
from uvd.collect.exploration import CollectConfig
from uvd.collect.workers import Workers
from uvd.core.config import flatten, require
from uvd.core.episode import DemoSteps
from uvd.core.errors import UserError
from uvd.demos.check import notices
from uvd.demos.select import DemoSettings, demo_pairs
from uvd.settings import RunConfig, RunSettings, build, presets, suited
from uvd.tasks.env import EnvTask
from uvd.tasks.find import find_task, with_previous_action
from uvd.tasks.task import Task
from uvd.training.learner import Program, Schedule
from uvd.training.on_device import make_device_program, probe_task
from uvd.training.on_workers import make_env_program, probe_env
from uvd.training.spec import happened, make_spec

UPDATES_PER_CALL = 500  # short enough to answer Ctrl-C, long enough to hide the call
ROUNDED = 0.01  # share by which the updates of a cycle may differ from what was asked for


class Inputs(NamedTuple):
    """What settings refer to: the task as the algorithm observes it, and what it imitates."""

    task: Task | EnvTask
    demos: DemoSteps | None
    notice: str | None = None  # of which demonstrated steps were chosen


@dataclass(frozen=True)
class Plan:
    """Everything a run's settings determine."""

    config: RunConfig
    task: Task | EnvTask
    spec: Spec
    agent: Agent
    collect: CollectConfig
    schedule: Schedule
    program: Program
    notices: tuple[str, ...] = ()  # what is unusual about the demonstrations

    @property
    def run(self) -> RunSettings:
        """How long, how often, how many."""
        return self.config.run


def preset_for(algorithm: str, task: str, task_settings: Mapping[str, Any] | None = None) -> str:
    """The preset that suits a task, by what the task is."""
    found = find_task(task, task_settings)
    return suited(algorithm, Facts(isinstance(found, EnvTask), found.goal_dim > 0))


def configure(
    algorithm: str,
    task: str,
    preset: str | None = None,
    given: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, Inputs]:
    """Complete settings from those that were given, and what they refer to."""
    given = given or {}
    preset = preset or preset_for(algorithm, task, task_settings)
    # The others make sense only beside the defaults that follow from the demonstrations.
    first = {name: given[name] for name in given.keys() & flatten(DemoSettings()).keys()}
    config = build(algorithm, task, preset, first, task_settings)
    inputs, sha256 = read_inputs(config)
    defaults: Mapping[str, Any] = {}
    if inputs.demos is not None:
        asked = {**presets(algorithm)[config.preset].settings, **given}
        with naming(config.demos.demos):
            defaults = get_algorithm(algorithm).defaults_for(asked, inputs.demos)
    config = build(algorithm, task, preset, given, task_settings, defaults)
    schedule = make_schedule(config, inputs.task)
    # Reports keep their places when the run is later resumed to more steps.
    run = replace(config.run, eval_every=schedule.per_report * schedule.steps)
    return replace(config, run=run, sha256=sha256), inputs


@contextmanager
def naming(source: str | None) -> Iterator[None]:
    """What an algorithm refuses names the demonstrations, if there are any."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}" if source else str(error)) from error


def read_inputs(config: RunConfig, demos: DemoSteps | None = None) -> tuple[Inputs, str]:
    """The task and the demonstrations, read from their source unless given, and their hash."""
    algorithm = get_algorithm(config.algorithm)
    task = find_task(config.task, config.task_settings)
    check_fit(config, task)
    sha256, notice = config.sha256, None
    if algorithm.learns_from == "demos" and demos is None:
        name = config.algorithm if algorithm.needs_actions else None
        demos, sha256, notice = demo_pairs(config.demos, task, name)
        if config.sha256 not in ("", sha256):
            raise UserError(
                f"{config.demos.demos} holds other demonstrations than those this run began with"
            )
    if config.demos.previous_action:
        task = with_previous_action(task)
    return Inputs(task, demos, notice), sha256


def check_fit(config: RunConfig, task: Task | EnvTask) -> None:
    """Refuses an algorithm that cannot learn on such a task, or from what it is given."""
    name, algorithm = config.algorithm, get_algorithm(config.algorithm)
    if algorithm.learns_from == "demos":
        require(not task.goal_dim, f"{name} imitates, but {task.id} has goals: take a task without")
        require(
            not task.privileged_dim,
            f"{name} imitates, but {task.id} has privileged observations: take the task without",
        )
        require(bool(config.demos.demos), f"{name} needs demonstrations: give --demos FILE")
        return
    require(
        bool(task.goal_dim or algorithm.takes_rewards),
        f"{name} needs a task with goals, and {task.id} has none (td3 learns from its rewards)",
    )
    usual = flatten(DemoSettings())
    for setting, value in flatten(config.demos).items():
        flag = setting.replace("_", "-")
        require(value == usual[setting], f"{name} does not imitate: leave out --{flag}")


def make_schedule(config: RunConfig, task: Task | EnvTask) -> Schedule:
    """The run's cycles; refuses settings that do not fit the task's episodes."""
    algorithm, run, horizon = get_algorithm(config.algorithm), config.run, task.horizon
    collect = algorithm.collect(config.settings)
    steps = run.cycle_steps or run.envs * horizon
    require(
        not run.cycle_steps or (isinstance(task, EnvTask) and not algorithm.on_policy),
        f"cycle_steps = {run.cycle_steps}: {config.algorithm} plays {task.id} in whole episodes, "
        "give --envs",
    )
    for name in ("episode_steps", "late_episode_steps"):
        cut = getattr(run, name)
        require(cut <= horizon, f"{name} = {cut} is more than an episode's {horizon} steps")
        require(
            not cut or isinstance(task, EnvTask),
            f"{task.id} is played in whole episodes: leave out --{name.replace('_', '-')}",
        )
    require(
        not collect.capacity or collect.capacity >= max(steps, horizon),
        f"capacity = {collect.capacity} holds no {max(steps // horizon, 1)} episodes of {horizon} "
        "steps",
    )
    ahead = flatten(config.settings).get("lookahead", 0)
    require(
        ahead <= horizon,
        f"lookahead = {ahead} is longer than the task's episodes of {horizon} steps",
    )
    updates = 1.0
    if not algorithm.on_policy:
        updates = steps * collect.updates_per_step
        require(
            abs(updates - round(updates)) < ROUNDED * updates and updates >= 1,
            f"updates_per_step = {collect.updates_per_step} gives {updates:g} updates for the "
            f"{steps} steps of a cycle; it must be a whole number of at least 1 (--envs, "
            "--cycle-steps)",
        )
    per_report = max(1, round((run.eval_every or run.steps / 20) / steps))
    per_call = 1
    if isinstance(task, Task) and not algorithm.on_policy:  # whose one update is many in one
        most = min(max(1, UPDATES_PER_CALL // round(updates)), per_report)
        per_call = max(n for n in range(1, most + 1) if per_report % n == 0)
    return Schedule(
        steps=steps,
        updates=round(updates),
        warm=math.ceil(collect.warmup / steps),
        per_call=per_call,
        per_report=per_report,
        total=math.ceil(run.steps / (per_report * steps)) * per_report,
    )


def make_plan(config: RunConfig, inputs: Inputs) -> Plan:
    """From complete settings to compiled functions."""
    algorithm = get_algorithm(config.algorithm)
    task, demos, notice = inputs
    collect, run = algorithm.collect(config.settings), config.run
    schedule = make_schedule(config, task)
    make_program: Callable[..., Program] = make_device_program
    with ExitStack() as on_failure:
        if isinstance(task, Task):
            probe = probe_task(task, collect.probe_exploration)
        else:
            workers = Workers(task, run.workers, run.episode_seconds)
            on_failure.callback(workers.close)
            probe = probe_env(task, workers, collect.probe_exploration)
            on_policy = algorithm.on_policy
            make_program = partial(make_env_program, workers=workers, on_policy=on_policy)
        # A policy is scored by at least an episode's steps.
        spec = make_spec(task, probe, demos, max(schedule.steps, task.horizon))
        with naming(config.demos.demos):
            agent = algorithm.make(config.settings, spec)
        program = make_program(agent, task, collect, run, schedule)
        unusual = [notice] if notice else []
        if demos is not None:
            unusual += notices(demos, probe.obs[happened(probe)])
        on_failure.pop_all()
    return Plan(config, task, spec, agent, collect, schedule, program, tuple(unusual))
