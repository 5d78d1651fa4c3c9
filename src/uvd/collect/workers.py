"""Experience from Gymnasium environments: processes that play whole episodes, an environment each.

A process that dies or hangs is replaced and its episode played again, which changes nothing: an
episode depends on its job alone. The learner's process keeps only this module's loop, which hands
out jobs and takes episodes; it holds no simulator.
"""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any

from uvd.collect.worker import Job
from uvd.core.episode import Episode
from uvd.core.errors import UserError, one_line
from uvd.core.policy import Policy
from uvd.tasks.goalenv import EnvTask

DEATHS = 3  # so often may the workers of one episode die
_START = "import sys; sys.path = sys.argv[2:]; from uvd.collect.worker import main; main({fd})"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class WorkersError(UserError):
    """An environment cannot go on. The learner is as it was before."""


class Policies:
    """Policies for the workers: packed once, sent to a worker when it first needs one."""

    _versions = count()

    def __init__(self, policies: Sequence[Policy] = ()) -> None:
        self.version = next(self._versions)
        self.packed = [pickle.dumps(policy) for policy in policies]


class _Worker:
    """A process and what it is doing."""

    def __init__(self, task: bytes) -> None:
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START.format(fd=fd), "", *sys.path],
            stdin=subprocess.PIPE, stdout=self.errors, stderr=self.errors, pass_fds=[fd],
            env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            start_new_session=True,  # Ctrl-C is for the parent, which then closes the workers
        )  # fmt: skip
        theirs.close()
        self.connection = Connection(ours.detach())
        self.job: int | None = None
        self.ready = False
        self.version = -1
        self.holds: set[int] = set()  # whose policies of that version it has
        self.deadline = 0.0
        with suppress(ConnectionError):
            self.connection.send_bytes(task)

    def give(self, index: int, job: Job, policies: Policies) -> None:
        if self.version != policies.version:
            self.version, self.holds = policies.version, set()
        new = bool(policies.packed) and job.policy not in self.holds
        self.connection.send((policies.version, policies.packed[job.policy] if new else None, job))
        self.holds.add(job.policy)
        self.job = index

    def close(self) -> str:
        """Ends the process; says how it ended, if it did so by itself."""
        self.connection.close()
        code = self.process.poll()
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        self.errors.close()
        last = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
        return ", ".join(
            [f"exit code {code}"] * (code is not None) + [f"last line: {last}"] * bool(last)
        )


class Workers:
    """Processes that play episodes of one task. They start when needed and again after `close`."""

    def __init__(self, task: EnvTask, number: int = 0, seconds: float = 300.0) -> None:
        self.task = task
        self.number = number or cores()
        self.seconds = seconds
        try:
            self._packed = pickle.dumps(task)
        except Exception as error:
            raise UserError(
                f"{task.id} cannot be sent to worker processes ({one_line(error)}): "
                "register it with an entry point 'module:Class'"
            ) from error
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._closing = False

    def start(self, work: Callable[[], Any]) -> Future:
        """Does `work`, which may play, beside the caller."""
        self._thread = self._thread or ThreadPoolExecutor(1)
        return self._thread.submit(work)

    def play(self, jobs: Sequence[Job], policies: Policies) -> list[Episode]:
        """The episodes of these jobs, in their order."""
        with self._lock:
            try:
                return self._play(jobs, policies)
            except BaseException:
                # Who still plays would give his answer to the next question.
                for worker in [w for w in self._workers if w.job is not None]:
                    self._drop(worker)
                raise

    def close(self) -> None:
        """Ends all processes, also those that another thread waits for."""
        self._closing = True
        for worker in list(self._workers):
            with suppress(OSError):
                worker.process.kill()
        if self._thread:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        for worker in list(self._workers):
            self._drop(worker)
        self._closing = False

    def _play(self, jobs: Sequence[Job], policies: Policies) -> list[Episode]:
        done: dict[int, Episode] = {}
        todo = deque(range(len(jobs)))
        deaths: Counter[int | None] = Counter()

        def when(index: int | None) -> str:
            if index is None:
                return "while starting"
            return f"in episode {jobs[index].number} of seed {jobs[index].seed}"

        def lost(worker: _Worker, why: str) -> None:
            if why == "died":
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(1)
            how = self._drop(worker)
            deaths[worker.job] += 1
            if deaths[worker.job] == DEATHS:
                ended = f" ({how})" if how else ""
                raise WorkersError(
                    f"{self.task.id}: {DEATHS} workers {why} {when(worker.job)}{ended}"
                )
            if worker.job is not None:
                todo.appendleft(worker.job)

        while len(done) < len(jobs):
            if self._closing:
                raise WorkersError(f"{self.task.id}: the workers were closed")
            free = sum(w.job is None for w in self._workers)
            for _ in range(min(self.number - len(self._workers), len(todo) - free)):
                self._workers.append(_Worker(self._packed))
                self._workers[-1].deadline = time.monotonic() + self.seconds
            for worker in [w for w in self._workers if w.ready and w.job is None]:
                if todo:
                    index = worker.job = todo.popleft()
                    worker.deadline = time.monotonic() + self.seconds
                    try:
                        worker.give(index, jobs[index], policies)
                    except OSError:
                        lost(worker, "died")
            busy = [w for w in self._workers if w.job is not None or not w.ready]
            first = min((w.deadline for w in busy), default=0.0)
            ready = wait([w.connection for w in busy], max(first - time.monotonic(), 0))
            for worker in busy:
                if worker.connection in ready:
                    try:
                        kind, content = worker.connection.recv()
                    except (EOFError, OSError):
                        lost(worker, "died")
                        continue
                    if kind == "error":
                        self._drop(worker)
                        raise WorkersError(f"{self.task.id} failed {when(worker.job)}: {content}")
                    if kind == "ready":
                        worker.ready = True
                    else:
                        done[worker.job] = content  # type: ignore[index]
                        worker.job = None
                elif time.monotonic() > worker.deadline:
                    lost(worker, f"hung for {self.seconds:g} s")
        return [done[i] for i in range(len(jobs))]

    def _drop(self, worker: _Worker) -> str:
        if worker in self._workers:
            self._workers.remove(worker)
            return worker.close()
        return ""


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
