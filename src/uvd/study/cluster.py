"""Trials on a Ray cluster: each is a task that finds its own run folder and newest checkpoint.

Ray starts a task again that was lost with its worker or its node, or that failed. Where a node sees
the study's folder, a task trains in it. It holds the lock of its trial's folder, so one that was
thought lost and its successor do not write at the same time. Where a node does not see it, a task
gets a copy of the trial's folder, trains for some minutes and returns the copy, which the driver
writes back before it sends the next task.
"""

import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from uvd import api
from uvd.core.errors import UserError, one_line, refused
from uvd.runs import Run
from uvd.runs.files import Files, read_folder, write_folder
from uvd.settings import from_file
from uvd.study import runner
from uvd.study.runner import Progress, Rows
from uvd.training.plan import read_inputs

PORTS = {"ray": 10001, "": 6379}
PATIENCE = 10.0  # seconds for an address to answer
POLL = 2.0  # seconds between two looks at the trials
PIECE = 300.0  # seconds after which a copy goes back to the driver, at the next report


def prepare_process() -> None:
    """What JAX reads when it starts. A task has one core: more threads would hold others up."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # trials may share a GPU
    os.environ.setdefault("PJRT_NPROC", "1")


def train_in_place(out: Path, name: str, rows: Rows, study: bytes) -> bool:
    """A task: trains a trial to its end, from where it stands. False: this node does not see it."""
    prepare_process()
    path = out / "study.json"
    if not path.exists() or path.read_bytes() != study:
        return False
    runner.prepare(out / name, rows)
    with runner.locked(out / name):
        if not runner.state_of(out / name, rows).finished:
            api.resume(out / name, quiet=True)
    return True


def train_copy(files: Files, seconds: float) -> Files:
    """A task: goes on with a copy of a trial's folder for some time, and returns it."""
    prepare_process()
    begun = time.monotonic()
    with TemporaryDirectory(prefix="uvd-") as folder:
        path = Path(folder) / "trial"
        write_folder(path, files)
        api.resume(path, quiet=True, callback=lambda row: time.monotonic() - begun < seconds)
        return read_folder(path)


def copy_of(path: Path, rows: Rows) -> Files:
    """A trial's folder with all that it needs elsewhere, its demonstrations included."""
    runner.prepare(path, rows)
    run = Run.open(path)
    if run.read_demos() is None and (demos := read_inputs(from_file(rows))[0].demos) is not None:
        run.write_demos({name: x for name, x in demos._asdict().items() if x is not None})
    return read_folder(path)


def connect(address: str):
    """Ray, connected to a running cluster."""
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")  # seconds that Ray tries an address
    try:
        import ray
    except ImportError:
        raise UserError(
            "--ray needs Ray: pip install 'ray[client]' (the extra `ray` of this project)"
        ) from None
    silent = f"no Ray cluster answers at {address}"
    if address != "auto":
        url = urlsplit(address if "//" in address else f"//{address}")
        with refused(silent):  # where nothing listens Ray itself would wait for minutes
            place = (url.hostname or "", url.port or PORTS[url.scheme])
            socket.create_connection(place, PATIENCE).close()
    with refused(f"{silent}: start one with ray start --head"):
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def train(out: Path, names: Sequence[str], address: str, gpus: float = 0.0) -> None:
    """Trains what is not finished of the study's trials (or the named ones) on a cluster."""
    out = out.resolve()
    progress = Progress(out, names)
    ray, study = connect(address), (out / "study.json").read_bytes()
    needs = {"num_cpus": 1, "num_gpus": gpus}
    again = {"max_retries": runner.ATTEMPTS - 1, "retry_exceptions": True}
    tasks = (train_in_place, train_copy)
    here, elsewhere = (ray.remote(task).options(**needs, **again) for task in tasks)
    try:
        with runner.locked(out):
            trials, left = progress.trials, progress.begin(f"on the Ray cluster at {address}")
            running = {here.remote(out, name, trials[name], study): name for name in left}
            said = dict.fromkeys(left, "waiting")
            while running:
                done, _ = ray.wait(list(running), timeout=POLL)
                for name in running.values():
                    if (text := progress.state(name).text) != said[name]:
                        said[name] = text
                        progress.say(name, text)
                for ref in done:
                    name = running.pop(ref)
                    try:
                        result = ray.get(ref)
                        if isinstance(result, dict):
                            write_folder(out / name, result)
                        if not progress.state(name).finished:
                            files = copy_of(out / name, trials[name])
                            running[elsewhere.remote(files, PIECE)] = name
                    except Exception as error:  # of whatever kind: the other trials go on
                        progress.fail(name, one_line(getattr(error, "cause", None) or error))
    except KeyboardInterrupt:
        progress.stopped = True
    finally:
        ray.shutdown()  # its tasks end
    progress.conclude()
