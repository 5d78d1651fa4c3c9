"""Worker processes: no JAX, the same episodes whoever plays them, and no loss when one dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from uvd.collect.exploration import Exploration, explore
from uvd.collect.worker import EVAL, TRAIN, Job
from uvd.collect.workers import Policies, Workers, WorkersError
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.tasks.goalenv import goal_task

STEPS = 30_000


@pytest.mark.parametrize(("share", "hold"), [(0.3, 1), (0.3, 3), (0.1, 10), (1.0, 5)])
def test_exploration_has_the_statistics_of_the_devices(share, hold):
    how, rng = Exploration(0.2, share, hold), np.random.default_rng(0)
    action = np.float32([0.1, -0.2])
    taken, wild = [np.zeros(2, np.float32)], [False]
    for _ in range(STEPS):
        step = explore(how, rng, action, taken[-1], wild[-1])
        taken.append(step[0])
        wild.append(step[1])
    taken, wild = np.stack(taken[1:]), np.array(wild[1:])
    assert taken.dtype == np.float32
    fresh = wild & np.r_[True, (taken[1:] != taken[:-1]).any(-1)]
    assert wild.mean() == pytest.approx(share, abs=5 * (hold / STEPS) ** 0.5)
    assert wild.sum() / fresh.sum() == pytest.approx(hold, rel=5 / fresh.sum() ** 0.5)
    assert taken[fresh].std(0) == pytest.approx(1 / 3**0.5, rel=5 / fresh.sum() ** 0.5)
    if share < 1:
        calm = taken[~wild]
        assert calm.std(0) == pytest.approx(0.2, rel=0.03)
        assert calm.mean(0) == pytest.approx(action, abs=0.01)


def test_exploration_is_clipped_and_silent_without_settings():
    rng = np.random.default_rng(0)
    action = np.float32([0.9, -1.0])
    edge = np.stack([explore(Exploration(0.5), rng, action, action, False)[0] for _ in range(5000)])
    assert abs(edge).max() == 1
    assert (edge[:, 1] == -1).mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(explore(Exploration(), rng, action, action, False)[0], action)
    wide = Exploration(0.5, beyond=True)
    free = np.stack([explore(wide, rng, action, action, False)[0] for _ in range(5000)])
    assert free.std(0) == pytest.approx(0.5, rel=0.05)
    assert free.mean(0) == pytest.approx(action, abs=0.03)


def policy(seed=0):
    rng = np.random.default_rng(seed)
    w = tuple(rng.standard_normal(s).astype(np.float32) for s in [(5, 8), (8, 2)])
    norm = Norm(*(np.full(n, v, np.float32) for n, v in [(3, 0), (3, 1), (2, 0), (2, 1)]))
    return Policy(MLP(w, (np.zeros(8, np.float32), np.zeros(2, np.float32))), norm)


NOISY = Exploration(0.2, 0.3, 3)
JOBS = [Job(i % 2, i // 2, TRAIN, 3 + i, NOISY) for i in range(8)]
POLICIES = Policies([policy(0), policy(1)])


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def workers(request):
    made = []

    def make(settings=None, name="envs:Line-v0", **how):
        made.append(Workers(goal_task(name, settings), **{"number": 2, **how}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_workers_have_no_jax(workers):
    played = workers(name="envs:Modules-v0").play(JOBS, POLICIES)
    assert all((p.obs[:, 2] == 0).all() for p in played)


def test_an_episode_depends_on_its_job_alone(workers):
    pool = workers({"ends": True})
    first = pool.play(JOBS, POLICIES)
    other = workers({"ends": True}, number=1).play(JOBS[::-1], POLICIES)[::-1]
    again = pool.play(JOBS, Policies([policy(0), policy(1)]))
    assert all(same(a, b) for a, b in zip(first, other, strict=True))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    variants = [Job(0, 0, TRAIN, 0), Job(0, 1, TRAIN, 0), Job(0, 0, EVAL, 0), Job(0, 0, TRAIN, 1)]
    starts = [p.obs[0] for p in pool.play(variants, POLICIES)]
    assert len(np.unique(np.stack(starts), axis=0)) == 4
    moved = pool.play([JOBS[0]], Policies([policy(5)]))[0]
    assert not np.array_equal(moved.action, first[0].action), "a new policy must reach the workers"


def test_rows_are_what_happened(workers):
    played = workers({"ends": True, "low": -3.0, "high": 0.5}).play(
        [Job(0, 0, TRAIN, i) for i in range(30)], POLICIES
    )
    lengths = {len(p.action) for p in played}
    assert 10 in lengths
    assert min(lengths) < 10
    for p in played:
        n = len(p.action)
        assert p.obs.shape == (n + 1, 3)
        assert p.achieved.shape == (n + 1, 2)
        np.testing.assert_array_equal(p.obs[:, :2], p.achieved)
        np.testing.assert_allclose(p.obs[:, 2], np.arange(n + 1) / 10, atol=1e-6)
        goal = np.repeat(p.goal[None], n, 0)
        np.testing.assert_allclose(p.action, act(policy(0), p.obs[:-1], goal), atol=1e-5)
        # The environment undoes the rescaling: a step is a fifth of the action, and some noise.
        np.testing.assert_allclose(np.diff(p.achieved, axis=0), 0.2 * p.action, atol=0.1)
        left = abs(p.achieved).max(-1) > 1
        assert p.terminated == left[-1]  # and running out of time is no end
        assert not left[:-1].any()
        gap = np.linalg.norm(p.achieved[1:] - p.goal, axis=-1)
        np.testing.assert_array_equal(p.success, gap <= 0.25)


def test_what_was_drawn_beyond_the_bounds_is_kept_and_played_within(workers):
    """The environment refuses actions that are not its own; moves are of the action cut to ±1."""
    job = Job(0, 0, TRAIN, 0, Exploration(2.0, beyond=True))
    (p,) = workers().play([job], POLICIES)
    assert (abs(p.action) > 1).mean() > 0.3
    np.testing.assert_allclose(
        np.diff(p.achieved, axis=0), 0.2 * np.clip(p.action, -1, 1), atol=0.1
    )


def test_dead_and_hanging_workers_are_replaced(workers, tmp_path):
    expected = workers().play(JOBS, POLICIES)
    for trouble in ("die", "hang"):
        file = tmp_path / trouble
        pool = workers({"trouble": trouble, "file": str(file)}, seconds=4.0)
        pool.play(JOBS[:2], POLICIES)  # all are started
        file.touch()
        played = pool.play(JOBS, POLICIES)
        assert not file.exists(), "no trouble was made"
        assert all(same(a, b) for a, b in zip(played, expected, strict=True))
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
    assert all(same(a, b) for a, b in zip(pool.play(JOBS, POLICIES), expected, strict=True))


def test_what_keeps_failing_is_named_in_one_line(workers, tmp_path):
    file = tmp_path / "now"
    for trouble, says in [
        (
            "die",
            r"3 workers died in episode \d+ of seed \d \(exit code 7, last line: out of gears\)",
        ),
        ("raise", r"failed in episode \d+ of seed \d: RuntimeError: the gripper is stuck"),
    ]:
        settings = {"trouble": trouble, "file": str(file), "always": True}
        pool = workers(settings, number=1)
        file.touch()
        with pytest.raises(WorkersError, match=f"^envs:Line-v0.* {says}$"):
            pool.play(JOBS, POLICIES)
        file.unlink()
        assert len(pool.play(JOBS, POLICIES)) == len(JOBS), "it works again after the trouble"


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_closing_ends_the_processes_even_in_the_middle(workers, tmp_path):
    file = tmp_path / "now"
    pool = workers({"trouble": "hang", "file": str(file), "always": True})
    pool.play(JOBS[:2], POLICIES)
    pids = [w.process.pid for w in pool._workers]
    assert all(map(alive, pids))
    file.touch()
    flight = pool.start(lambda: pool.play(JOBS, POLICIES))
    closing = threading.Timer(0.3, pool.close)
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
        "from uvd.collect.workers import *; from uvd.tasks.goalenv import goal_task\n"
        "w = Workers(goal_task('envs:Line-v0', {'trouble': 'hang', 'file': file}), 1)\n"
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
