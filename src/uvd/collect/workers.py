"""Experience from Gymnasium environments: processes that play whole episodes, an environment each.

A process that dies or hangs is replaced and its episode played again, which changes nothing: an
episode depends on its job alone. The learner's process has a thread for each, which only waits.
"""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import LifoQueue
from typing import Any

from uvd.collect.worker import Job
from uvd.core.episode import Episode
from uvd.core.errors import UserError, one_line
from uvd.core.policy import Policy
from uvd.tasks.env import EnvTask

DEATHS = 3  # so often may the workers of one episode die
_START = "import sys; sys.path = sys.argv[2:]; from uvd.collect.worker import main; main({fd})"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class WorkersError(UserError):
    """An environment cannot go on. The learner is as it was before."""


class Policies:
    """Policies for the workers, packed once; None is exploration alone."""

    def __init__(self, policies: Sequence[Policy | None] = (None,)) -> None:
        self.packed = [pickle.dumps(policy) for policy in policies]


class _Worker:
    """A process, started when it is needed and again after `close`."""

    process: subprocess.Popen | None = None

    def __init__(self, task: bytes, seconds: float) -> None:
        self.task, self.seconds = task, seconds

    def start(self) -> None:
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
        self.holds = b""  # the policy that the process has
        self.connection.send_bytes(self.task)
        self._answer()

    def play(self, job: Job, policies: Policies) -> Episode:
        policy = policies.packed[job.policy]
        self.connection.send((None if policy is self.holds else policy, job))
        self.holds = policy
        return self._answer()

    def _answer(self) -> Any:
        if not self.connection.poll(self.seconds):
            raise TimeoutError
        answer = self.connection.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> str:
        """Ends the process; says how it ended, if it did so by itself."""
        if self.process is None:
            return ""
        process, self.process = self.process, None
        self.connection.close()
        code = process.poll()
        process.kill()
        process.communicate()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().split("\n")[-1].strip()[:200]
        self.errors.close()
        ended = [f"exit code {code}"] * (code is not None) + [f"last line: {last}"] * bool(last)
        return f" ({', '.join(ended)})" if ended else ""


class Workers:
    """Processes that play episodes of one task. They start when needed and again after `close`."""

    def __init__(self, task: EnvTask, number: int = 0, seconds: float = 300.0) -> None:
        try:
            packed = pickle.dumps(task)
        except Exception as error:
            raise UserError(
                f"{task.id} cannot be sent to worker processes ({one_line(error)}): "
                "register it with an entry point 'module:Class'"
            ) from error
        self.task, self.seconds = task, seconds
        self._workers = [_Worker(packed, seconds) for _ in range(number or cores())]
        self._free: LifoQueue[_Worker] = LifoQueue()  # one that runs already comes first
        for worker in self._workers:
            self._free.put(worker)
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1)  # for work beside the caller
        self._closing = False

    def start(self, work: Callable[[], Any]) -> Future:
        """Does `work`, which may play, beside the caller."""
        return self._thread.submit(work)

    def play(self, jobs: Sequence[Job], policies: Policies) -> list[Episode]:
        """The episodes of these jobs, in their order."""
        with self._lock, ThreadPoolExecutor(len(self._workers)) as threads:
            self._closing = False
            episodes = [threads.submit(self._play, job, policies) for job in jobs]
            try:
                return [episode.result() for episode in episodes]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._kill()
                raise

    def close(self) -> None:
        """Ends all processes, also those that another thread waits for."""
        self._kill()
        self._thread.shutdown(cancel_futures=True)
        self._thread = ThreadPoolExecutor(1)
        for worker in self._workers:
            worker.close()

    def _kill(self) -> None:
        self._closing = True
        for worker in self._workers:
            if process := worker.process:
                process.kill()

    def _play(self, job: Job, policies: Policies) -> Episode:
        worker = self._free.get()
        try:
            for _ in range(DEATHS):
                if self._closing:
                    raise WorkersError(f"{self.task.id}: the workers were closed")
                when, why = "while starting", "died"
                try:
                    if worker.process is None:
                        worker.start()
                    when = f"in episode {job.number} of seed {job.seed}"
                    return worker.play(job, policies)
                except RuntimeError as error:
                    worker.close()
                    raise WorkersError(f"{self.task.id} failed {when}: {error}") from None
                except TimeoutError:
                    why = f"hung for {self.seconds:g} s"
                except (EOFError, ConnectionError):
                    assert worker.process
                    with suppress(subprocess.TimeoutExpired):
                        worker.process.wait(1)
                ended = worker.close()
            raise WorkersError(f"{self.task.id}: {DEATHS} workers {why} {when}{ended}")
        finally:
            self._free.put(worker)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
