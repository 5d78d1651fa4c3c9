"""The one loop: collect, learn, evaluate, save; and go on where a killed run stopped.

The other half is a `Program`: compiled for a JAX task (`on_device`), with worker processes for an
environment (`on_workers`). Between two calls of it this loop appends the finished episodes to the
run's log, checks every metric, and now and then evaluates and saves. A checkpoint holds the
learner's state and a position in the log: replaying the log up to there restores the replay buffer,
so a resumed run ends with the same bits as one that was never interrupted.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uvd.collect.worker import EVAL
from uvd.collect.workers import WorkersError
from uvd.core.episode import DemoSteps, from_records, to_records
from uvd.core.errors import Stopped, UserError
from uvd.runs import Run
from uvd.settings import from_file
from uvd.training.learner import Learner, LearnerState, state_arrays, state_from_arrays
from uvd.training.plan import Plan, make_plan, read_inputs
from uvd.training.progress import RunProgress

# Called with each report, a row of metrics.jsonl; training ends, and is saved, if it answers False.
Callback = Callable[[dict[str, Any]], bool | None]


def plan_run(run: Run) -> Plan:
    """The plan of a run's folder, with the demonstrations that it keeps."""
    config, kept = from_file(run.config), run.read_demos()
    inputs, _ = read_inputs(config, None if kept is None else DemoSteps(**kept))
    return make_plan(config, inputs)


def first_bad(metrics: dict[str, np.ndarray], first_update: int, first_seed: int = 0) -> str | None:
    """Where a metric first stopped being finite: its name, update and seed.

    `metrics[name]` is `[cycles, seeds]` or `[cycles, seeds, updates]`.
    """
    bad = [
        (first_update + cycle * values.shape[2] + i, name, first_seed + seed)
        for name, values in metrics.items()
        if values.ndim == 3
        for cycle, seed, i in np.argwhere(~np.isfinite(values)).tolist()
    ]
    if not bad:
        return None
    update, name, seed = min(bad, key=lambda found: found[0])
    return f"{name} is not finite in update {update:,} of seed {seed}"


def summarise(metrics: list[dict[str, np.ndarray]]) -> dict[str, list[float]]:
    """Over the calls since the last report, per seed: the mean, or the largest for `..._max`."""
    row = {}
    for name in dict.fromkeys(name for m in metrics for name in m):
        values = np.concatenate([m[name] for m in metrics if name in m])
        per_seed = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
        if name.startswith("collect/"):  # not a number in cycles that ended no episode
            ended = [x[~np.isnan(x)] for x in per_seed]
            row[name] = [float(x.mean()) if len(x) else math.nan for x in ended]
        else:
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
    except ValueError:  # not the main thread: Ctrl-C does not come here
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _resume(run: Run, plan: Plan, learner: Learner) -> tuple[Learner, int, float]:
    """The learner as the newest good checkpoint has it, its cycle and the seconds spent so far."""
    log = run.episodes()
    found = run.restore(warn=print)
    if found is None:
        run.truncate_rows(-1)
        log.truncate([])
        return learner, 0, 0.0
    step, arrays, meta = found
    run.truncate_rows(step)
    log.truncate(meta["positions"])
    streams = [log.read(seed) for seed in range(plan.run.seeds)]
    for records in zip(*streams, strict=True):
        learner = plan.program.replay(learner, from_records(records, plan.task.horizon))
    state = state_from_arrays(learner.state, arrays)
    return learner._replace(state=state), meta["cycle"], meta["seconds"]


def train_run(
    run: Run, plan: Plan, quiet: bool = False, callback: Callback | None = None
) -> tuple[int, LearnerState]:
    """Trains a run's folder to its end, from its newest checkpoint if there is one.

    Returns the number of steps and the state of all seeds.

    Raises `Stopped` if the user stopped it (it is saved then), `UserError` if it cannot go on.
    """
    try:
        if plan.spec.demos is not None and run.read_demos() is None:
            demos = plan.spec.demos._asdict()
            run.write_demos({name: x for name, x in demos.items() if x is not None})
        return _train(run, plan, quiet, callback)
    except WorkersError as error:
        raise UserError(f"{error}; go on with: uvd train --resume {run.path}") from error
    finally:
        plan.program.close()


def _train(
    run: Run, plan: Plan, quiet: bool, callback: Callback | None
) -> tuple[int, LearnerState]:
    program, log, schedule = plan.program, run.episodes(), plan.schedule
    name = f"{plan.config.algorithm} {plan.config.task}"
    total = schedule.total * schedule.steps
    fresh = program.init(plan.run.first_seed, plan.run.seeds)
    learner, cycle, before = _resume(run, plan, fresh)
    if cycle >= schedule.total and not quiet:
        print(
            f"{run.path} has all its {cycle * schedule.steps:,} steps; to train on, say --steps "
            "with a larger number"
        )
    if schedule.warm >= schedule.total and not quiet:
        print(f"{name}: nothing is learned in {total:,} steps, warmup = {plan.collect.warmup:,}")
    begun = saved = time.monotonic()
    pending: list[dict[str, np.ndarray]] = []
    step, ended = cycle * schedule.steps, False

    def seconds() -> float:
        return before + time.monotonic() - begun

    def save() -> None:
        arrays = state_arrays(learner.state)
        for key, value in arrays.items():
            # A loss shows parameters before its step: what the last one did shows only here.
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise UserError(f"{name}: {key} is not finite at step {step:,}; stopped, not saved")
        meta = {"cycle": cycle, "seconds": seconds(), "positions": log.sync()}
        run.save(step, arrays, meta)

    def evaluate(state: LearnerState) -> dict[str, list[float]]:
        scores = program.evaluate(state, EVAL, plan.run.eval_episodes)
        return {k: np.asarray(v).tolist() for k, v in scores.items()}

    def report() -> None:
        nonlocal pending, ended
        result = evaluate(learner.state)
        if learner.state.best:  # beside the best policy, the newest one on the same episodes
            newest = evaluate(learner.state._replace(best=()))
            result |= {k.replace("eval/", "newest/"): values for k, values in newest.items()}
        updates = max(schedule.updates_before(cycle), 0)
        row = {"step": step, "updates": updates, "seconds": seconds(), **result}
        row |= summarise(pending)
        run.report(row)
        pending = []
        ended = callback is not None and callback(row) is False
        progress.report(step, result)

    @contextmanager
    def saving() -> Iterator[None]:
        """Workers that fail for good end the run, in training or evaluation: not its last steps."""
        try:
            yield
        except WorkersError:
            save()
            raise

    progress = RunProgress(name, total, cycle * schedule.steps, quiet)
    with progress.bar or nullcontext(), interruptible() as stop_asked, saving():
        reported = {row["step"] for row in run.rows()} | {0}
        if cycle % schedule.per_report == 0 and step not in reported:
            report()  # it is this evaluation that workers failed in
        while cycle < schedule.total and not ended:
            learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
            learned = max(schedule.warm - cycle, 0)  # cycles of the warm-up carry no losses
            first_update = max(schedule.updates_before(cycle), 0)
            losses = {k: np.asarray(v)[learned:] for k, v in sorted(metrics.items())}
            if bad := first_bad(losses, first_update, plan.run.first_seed):
                last = run.restore()
                kept = (
                    f"the checkpoint at step {last[0]:,} is kept" if last else "no checkpoint yet"
                )
                raise UserError(f"{name}: {bad}; stopped, {kept} in {run.path}")
            if learned < schedule.per_call:
                pending.append(losses)
            if episodes is not None:
                for seed, record in enumerate(to_records(jax.tree.map(np.asarray, episodes))):
                    log.append_batch(seed, record)
            cycle += schedule.per_call
            step = cycle * schedule.steps
            if cycle % schedule.per_report == 0:
                report()
            progress.advance(step)
            if cycle >= schedule.total or ended:
                save()
            elif stop_asked():
                save()
                raise Stopped(
                    f"stopped at step {step:,}; go on with: uvd train --resume {run.path}"
                )
            elif time.monotonic() - saved > plan.run.save_seconds:
                save()
                saved = time.monotonic()
    return step, learner.state
