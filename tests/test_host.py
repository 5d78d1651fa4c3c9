"""Runs on environments: the overlap's order, exact ratios, and resumption to the same bits."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import uvd
from uvd.agents import Agent, Spec
from uvd.agents.td3 import TD3Config
from uvd.cli import main
from uvd.collect.worker import EVAL, TRAIN, Played
from uvd.collect.workers import Workers
from uvd.core.policy import MLP, Norm, Policy
from uvd.core.replay import newest, records
from uvd.core.errors import Stopped, UserError
from uvd.training.on_workers import lagged, make_env_program, moved
from uvd.runs import Run
from uvd.settings import RunSettings
from uvd.tasks.goalenv import goal_task

ENV = "envs:Line-v0"
TINY = {
    "hidden": (16, 16), "batch": 16, "envs": 3, "warmup": 60, "seeds": 2, "steps": 600,
    "eval_every": 150, "eval_episodes": 4, "save_seconds": 0.0, "workers": 2, "quiet": True,
    "capacity": 250, "updates_per_step": 0.2,
}  # fmt: skip
ENDS = {"ends": True}  # episodes terminate, so their lengths vary
QUOTA, HORIZON = 30, 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing interrupted; it plays while it learns, however few the cores."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvd.training.on_workers.FEW_CORES", 0)
        uvd.train("her", ENV, out=out, task_settings=ENDS, **TINY)
    return out


def same(a: Path, b: Path) -> None:
    """The same learners, episodes and evaluations.

    Means over a report that was interrupted cover what came after it.
    """
    states = [Run.open(path).restore()[1] for path in (a, b)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)
    told = ("step", "updates", "eval/success_final", "eval/success_ever")
    rows = [[{k: r[k] for k in told} for r in Run.open(path).rows()] for path in (a, b)]
    assert rows[0] == rows[1]
    logs = [(path / "episodes/seed1.bin").read_bytes() for path in (a, b)]
    assert logs[0] == logs[1]


def children() -> list[str]:
    """Workers that any thread of this process started and that still run."""
    threads = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [child for thread in threads for child in thread.read_text().split()]
    found = []
    for pid in pids:
        with suppress(OSError):  # it ended just now
            if "uvd.collect" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def test_steps_and_updates_keep_their_ratio(whole):
    last = Run.open(whole).rows()[-1]
    assert last["step"] == 600
    assert last["updates"] == (600 - 60) // 5
    for seed in range(2):
        log = list(Run.open(whole).episodes().read(seed))
        assert len(log) == 600 // QUOTA
        done = 0
        for cycle, played in enumerate(log):
            lengths = played["length"]
            assert played["obs"].shape[1] == lengths.max() + 1, "padding was logged"
            assert (lengths > 0).all()
            done += lengths.sum()
            assert QUOTA * (cycle + 1) <= done < QUOTA * (cycle + 1) + HORIZON
            for i, n in enumerate(lengths):
                left = abs(played["achieved"][i, : n + 1]).max(-1) > 1
                assert played["terminated"][i] == left[-1]
                assert left[-1] or n == HORIZON
        assert len({len(played["length"]) for played in log}) > 1


def test_training_episodes_are_cut_and_evaluations_are_not(tmp_path, monkeypatch):
    played = Workers.play
    asked: dict[int, set[int]] = {}

    def watch(self, jobs, policies):
        episodes = played(self, jobs, policies)
        for job, episode in zip(jobs, episodes):
            asked.setdefault(job.purpose, set()).add(len(episode.action))
        return episodes

    monkeypatch.setattr(Workers, "play", watch)
    cut = {**TINY, "steps": 150, "episode_steps": 4}
    uvd.train("her", ENV, out=tmp_path / "part", **{**cut, "steps": 90, "eval_every": 30})
    uvd.resume(tmp_path / "part", steps=150, quiet=True)
    uvd.train("her", ENV, out=tmp_path / "run", **{**cut, "eval_every": 30})
    same(tmp_path / "part", tmp_path / "run")
    assert asked[TRAIN] == {4}
    assert asked[EVAL] == {HORIZON}
    done = 0
    for cycle, log in enumerate(Run.open(tmp_path / "run").episodes().read(0)):
        assert not log["terminated"].any(), "a cut is no end: its value goes on"
        done += log["length"].sum()
        assert QUOTA * (cycle + 1) <= done < QUOTA * (cycle + 1) + 4
    last = Run.open(tmp_path / "run").rows()[-1]
    assert last["updates"] == (150 - 60) // 5


def test_episodes_are_cut_later_once_enough_steps_were_played(tmp_path):
    cuts = {"episode_steps": 4, "late_episode_steps": 7, "late_steps": 2 * QUOTA}
    uvd.train("her", ENV, out=tmp_path / "run", **{**TINY, "steps": 150, **cuts})
    log = list(Run.open(tmp_path / "run").episodes().read(1))
    assert [set(played["length"].tolist()) for played in log] == [{4}, {4}, {7}, {7}, {7}]


@pytest.mark.parametrize(
    ("task", "steps", "message"),
    [
        (ENV, 11, "episode_steps = 11 is more than an episode's 10 steps"),
        (ENV, -1, "episode_steps = -1 must not be negative"),
        ("PointReach-v0", 5, "PointReach-v0 is played in whole episodes"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(task, steps, message, tmp_path):
    for name in ("episode_steps", "late_episode_steps"):
        with pytest.raises(UserError, match=message.replace("episode_steps", name)):
            uvd.train("td3", task, out=tmp_path / "run", **{name: steps}, quiet=True)
    assert not (tmp_path / "run").exists()


def test_later_steps_with_fewer_workers_equal_one_whole_run(whole, tmp_path):
    part = {**TINY, "steps": 300, "workers": 1}
    uvd.train("her", ENV, out=tmp_path / "run", task_settings=ENDS, **part)
    uvd.resume(tmp_path / "run", steps=600, quiet=True)
    same(tmp_path / "run", whole)


def test_ctrl_c_saves_and_leaves_no_process(tmp_path, monkeypatch):
    save = Run.save

    def press(self, step, *rest):
        if step == 210:
            os.kill(os.getpid(), signal.SIGINT)
        return save(self, step, *rest)

    monkeypatch.setattr(Run, "save", press)
    with pytest.raises(Stopped, match=r"stopped at step 240; go on with"):
        uvd.train("her", ENV, out=tmp_path / "run", task_settings=ENDS, **TINY)
    assert children() == []
    assert Run.open(tmp_path / "run").restore()[0] == 240


def test_killed_run_resumes_to_the_same_bits(whole, tmp_path):
    out = tmp_path / "run"
    code = (
        "import sys; sys.path.append(sys.argv[1]); import uvd\n"
        f"uvd.train('her', {ENV!r}, out=sys.argv[2], task_settings={ENDS}, **{TINY})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parent), str(out)])
    end = time.monotonic() + 60
    while len(list(out.glob("checkpoints/[0-9]*"))) < 2:
        assert time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert Run.open(out).restore(print)[0] < 600, "the kill came too late to test anything"
    uvd.resume(out, quiet=True)
    same(out, whole)


def test_lasting_trouble_saves_and_stops(tmp_path, monkeypatch):
    file, save = tmp_path / "now", Run.save

    def then_trouble(self, step, *rest):
        if step == 150:
            file.touch()
        return save(self, step, *rest)

    settings = {**TINY, "steps": 300, "seeds": 1}
    own = {"trouble": "die", "file": str(file), "always": True}
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", then_trouble)
        with pytest.raises(
            UserError, match=r"workers died.*; go on with: uvd train --res"
        ) as caught:
            uvd.train("td3", ENV, out=tmp_path / "run", task_settings=own, **settings)
    assert "\n" not in str(caught.value)
    assert children() == []
    assert Run.open(tmp_path / "run").restore()[0] == 180  # what could be learned from was


def test_lasting_trouble_in_an_evaluation_saves_too(whole, tmp_path, monkeypatch):
    file, play = tmp_path / "now", Workers.play

    def then_trouble(self, jobs, policies):
        if jobs[0].purpose == EVAL:
            file.touch()
        return play(self, jobs, policies)

    out, own = tmp_path / "run", {**ENDS, "trouble": "die", "file": str(file), "always": True}
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "play", then_trouble)
        with pytest.raises(UserError, match=r"workers died.*; go on with: uvd train --res"):
            uvd.train(
                "her", ENV, out=out, task_settings=own,
                **{**TINY, "steps": 150, "save_seconds": 1e6},
            )  # fmt: skip
    assert children() == []
    assert Run.open(out).restore()[0] == 150
    assert Run.open(out).rows() == []
    file.unlink()
    uvd.resume(out, quiet=True)  # nothing is left but that evaluation
    assert [row["step"] for row in Run.open(out).rows()] == [150]
    uvd.resume(out, steps=600, quiet=True)
    same(out, whole)


def counting_agent() -> Agent:
    """Its action tells how many updates it has seen."""

    def policy(updates):
        zero = [jnp.zeros(n) for n in (3, 2)]
        norm = Norm(zero[0], zero[0] + 1, zero[1], zero[1] + 1)
        bias = jnp.full(2, jnp.arctanh(updates * 0.01))
        return Policy(MLP((jnp.zeros((5, 2)),), (bias,)), norm)

    return Agent(
        lambda key, spec: jnp.zeros(()),
        lambda state, ring, key, step: (
            state + 1,
            {"step": step, "rows": ring.last, "key": jax.random.uniform(key)},
        ),
        policy,
    )


def test_a_judge_is_told_who_played_the_newest_episodes():
    task, seen = goal_task(ENV, {"ends": False}), []

    def judge(updates, player, ring, settled):
        row = newest(ring, QUOTA)[0]
        told = jnp.tanh(player.net.biases[0][0])
        jax.debug.callback(lambda *x: seen.append(x), told, ring.action[row, 0], settled)
        return updates + 1  # what it decides may change who plays, but not who is playing already

    agent = lagged(counting_agent()._replace(judge=judge))
    norm = Norm(*(np.zeros(n, np.float32) for n in (3, 3, 2, 2)))
    spec = Spec(3, 2, 2, task.success, norm, (0, 1))
    td3 = TD3Config(capacity=200, updates_per_step=0.1, noise=0.0, random=0.0)
    late = {"episode_steps": 5, "late_episode_steps": 10, "late_steps": 2 * QUOTA}

    def played(run: RunSettings, cycles: int) -> list[int]:
        seen.clear()
        program = make_env_program(agent, task, spec, td3, run, cycles, 1, Workers(task, 1))
        learner, lengths = program.init(0, 1), []
        for cycle in range(cycles):
            learner, episodes, _ = program.train(learner, jnp.asarray(cycle))
            lengths.append(int(episodes.length.max()))
        program.close()
        jax.effects_barrier()
        return lengths

    assert played(RunSettings(seeds=1, envs=3), 2) == [10, 10]
    assert [bool(settled) for *_, settled in seen] == [True]  # where nothing is ever cut
    lengths = played(RunSettings(seeds=1, envs=3, **late), 5)
    # The first cycle is not learned from; every other brings 3 updates and a judgement, seen two
    # cycles later.
    assert [round(100 * float(told)) for told, *_ in seen] == [0, 0, 4, 8]
    for told, action, _ in seen:
        np.testing.assert_allclose(action, told, atol=1e-6)
    assert lengths == [5, 5, 10, 10, 10]
    assert [bool(settled) for *_, settled in seen] == [False, True, True, True]


def test_who_is_chosen_is_evaluated_and_does_not_play(monkeypatch):
    plain, task = counting_agent(), goal_task(ENV, {"ends": False})
    agent = lagged(plain._replace(chosen=lambda updates: plain.policy(updates + 40)))
    norm = Norm(*(np.zeros(n, np.float32) for n in (3, 3, 2, 2)))
    spec = Spec(3, 2, 2, task.success, norm, (0, 1))
    td3 = TD3Config(capacity=90, updates_per_step=0.1, noise=0.0, random=0.0)
    play, actions = Workers.play, {}

    def spy(self, jobs, policies):
        played = play(self, jobs, policies)
        actions[jobs[0].purpose] = np.concatenate([p.action for p in played])
        return played

    monkeypatch.setattr(Workers, "play", spy)
    run, workers = RunSettings(seeds=1, envs=3), Workers(task, 1)
    program = make_env_program(agent, task, spec, td3, run, 1, 0, workers)
    learner, *_ = program.train(program.init(0, 1), jnp.asarray(0))  # 3 updates
    program.evaluate(learner.agent, EVAL, 2)
    program.close()
    np.testing.assert_allclose(actions[TRAIN], 0.0, atol=1e-6)
    np.testing.assert_allclose(actions[EVAL], 0.43, atol=1e-5)


@pytest.mark.parametrize("ends", [False, True])
def test_a_cycle_is_played_by_the_policy_of_the_cycle_before_the_last(ends):
    task = goal_task(ENV, {"ends": ends})
    agent = lagged(counting_agent())
    norm = Norm(*(np.zeros(n, np.float32) for n in (3, 3, 2, 2)))
    spec = Spec(3, 2, 2, task.success, norm, (0, 1))
    td3 = TD3Config(capacity=90, updates_per_step=0.1, noise=0.0, random=0.0)
    run = RunSettings(seeds=2, envs=3, first_seed=5)
    warm, total, updates = 1, 6, 3
    workers = Workers(task, 2)
    program = make_env_program(agent, task, spec, td3, run, total, warm, workers)
    learner, numbers = program.init(5, 2), [[], []]
    rings, logged, played_all = [], [], []
    for cycle in range(total):
        learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
        # Learned through cycle - 2, where cycles before the end of the warm-up teach nothing.
        seen = max(cycle - 1 - warm, 0) * updates
        for seed, played in enumerate(records(episodes)):
            first = [a[0, 0] for a in played["action"]]
            np.testing.assert_allclose(first, seen * 0.01, atol=1e-6)
            numbers[seed] += [tuple(o[0]) for o in played["obs"]]
        rings.append(np.asarray(learner.ring.last))
        if cycle >= warm:
            logged.append({k: np.asarray(v)[0] for k, v in metrics.items()})
        played_all.append(episodes)
    workers.close()
    again = program.init(5, 2)
    for episodes in played_all:
        again = program.replay(again, episodes)
    jax.tree.map(np.testing.assert_array_equal, again.ring, learner.ring)
    assert (learner.agent.state == (total - warm) * updates).all()
    assert len(set(numbers[0] + numbers[1])) == len(numbers[0] + numbers[1]), "an episode twice"
    steps = np.concatenate([m["step"][1] for m in logged])
    np.testing.assert_array_equal(steps, np.arange((total - warm) * updates))
    np.testing.assert_array_equal([m["rows"][:, 0] for m in logged], rings[warm:])
    assert len(np.unique(np.stack([m["key"] for m in logged]))) == 2 * steps.size
    assert program.traces == {"train": 1, "insert": 1}
    if not ends:
        np.testing.assert_array_equal(rings, [[30 * (c + 1)] * 2 for c in range(total)])


def test_loaded_run_acts_and_is_evaluated(whole, capsys):
    trained = uvd.load(whole)
    assert repr(trained) == f"Trained('{whole}', step 600)"
    obs, goal = np.zeros((5, 3)), np.full((5, 2), 0.5)
    assert trained.policy(seed=1)(obs, goal).shape == (5, 2)
    result = uvd.evaluate(trained, 5)
    assert all(len(v) == 2 and 0 <= min(v) <= max(v) <= 1 for v in result.values())
    assert result["eval/success_final"] <= result["eval/success_ever"]
    assert uvd.evaluate(trained, 5) == result
    assert main(["eval", str(whole), "--episodes", "3"]) == 0
    assert "ever reached" in capsys.readouterr().out
    assert children() == []


def test_actions_are_in_the_environments_units(tmp_path):
    own = {"low": 2.0, "high": 6.0, "says": False, "kind": "square"}
    settings = {**TINY, "steps": 150, "seeds": 1}
    trained = uvd.train("her", ENV, out=tmp_path / "run", task_settings=own, **settings)
    action = trained.policy()(np.zeros(3), np.zeros(2))
    inner = trained.plan.task.own_action(np.zeros(2, np.float32))
    np.testing.assert_array_equal(inner, [4, 4])
    assert ((action >= 2) & (action <= 6)).all()
    assert trained.rows()[-1]["critic/loss"][0] > 0


@pytest.mark.parametrize("task", ["envs:Line-v0", "PointLoop-v0"])
def test_settings_of_play_reach_those_who_play(tmp_path, task):
    """`beyond` what was drawn is in the memory; `range_noise` is what feature ranges are of."""

    def learn(name, **settings):
        sizes = {"seeds": 1, "steps": 200, "envs": 2, "workers": 1, "eval_episodes": 1, "batch": 8}
        return uvd.train(
            "td3", task, out=tmp_path / name, quiet=True, hidden=(8,), warmup=0, noise=1.0,
            random=0.0, updates_per_step=0.05, **sizes, **settings,
        )  # fmt: skip

    def farthest(run):
        return max(abs(record["action"]).max() for record in run.run.episodes().read(0))

    usual = learn("usual")
    wide = learn("wide", beyond=True, range_noise=0.1)
    assert farthest(usual) == 1
    assert farthest(wide) > 1.5
    narrow = wide.plan.spec.norm.obs_scale / usual.plan.spec.norm.obs_scale
    assert narrow.min() < 0.9


def test_a_drift_is_no_move():
    still = np.zeros((11, 2), np.float32)
    for kind, shift, expected in [
        ("sparse", 0.06, True),  # the radius is 0.25
        ("sparse", 0.04, False),
        ("square", 0.04, True),  # no distance
        ("square", 0.0005, False),
    ]:
        end = still.copy()
        end[-1, 0] = shift
        played = Played(still, still[:-1], end, still[0], False, None, still[:-1, 0])
        assert moved(goal_task(ENV, {"kind": kind}), played) == expected


def test_an_achieved_goal_that_is_not_shown_is_appended(tmp_path):
    settings = {**TINY, "steps": 150, "seeds": 1}
    trained = uvd.train("her", "envs:Blind-v0", out=tmp_path / "run", **settings)
    assert not trained.plan.task.shown
    assert goal_task(ENV, {}).shown
    actor = trained.policy()
    np.testing.assert_array_equal(actor.policy.norm.seen, [3, 4])  # after the environment's three
    assert actor(np.zeros(5), np.zeros(2)).shape == (2,)
    with pytest.raises(UserError, match="is 5 numbers: the environment's and the achieved goal, n"):
        actor(np.zeros(3), np.zeros(2))


def test_success_by_reward_needs_a_rule(tmp_path):
    with pytest.raises(UserError, match="combine = reward needs it"):
        uvd.train("uvd", ENV, out=tmp_path / "r", task_settings={"kind": "dense"}, combine="reward")
    assert not (tmp_path / "r").exists()


def test_fetch_trains_by_its_id(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("uvd.training.on_workers.PROBE_STEPS", 500)
    flags = ["--hidden", "16", "--batch=16", "--envs=1", "--steps=150", "--warmup=50"]
    flags += ["--eval-episodes=2", "--updates-per-step=0.1", "--workers=1", "--eval-every=50"]
    out = tmp_path / "run"
    assert main(["train", "her", "FetchReach-v4", f"--out={out}", *flags]) == 0
    assert "step 150" in capsys.readouterr().out
    (record, *_) = Run.open(out).episodes().read(0)
    assert record["obs"].shape == (1, 51, 10)
    assert not record["terminated"].any()
    assert abs(record["action"]).max() <= 1
