"""Many runs on one machine: each trial is a process that trains a run folder of its own.

    OUT/study.json      the complete settings of all trials
    OUT/TRIAL/          an ordinary run folder; error.txt if the trial failed

A finished trial is used again and a partial one is resumed, so a study can be stopped, killed and
started again at will. A folder with the settings and metrics of a finished run alone counts as
finished: results are stored so.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from uvd import __version__
from uvd.agents import get_algorithm
from uvd.collect.worker import EVAL
from uvd.core.config import require
from uvd.core.errors import Stopped, UserError, refused
from uvd.runs import Run
from uvd.runs.files import replace_file
from uvd.settings import from_file, to_file
from uvd.study.file import Study, Trial
from uvd.training.plan import configure, make_plan, read_inputs
from uvd.training.progress import format_score

AT_ONCE = 2 if (os.cpu_count() or 1) > 1 else 1
ATTEMPTS = 3  # of a trial that fails
IMPORTS = 3.0  # seconds before a process has imported everything
Rows = dict[str, Any]  # what config.toml holds


def complete(study: Study, trials: Sequence[Trial]) -> dict[str, Rows]:
    """The complete settings of trials, by name. What cannot work is refused with its line."""
    found = {}
    for t in trials:
        try:
            config, _ = configure(t.algorithm, t.task, t.preset, t.given, t.task_settings)
        except UserError as error:
            raise study.refuse(error, t) from error
        found[t.name] = json.loads(json.dumps(to_file(config)))
    return found


def plan(out: Path, trials: Mapping[str, Rows]) -> None:
    """Adds trials to the study in `out`; refuses those that it has with other settings."""
    have = read_plan(out) if (out / "study.json").exists() else {}
    for name, rows in trials.items():
        if (out / name / "config.toml").exists():
            _require_same(Run.open(out / name), rows)
    whole = {"uvd_version": __version__, "trials": {**have, **trials}}
    replace_file(out / "study.json", json.dumps(whole, indent=1).encode() + b"\n")


def read_plan(out: Path) -> dict[str, Rows]:
    """The trials of the study in a folder."""
    path = out / "study.json"
    require(path.exists(), f"{out} is not a study folder: it has no study.json")
    with refused(f"{path} is damaged: start the study again into the same folder"):
        plan = json.loads(path.read_text("utf-8"))
        version, trials = plan["uvd_version"], plan["trials"]
    require(
        version.split(".")[:2] == __version__.split(".")[:2],
        f"{out} was made by uvd {version}, and this is uvd {__version__}: install uvd {version} "
        "to go on with it, or choose another folder with --out",
    )
    return trials


def _require_same(run: Run, want: Rows) -> None:
    """Refuses a run of other settings or of another version: results must not be mixed."""

    def flat(rows: Rows) -> dict[str, Any]:
        """All settings by name. A hash identifies demonstrations, wherever they are."""
        groups = {**rows["run"], **rows["settings"], **rows.get("demos", {}), "demos": None}
        groups |= {k: rows[k] for k in ("algorithm", "task", "preset", "task_settings")}
        return {name: value for name, value in groups.items() if value is not None}

    run.require_this_version()
    have, asked = flat(run.config), flat(want)
    for name in sorted(asked.keys() | have.keys()):
        require(
            have.get(name) == asked.get(name),
            f"{run.path} was trained with {name} = {have.get(name)}, not {asked.get(name)}: "
            "remove it, or choose another folder with --out",
        )


class State(NamedTuple):
    """How far a trial is."""

    step: int
    finished: bool
    text: str


def state_of(path: Path, rows: Rows) -> State:
    """The state of the trial in a folder, which need not exist yet."""
    if not (path / "config.toml").exists():
        return State(0, False, "waiting")
    run, total = Run.open(path), rows["run"]["steps"]
    reports = run.rows()
    step = reports[-1]["step"] if reports else 0
    score = f", {format_score(reports[-1])}" if reports else ""
    # A kill may fall between the last report and its checkpoint. Stored results have neither.
    saved = (path / "checkpoints" / f"{step}.safetensors").exists()
    if step >= total and (saved or not (path / "episodes").exists()):
        return State(total, True, f"finished{score}")
    text = f"step {step:,} of {total:,}{score}"
    if (path / "error.txt").exists():
        text = f"failed: {(path / 'error.txt').read_text('utf-8')}"
    return State(min(step, total), False, text)


def finished(out: Path, first: Iterable[str] = ()) -> list[Path]:
    """The folders in `out` of runs that reached their last step, the named ones first."""
    names = [*first, *sorted(path.parent.name for path in out.glob("*/config.toml"))]
    paths = [out / name for name in dict.fromkeys(names) if (out / name / "config.toml").exists()]
    return [path for path in paths if state_of(path, Run.open(path).config).finished]


def work(rows: Rows) -> float:
    """What a trial costs, in a unit of its own: updates, and a tenth for a step."""
    updates = rows["settings"].get("updates_per_step", 0.0)
    if get_algorithm(rows["algorithm"]).on_policy:
        updates = 0.0
    return rows["run"]["seeds"] * rows["run"]["steps"] * (updates + 0.1)


@contextmanager
def locked(out: Path) -> Iterator[int]:
    """Holds the study's lock, which goes with the process and those it started."""
    with (out / ".lock").open("w") as file:
        for patience in range(50, -1, -1):  # processes of a killed driver take a moment to end
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                require(patience, f"{out} is being trained by another uvd: wait, or stop that one")
                time.sleep(0.1)
        yield file.fileno()


def train(out: Path, names: Sequence[str] = (), at_once: int = 0) -> None:
    """Trains what is not finished of the study's trials (or the named ones), so many at a time."""
    progress = Progress(out, names)
    with locked(out) as lock:
        Driver(progress, lock).run(at_once or AT_ONCE)
    progress.conclude()


class Progress:
    """How far a study is, by what its trials (or the named ones) cost."""

    def __init__(self, out: Path, names: Sequence[str]) -> None:
        plan = read_plan(out)
        self.out = out
        self.trials = {name: rows for name, rows in plan.items() if not names or name in names}
        self.failed: list[str] = []
        self.stopped = False
        self.steps = dict.fromkeys(self.trials, 0)
        self.done_before, self.begun = 0.0, time.monotonic()

    def begin(self, how: str) -> list[str]:
        """Says what is to be trained and returns it, the longest first: none is left over alone."""
        states = {name: self.state(name) for name in self.trials}
        left = [name for name, state in states.items() if not state.finished]
        print(f"{len(left)} of {len(states)} trials to train, {how}, into {self.out}", flush=True)
        self.steps = {name: state.step for name, state in states.items()}
        self.done_before, self.begun = self._done(), time.monotonic()
        return sorted(left, key=lambda name: -work(self.trials[name]))

    def state(self, name: str) -> State:
        return state_of(self.out / name, self.trials[name])

    def _done(self) -> float:
        """The share of the study's work that is done."""
        costs = [work(rows) for rows in self.trials.values()]
        shares = [self.steps[name] / rows["run"]["steps"] for name, rows in self.trials.items()]
        return float(np.average(shares, weights=costs))

    def say(self, name: str, line: str) -> None:
        """A line of a trial, behind how far the study is."""
        self.steps[name] = self.state(name).step
        done, spent, left = self._done(), time.monotonic() - self.begun, ""
        if done > self.done_before:
            left = f", {spent / 60 * (1 - done) / (done - self.done_before):,.0f} min left"
        print(f"[{100 * done:.0f} %{left}] {name}: {line}", flush=True)

    def fail(self, name: str, why: str) -> None:
        """Writes down that a trial failed."""
        self.failed.append(name)
        replace_file(self.out / name / "error.txt", why.encode())
        self.say(name, f"failed: {why}")

    def conclude(self) -> None:
        """Says how to go on with a study that was stopped, or has trials that failed."""
        again = f"uvd sweep --resume {self.out}"
        if self.stopped:
            raise Stopped(f"stopped; go on with: {again}")
        many = f"{len(self.failed)} of {len(self.trials)} trials failed: {', '.join(self.failed)}"
        require(not self.failed, f"{many}; once more: {again}")


def prepare(path: Path, rows: Rows) -> None:
    """The run folder of a trial that is about to be trained."""
    if not (path / "config.toml").exists():
        Run.create(path, rows)
    (path / "error.txt").unlink(missing_ok=True)


class Driver:
    """Keeps so many trials in training at a time."""

    def __init__(self, progress: Progress, lock: int) -> None:
        self.progress, self.lock = progress, lock
        self.out, self.trials = progress.out, progress.trials
        self.processes: set[subprocess.Popen[str]] = set()

    def run(self, at_once: int) -> None:
        """Trains what is left. Ctrl-C stops all trials, which save; a second one ends them."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # trials may share a GPU
        pin = at_once > 1 and jax.default_backend() == "cpu" and hasattr(os, "sched_getaffinity")
        cores = sorted(os.sched_getaffinity(0)) if pin else [None]
        left = iter(self.progress.begin(f"{at_once} at a time"))  # all workers share it
        with ThreadPoolExecutor(at_once) as pool:
            workers = [pool.submit(self._work, left, cores[i % len(cores)]) for i in range(at_once)]
            while any(not worker.done() for worker in workers):
                try:
                    wait(workers)
                except KeyboardInterrupt:
                    self.progress.stopped = True
                    for process in list(self.processes):
                        process.send_signal(signal.SIGINT)
        for worker in workers:
            worker.result()

    def _work(self, left: Iterator[str], core: int | None) -> None:
        for name in left:
            if self.progress.stopped:
                return
            for _ in range(ATTEMPTS):
                try:
                    code, last = self._train(name, core)
                except UserError as error:  # the disk is full
                    code, last = 2, str(error)
                if self.progress.stopped:
                    return
                if code == 0:
                    break
            else:  # no attempt ended well
                self.progress.fail(name, last)

    def _train(self, name: str, core: int | None) -> tuple[int, str]:
        """Trains one trial in a process of its own; returns its exit code and its last line."""
        path, last = self.out / name, ""
        prepare(path, self.trials[name])
        with subprocess.Popen(
            [sys.executable, "-m", "uvd.study.trial", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches it through us, once
            env=os.environ | ({} if core is None else {"PJRT_NPROC": "1"}),  # a thread for its core
            pass_fds=(self.lock,),
        ) as process:
            self.processes.add(process)
            if core is not None:
                with suppress(OSError):  # it has ended already
                    # Threads of two runs on the same cores would wait for each other.
                    os.sched_setaffinity(process.pid, {core})
            for line in process.stdout or ():
                last = line.strip() or last
                self.progress.say(name, last)
        self.processes.discard(process)
        return process.returncode, last


def status(out: Path) -> None:
    """Prints how far each trial of a study is."""
    states = {name: state_of(out / name, rows) for name, rows in read_plan(out).items()}
    for name, state in states.items():
        print(f"{name}: {state.text}")
    print(f"{sum(s.finished for s in states.values())} of {len(states)} trials are finished")


def dry_run(trials: Mapping[str, Rows], at_once: int = 0) -> None:
    """Prints the trials and the time that they need, from timing one trial of each size."""
    at_once = at_once or AT_ONCE
    speeds: dict[tuple[Any, ...], tuple[float, float]] = {}
    seconds = {}
    for name, rows in trials.items():
        size_of = _sizes(rows)
        if size_of not in speeds:
            speeds[size_of] = _timing(rows)
        start, pace = speeds[size_of]
        seconds[name] = start + pace * work(rows)
        run = rows["run"]
        size = f"{run['seeds']} seeds x {run['steps']:,} steps"
        print(f"{name}: {size}, {seconds[name] / 60:,.1f} min", flush=True)
    total = max(sum(seconds.values()) / at_once, *seconds.values())
    print(
        f"{len(trials)} trials, {at_once} at a time: about {total / 60:,.0f} min. All seeds of a "
        "trial are one program (vmapped), a trial is a process"
    )


def _sizes(rows: Rows) -> tuple[Any, ...]:
    """What a unit of work depends on: not on rates and discounts, which are real numbers."""
    sizes = {k: v for k, v in rows["settings"].items() if not isinstance(v, float)}
    return rows["algorithm"], rows["run"]["seeds"], json.dumps(sizes, sort_keys=True)


def _timing(rows: Rows) -> tuple[float, float]:
    """Seconds that a trial takes to start, and for a unit of work."""
    config = from_file(rows)
    begun = time.monotonic()
    made = make_plan(config, read_inputs(config)[0])
    schedule, run, clock = made.schedule, made.run, []
    with closing(made.program) as program:
        learner = program.init(run.first_seed, run.seeds)
        for call in range(2):  # behind the warm-up; the first compiles
            cycle = jnp.asarray(schedule.warm + call * schedule.per_call, jnp.int32)
            learner, *_ = jax.block_until_ready(program.train(learner, cycle))
            clock.append(time.monotonic())
            jax.block_until_ready(program.evaluate(learner.state, EVAL, run.eval_episodes))
            clock.append(time.monotonic())
    _, compiled, trained, evaluated = clock
    calls, reports = schedule.total / schedule.per_call, schedule.total / schedule.per_report
    learning = (trained - compiled) * calls + (evaluated - trained) * reports
    return compiled - begun + IMPORTS, learning / work(rows)
