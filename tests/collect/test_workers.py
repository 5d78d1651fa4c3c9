"""Worker processes: no JAX, the same episodes from any worker, and no loss when one dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from uvd.collect.exploration import Exploration
from uvd.collect.worker import TRAIN, Job
from uvd.collect.workers import Policies, Workers, WorkersError
from uvd.core.errors import UserError
from uvd.core.policy import MLP, Norm, Policy
from uvd.tasks.find import find_task

ENDS = {"ends": True}


def make_policy(seed):
    rng = np.random.default_rng(seed)
    w = tuple(rng.standard_normal(s).astype(np.float32) for s in [(5, 8), (8, 2)])
    norm = Norm(*(np.full(n, v, np.float32) for n, v in [(3, 0), (3, 1), (2, 0), (2, 1)]))
    return Policy(MLP(w, (np.zeros(8, np.float32), np.zeros(2, np.float32))), norm)


NOISY = Exploration(0.2, 0.3, 3)
JOBS = [Job(i % 2, i // 2, TRAIN, 3 + i, NOISY) for i in range(8)]
POLICIES = Policies([make_policy(0), make_policy(1)])


def same(a, b):
    """Whether two lists of episodes are equal to the last bit."""
    return all(
        all(np.array_equal(x, y) for x, y in zip(e, f, strict=True))
        for e, f in zip(a, b, strict=True)
    )


@pytest.fixture
def start(request):
    """Makes pools of workers for the environment with some settings."""
    made = []

    def make(settings, number=2, **how):
        made.append(Workers(find_task("envs:Line-v0", settings), number, **how))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture(scope="module")
def pool():
    pool = Workers(find_task("envs:Line-v0", ENDS), 2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def expected(pool):
    """The episodes of all jobs."""
    return pool.play(JOBS, POLICIES)


def test_workers_have_no_jax():
    workers = Workers(find_task("envs:Modules-v0"), 1)
    try:
        episodes = workers.play(JOBS[:2], POLICIES)
    finally:
        workers.close()
    assert all((e.obs[:, 2] == 0).all() for e in episodes)


def test_the_number_and_the_order_of_workers_have_no_effect(pool, expected, start):
    one = start(ENDS, number=1)
    assert same(one.play(JOBS[::-1], POLICIES)[::-1], expected)
    assert same(pool.play(JOBS, Policies([make_policy(0), make_policy(1)])), expected)
    (other,) = pool.play(JOBS[:1], Policies([make_policy(5)]))
    assert not np.array_equal(other.action, expected[0].action), "workers keep an old policy"


def test_dead_and_hanging_workers_are_replaced(expected, start, tmp_path):
    for trouble in ("die", "hang"):
        file = tmp_path / trouble
        pool = start({**ENDS, "trouble": trouble, "file": str(file)}, seconds=5.0)
        pool.play(JOBS[:2], POLICIES)  # all are started
        file.touch()
        assert same(pool.play(JOBS, POLICIES), expected)
        assert not file.exists(), "no trouble was made"
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
    assert same(pool.play(JOBS, POLICIES), expected)


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("die", r"3 workers died in episode \d+ of .* \(exit code 7, last line: out of gears\)"),
        ("raise", r"failed in episode \d+ of seed \d: RuntimeError: the gripper is stuck"),
    ],
)
def test_what_keeps_failing_is_named_in_one_line(expected, start, tmp_path, trouble, says):
    file = tmp_path / "now"
    pool = start({**ENDS, "trouble": trouble, "file": str(file), "always": True}, number=1)
    file.touch()
    with pytest.raises(WorkersError, match=f"^envs:Line-v0.* {says}$"):
        pool.play(JOBS, POLICIES)
    file.unlink()
    assert same(pool.play(JOBS[:2], POLICIES), expected[:2]), "it works again afterwards"


def test_an_environment_that_cannot_be_sent_is_refused():
    task = find_task("envs:Line-v0")
    local = replace(task, spec=gym.envs.registration.EnvSpec("Local-v0", entry_point=lambda: None))
    with pytest.raises(UserError, match=r"cannot be sent to worker processes .*: register it"):
        Workers(local, 1)


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_closing_ends_the_processes_even_in_the_middle_of_an_episode(start, tmp_path):
    file = tmp_path / "now"
    pool = start({"trouble": "hang", "file": str(file), "always": True})
    pool.play(JOBS[:2], POLICIES)
    pids = [w.process.pid for w in pool._workers]
    assert all(map(alive, pids))
    file.touch()
    flight = pool.start(lambda: pool.play(JOBS, POLICIES))
    closing = threading.Timer(0.2, pool.close)
    closing.start()
    with pytest.raises(WorkersError):
        flight.result(timeout=20)
    closing.join()
    assert not any(map(alive, pids))
    file.unlink()
    assert len(pool.play(JOBS[:1], POLICIES)) == 1, "closed workers start again"


def test_workers_end_with_their_parent(tmp_path):
    code = (
        "import os, sys, time; sys.path.append(sys.argv[1]); file = sys.argv[2]\n"
        "from uvd.collect.workers import *; from uvd.tasks.find import find_task\n"
        "w = Workers(find_task('envs:Line-v0', {'trouble': 'hang', 'file': file}), 1)\n"
        "open(file, 'w').close(); w.start(lambda: w.play([Job(0, 0, 0, 0)], Policies()))\n"
        "while os.path.exists(file): time.sleep(0.01)\n"
        "print(w._workers[0].process.pid, flush=True); time.sleep(1000)\n"
    )
    here = Path(__file__).parents[1]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(here), str(tmp_path / "now")],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < end, "the worker outlived its parent"
        time.sleep(0.05)
