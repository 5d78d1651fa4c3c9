"""Trials on a Ray cluster: each is a task that finds its own run folder and newest checkpoint.

Ray starts a task again that was lost with its worker or its node, or that failed. The study's
folder must lie where all nodes see it. A task holds the lock of its trial's folder, so one that
was thought lost and its successor do not write at the same time.
"""

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from uvd import api
from uvd.core.config import require
from uvd.core.errors import UserError, one_line, refused
from uvd.study import runner
from uvd.study.runner import Progress, Rows

PORTS = {"ray": 10001, "": 6379}
PATIENCE = 10.0  # seconds for an address to answer
POLL = 2.0  # seconds between two looks at the trials


def train_trial(out: Path, name: str, rows: Rows) -> None:
    """A task: trains a trial to its end, from where it stands."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # trials may share a GPU
    where = f"the node {socket.gethostname()} does not see {out}"
    require((out / "study.json").exists(), f"{where}: a study must lie where all nodes see it")
    runner.prepare(out / name, rows)
    with runner.locked(out / name):
        if not runner.state_of(out / name, rows).finished:
            api.resume(out / name, quiet=True)


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
    trials, failed, stopped = runner.chosen(out, names), [], False
    ray = connect(address)
    task = ray.remote(train_trial).options(
        num_cpus=1, num_gpus=gpus, max_retries=runner.ATTEMPTS - 1, retry_exceptions=True
    )
    try:
        with runner.locked(out):
            progress = Progress(out, trials)
            progress.begin(f"on the Ray cluster at {address}")
            running = {task.remote(out, name, trials[name]): name for name in progress.left}
            said = dict.fromkeys(trials, "waiting")
            while running:
                done, _ = ray.wait(list(running), timeout=POLL)
                for name in running.values():
                    if (text := progress.state(name).text) != said[name]:
                        said[name] = text
                        progress.say(name, text)
                for ref in done:
                    name = running.pop(ref)
                    try:
                        ray.get(ref)
                    except Exception as error:  # of whatever kind: the other trials go on
                        failed.append(name)
                        progress.fail(name, one_line(getattr(error, "cause", None) or error))
    except KeyboardInterrupt:
        stopped = True
    finally:
        ray.shutdown()  # its tasks end
    runner.conclude(progress, failed, stopped)
