"""Tasks without goals and demonstrations in whole runs: training, resuming, refusing, recording."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import uvd
import uvd.api
from uvd.agents import ALGORITHMS, Algorithm
from uvd.agents.agent import Agent, Spec
from uvd.agents.td3 import TD3Config
from uvd.cli import main
from uvd.collect.worker import EVAL, TRAIN, Job
from uvd.collect.workers import Policies, Workers
from uvd.core.nets import init_mlp
from uvd.core.policy import MLP, Norm, Policy, act
from uvd.core.replay import newest, records
from uvd.demos.memory import Trajectory
from uvd.core.errors import UserError
from uvd.training.evaluate import evaluate_policy
from uvd.experiments.pointloop import make_demos, visited
from uvd.experiments.statistics import energy_distance
from uvd.demos.files import load_demos, write_gail, write_npz
from uvd.training.on_workers import lagged, make_env_program
from uvd.training.loop import find_task, make_config, make_plan
from uvd.training.on_device import make_program
from uvd.runs import Run
from uvd.settings import RunSettings, shared
from uvd.tasks.rewardenv import env_task, with_previous_action

WALK = "envs:Walk-v0"


@dataclass(frozen=True)
class CloneConfig:
    td3: TD3Config = field(default_factory=lambda: TD3Config(noise=0.0, random=0.0, warmup=0))


def make_clone(config: CloneConfig, spec: Spec) -> Agent:
    """Regression on the demonstrated actions, the whole of them in each update."""
    demos, adam = jax.tree.map(jnp.asarray, spec.demos), optax.adam(config.td3.actor_lr)
    goal = np.zeros((len(demos.obs), 0), np.float32)

    def init(key, spec):
        net = init_mlp(key, (spec.obs_dim, *config.td3.hidden, spec.action_dim), 0.1)
        return net, adam.init(net), jax.tree.map(jnp.asarray, spec.norm)

    def update(state, ring, key, step):
        net, opt, norm = state
        miss = lambda n: ((act(Policy(n, norm), demos.obs, goal) - demos.action) ** 2).mean()  # noqa: E731
        loss, grads = jax.value_and_grad(miss)(net)
        change, opt = adam.update(grads, opt)
        return (optax.apply_updates(net, change), opt, norm), {"actor/loss": loss}

    return Agent(init, update, lambda state: Policy(state[0], state[2]))


@pytest.fixture(autouse=True)
def clone(monkeypatch):
    monkeypatch.setitem(
        ALGORITHMS,
        "clone",
        Algorithm("a clone", CloneConfig, make_clone, learns_from="demos", needs_actions=True),
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Path:
    """Four demonstrations of PointLoop."""
    return write_npz(make_demos(4), tmp_path_factory.mktemp("demos") / "loop")


SMALL = {"hidden": (32, 32), "seeds": 2, "envs": 2, "eval_episodes": 8, "quiet": True}
CLONE = {**SMALL, "steps": 1600, "eval_every": 400, "save_seconds": 0.0}


@pytest.fixture(scope="module")
def cloned(shown, tmp_path_factory):
    out = tmp_path_factory.mktemp("clone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        entry = Algorithm("a clone", CloneConfig, make_clone, "demos", needs_actions=True)
        patch.setitem(ALGORITHMS, "clone", entry)
        return uvd.train("clone", "PointLoop-v0", demos=shown, every=2, out=out, **CLONE)


def state(path: Path) -> dict[str, np.ndarray]:
    return Run.open(path).restore()[1]


def same(a: Path, b: Path) -> None:
    jax.tree.map(np.testing.assert_array_equal, state(a), state(b))
    told = [[(r["step"], r["eval/return"]) for r in Run.open(p).rows()] for p in (a, b)]
    assert told[0] == told[1]
    logs = [(p / "episodes/seed1.bin").read_bytes() for p in (a, b)]
    assert logs[0] == logs[1]


def test_a_clone_learns_what_was_shown(cloned):
    first, *_, last = cloned.rows()
    assert min(last["eval/return"]) > max(70, *first["eval/return"])
    assert {"collect/return", "eval/return"} <= set(last)
    assert not [name for name in last if "success" in name or "moved" in name]
    shown = visited(make_demos(4, seed=1))
    own = [visited(uvd.api.record(cloned, 4, seed)[0]) for seed in cloned.seeds]
    assert max(energy_distance(x, shown) for x in own) < 0.2  # random play: 0.44
    told = cloned.run.config["demos"]
    assert told.keys() == {"demos", "every", "sha256"}
    assert cloned.policy()(np.zeros((3, 4))).shape == (3, 2)
    with pytest.raises(UserError, match="no goals: act on obs alone"):
        cloned.policy()(np.zeros((3, 4)), np.zeros((3, 2)))


def test_resumes_to_the_same_bits_wherever_its_demonstrations_have_gone(shown, cloned, tmp_path):
    files = tmp_path / "loop"
    write_npz(load_demos(shown).trajectories, files)
    out = tmp_path / "run"
    settings = {**CLONE, "steps": 400}
    uvd.train("clone", "PointLoop-v0", demos=files, every=2, out=out, **settings)
    moved = files.rename(tmp_path / "elsewhere")
    uvd.resume(out, steps=1600, quiet=True)
    same(out, cloned.run.path)
    kept = out / "demos.safetensors"
    data = kept.read_bytes()
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        kept.write_bytes(damaged)
        with pytest.raises(UserError, match=r"demos.safetensors is damaged .*: remove it"):
            uvd.load(out)
    # Without what it keeps, a run reads the source again, which is to be the same.
    kept.unlink()
    with pytest.raises(UserError, match="no such file or folder"):
        uvd.load(out)
    write_npz(load_demos(moved).trajectories[::-1], files)
    with pytest.raises(UserError, match="holds other demonstrations than those this run began"):
        uvd.resume(out, quiet=True)
    shutil.rmtree(files)
    moved.rename(files)
    uvd.resume(out, quiet=True)
    assert kept.read_bytes() == data


@pytest.mark.parametrize(
    ("wrong", "right"), [("demo", "demos"), ("evry", "every"), ("seed", "seeds")]
)
def test_an_unknown_setting_is_told_its_nearest(wrong, right):
    with pytest.raises(UserError, match=f"unknown setting '{wrong}'; nearest: {right}, "):
        uvd.train("clone", "PointLoop-v0", **{wrong: 1})


def test_the_pairs_are_the_chosen_ones_and_widen_the_ranges(shown, tmp_path):
    asked = {"trajectories": 2, "every": 20, "offset": 3, "previous_action": True}
    own = {"hidden": (8,)}
    config = make_config(
        "clone", "PointLoop-v0", "default", {"envs": 2}, own, {}, {"demos": str(shown), **asked}
    )
    plan = make_plan(config)
    spec, demos = plan.spec, load_demos(shown).trajectories[:2]
    steps = np.arange(3, 100, 20)
    obs = np.concatenate([t.obs[steps] for t in demos])
    np.testing.assert_array_equal(spec.demos.obs[:, :4], obs)
    before = np.concatenate([t.action[steps - 1] for t in demos])
    np.testing.assert_array_equal(spec.demos.obs[:, 4:], before)
    np.testing.assert_array_equal(
        spec.demos.action, np.concatenate([t.action[steps] for t in demos])
    )
    after = np.concatenate([t.obs[steps + 1] for t in demos])
    np.testing.assert_array_equal(spec.demos.next_obs[:, :4], after)
    assert (spec.obs_dim, spec.goal_dim, spec.cycle, spec.rewards) == (6, 0, 200, True)
    assert spec.norm.far is None  # ranges, not spreads
    assert spec.live_obs == tuple(range(6))
    unit = (spec.demos.obs - spec.norm.obs_shift) / spec.norm.obs_scale
    assert abs(unit).max() < 1 + 1e-5  # random play alone is far slower than the expert
    run = Run.create(tmp_path / "r", config)
    assert run.config["demos"] == {
        **asked,
        "demos": str(shown),
        "sha256": config["demos"]["sha256"],
    }
    trained = uvd.api.Trained(run, plan, 0, plan.program.init(0, 1).agent)
    recorded, ended = uvd.api.record(trained, 2)
    assert recorded[0].obs.shape == (101, 4)
    assert ended == [False, False]


def hdf5(path: Path, **changes) -> Path:
    """A file of two trajectories that fits PointLoop, apart from the changes."""
    arrays = {
        "obs_B_T_Do": np.ones((2, 30, 4)), "a_B_T_Da": np.ones((2, 30, 2)),
        "len_B": np.array([30, 30]), **changes,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, x in arrays.items():
            if x is not None:
                file[name] = x
    return path


@pytest.mark.parametrize(
    ("changes", "flags", "says"),
    [
        ({"obs_B_T_Do": np.ones((2, 30, 5))}, [], "obs_B_T_Do has 5 numbers a step, PointLoop"),
        ({"a_B_T_Da": np.ones((2, 30, 3))}, [], "a_B_T_Da has 3 numbers a step, PointLoop"),
        ({"obs_B_T_Do": np.full((2, 30, 4), np.nan)}, [], "obs_B_T_Do[0] is nan at step 0"),
        ({"a_B_T_Da": None}, [], "has no actions: clone needs them"),
        ({"len_B": np.array([30, 0])}, [], "len_B[1] is 0, expected 1 to 30"),
        ({}, ["--trajectories", "3"], "has 2 trajectories, 3 were asked for"),
        ({}, ["--trajectories", "0"], "trajectories = 0 must be at least 1"),
        ({}, ["--every", "0"], "every = 0 must be a whole number, at least 1"),
        ({}, ["--every", "100"], "every = 100 takes none"),
        ({}, ["--every", "5", "--offset", "5"], "offset = 5 must lie in 0 to every - 1 = 4"),
    ],
)
def test_bad_demonstrations_are_refused_in_one_line(
    tmp_path, monkeypatch, capsys, changes, flags, says
):
    monkeypatch.chdir(tmp_path)
    hdf5(tmp_path / "d.h5", **changes)
    assert main(["train", "clone", "PointLoop-v0", "--demos", "d.h5", *flags]) == 2
    text = capsys.readouterr().err
    assert says in text
    assert "d.h5" in text or flags
    assert text.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["d.h5"]


@pytest.mark.parametrize(
    ("algorithm", "flags"), [("vdi", ["--preset", "kernel"]), ("dac", ["--reads", "action"])]
)
def test_who_reads_actions_names_the_file_that_has_none(
    tmp_path, monkeypatch, capsys, algorithm, flags
):
    monkeypatch.chdir(tmp_path)
    hdf5(tmp_path / "d.h5", a_B_T_Da=None)
    assert main(["train", algorithm, "PointLoop-v0", "--demos", "d.h5", *flags]) == 2
    text = capsys.readouterr().err
    assert "d.h5: no actions, which" in text
    assert text.count("\n") == 1


def test_what_an_algorithm_refuses_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    def make(config, spec):
        assert (spec.obs_dim, spec.cycle) == (6, 400)
        assert len(spec.demos.obs) == 60
        assert spec.demos.next_obs is None  # the last steps are among them
        raise UserError("it wants to know what came next")

    monkeypatch.setitem(ALGORITHMS, "clone", ALGORITHMS["clone"]._replace(make=make))
    monkeypatch.chdir(tmp_path)
    hdf5(tmp_path / "d.h5")
    args = ["train", "clone", "PointLoop-v0", "--demos", "d.h5", "--previous-action"]
    assert main(args) == 2
    assert "it wants to know what came next" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["d.h5"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["clone", "PointLoop-v0"], "clone needs demonstrations: give --demos FILE"),
        (["clone", "PointLoop-v0", "--demos", "no.h5"], "no.h5"),
        (["clone", "PointLoop-v0", "--demos", "torn.h5"], "torn.h5"),
        (["clone", "PointPush-v0", "--demos", "d.h5"], "PointPush-v0 has goals"),
        (["td3", "PointLoop-v0", "--demos", "d.h5"], "td3 does not imitate: leave out --demos"),
        (["td3", "PointLoop-v0", "--every", "5"], "td3 does not imitate: leave out --every"),
        (["her", "PointLoop-v0"], "her needs a task with goals, and PointLoop-v0 has none"),
        (["uvd", WALK], f"uvd needs a task with goals, and {WALK} has none"),
        (["clone", "envs:ToldWalk-v0", "--demos", "d.h5"], "tells its critics more"),
        (["td3", "HalfCheetahNonExploitabel-v0"], "nearest: HalfCheetahNonExploitable-v0"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    tmp_path, monkeypatch, capsys, args, says
):
    monkeypatch.chdir(tmp_path)
    whole = hdf5(tmp_path / "d.h5").read_bytes()
    (tmp_path / "torn.h5").write_bytes(whole[: len(whole) // 2])
    assert main(["train", *args]) == 2
    text = capsys.readouterr().err
    assert says in text
    assert text.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {"d.h5", "torn.h5"}


TD3 = {
    **SMALL, "steps": 600, "eval_every": 300, "warmup": 100, "batch": 32, "updates_per_step": 0.5,
    "capacity": 500, "workers": 2, "save_seconds": 0.0, "envs": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """TD3 on an environment without goals whose episodes end early."""
    out = tmp_path_factory.mktemp("walk") / "run"
    own = {"low": 0.0, "high": 4.0}
    settings = {**TD3, "warmup_random": True}
    return uvd.train("td3", WALK, out=out, task_settings=own, **settings)


def test_td3_learns_from_an_environments_rewards(walked):
    assert walked.run.config["settings"]["critic_head"] == "linear"
    last = walked.rows()[-1]
    assert np.isfinite(last["critic/loss"]).all()
    # Random play earns about 0. Up to the edge and no further is worth more than to go beyond.
    assert min(last["eval/return"]) > 3
    assert last["collect/return"] != last["eval/return"]
    log = list(walked.run.episodes().read(0))
    lengths = np.concatenate([played["length"] for played in log])
    assert min(lengths) < 10
    for played in log:
        for i, n in enumerate(played["length"]):
            # The reward is the place after the step.
            np.testing.assert_allclose(played["reward"][i, :n], played["obs"][i, 1 : n + 1, 0])
            assert not played["reward"][i, n:].any()
            assert played["terminated"][i] == (played["obs"][i, n, 0] > 1)
    warm = log[0]["action"][log[0]["action"] != 0]  # random actions from end to end
    assert warm.std() == pytest.approx(3**-0.5, rel=0.25)


def test_a_run_that_is_all_warm_up_says_so(tmp_path, capsys):
    settings = {**TD3, "quiet": False, "steps": 50, "eval_every": 50, "warmup": 400}
    uvd.train("td3", WALK, out=tmp_path / "r", **settings)
    assert "nothing is learned in 50 steps, warmup = 400" in capsys.readouterr().out


def test_an_environment_without_goals_resumes_to_the_same_bits(walked, tmp_path):
    settings = {**TD3, "warmup_random": True, "steps": 300, "workers": 1}
    own = {"low": 0.0, "high": 4.0}
    uvd.train("td3", WALK, out=tmp_path / "r", task_settings=own, **settings)
    uvd.resume(tmp_path / "r", steps=600, quiet=True)
    same(tmp_path / "r", walked.run.path)


def test_what_critics_were_told_is_in_no_demonstration(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    out = tmp_path / "r"
    trained = uvd.train("td3", "envs:ToldWalk-v0", out=out, **{**TD3, "steps": 300})
    names = ["own-v0", str(tmp_path / "own.h5"), "other-v0", str(tmp_path / "other.h5")]
    for name in names:
        where = ["--task", WALK] if "other" in name else []
        assert main(["demos", "record", str(out), *where, "--episodes", "2", "-o", name]) == 0
        assert {t.obs.shape[1] for t in load_demos(name).trajectories} == {2}
    actor, obs = trained.policy(), np.array([0.1, 0.2])
    np.testing.assert_array_equal(actor(obs), actor(np.append(obs, 7.0)))
    with pytest.raises(UserError, match="is 3 numbers, not 1"):
        actor(obs[:1])
    assert main(["eval", str(out), "--task", WALK, "--episodes", "2"]) == 0
    same_play = uvd.evaluate(trained, 3, WALK)["eval/return"]
    assert same_play == pytest.approx(uvd.evaluate(trained, 3)["eval/return"], abs=1e-5)


def test_a_run_is_recorded_and_read_again(walked, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    run = str(walked.run.path)
    for name in ("walk-expert", "walk.h5", "walk.npz"):
        assert main(["demos", "record", run, "--episodes", "3", "-o", name]) == 0
        assert main(["demos", "record", run, "--episodes", "3", "-o", name]) == 2
        assert "exists: remove it" in capsys.readouterr().err
    minari, gail, npz = (load_demos(name) for name in ("walk-expert", "walk.h5", "walk"))
    assert [d.kind for d in (minari, gail, npz)] == ["minari", "gail", "npz"]
    for a, b, c in zip(minari.trajectories, gail.trajectories, npz.trajectories, strict=True):
        np.testing.assert_array_equal(a.obs[:-1], b.obs)
        np.testing.assert_array_equal(a.obs, c.obs)
        for other in (b, c):
            np.testing.assert_array_equal(a.action, other.action)
            np.testing.assert_array_equal(a.reward, other.reward)
        np.testing.assert_allclose(a.reward, a.obs[1:, 0])
        assert ((a.action >= 0) & (a.action <= 4)).all()  # the environment's own
        np.testing.assert_allclose(a.obs[1:, 1], a.action[:, 0] / 2 - 1, atol=1e-6)
    returns = uvd.api.record(walked, 3)[0]
    assert minari.returns() == pytest.approx([t.reward.sum() for t in returns])
    assert main(["eval", run, "--episodes", "3"]) == 0
    assert "return" in capsys.readouterr().out
    other = uvd.evaluate(walked, 3, WALK)["eval/return"]  # with other bounds, which only rescale
    assert other == pytest.approx(uvd.evaluate(walked, 3)["eval/return"], abs=1e-4)
    assert main(["eval", run, "--task", "PointLoop-v0"]) == 2
    assert "PointLoop-v0 has sizes" in capsys.readouterr().err
    assert main(["plot", run, "-o", "curves.png"]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 1000
    for args, says in [
        (["-o", "a b"], "must read NAME-v0"),
        (["-o", "x.h5", "--seed", "7"], "has seeds 0 to 1, not 7"),
        (["-o", "x.h5", "--task", "PointLoop-v0"], "PointLoop-v0 has sizes"),
        (["-o", "x.h5", "--episodes", "0"], "episodes = 0 must be at least 1"),
    ]:
        assert main(["demos", "record", run, *args]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "x.h5").exists()


def test_shorter_trajectories_are_padded_in_gails_layout(tmp_path):
    rng = np.random.default_rng(0)
    made = [Trajectory(rng.normal(size=(n + 1, 3)), rng.normal(size=(n, 2))) for n in (4, 7)]
    read = load_demos(write_gail(made, tmp_path / "d.h5"))
    for a, b in zip(made, read.trajectories, strict=True):
        np.testing.assert_array_equal(a.obs[:-1].astype(np.float32), b.obs)
        np.testing.assert_array_equal(a.action.astype(np.float32), b.action)
        assert b.reward is None


def counting(log_std=None) -> Agent:
    """Its mean action tells how many updates it has seen; an update tells how much there is."""

    def policy(updates):
        norm = Norm(jnp.zeros(2), jnp.ones(2), jnp.zeros(0), jnp.ones(0))
        bias = jnp.full(1, jnp.arctanh(updates * 0.01))
        return Policy(MLP((jnp.zeros((2, 1)),), (bias,)), norm, log_std)

    return Agent(
        lambda key, spec: jnp.zeros(()),
        lambda state, ring, key, step: (state + 1, {"step": step, "rows": ring.last}),
        policy,
    )


def test_an_on_policy_agent_learns_once_a_cycle_from_what_it_played_itself():
    task = env_task(WALK)
    norm = Norm(np.zeros(2), np.ones(2), np.zeros(0), np.ones(0))
    spec = Spec(2, 1, 0, lambda a, g: a, norm, (), rewards=True)
    td3, run = TD3Config(capacity=100, noise=0.0, random=0.0), RunSettings(seeds=2, envs=3)
    workers = Workers(task, 2)
    agent = lagged(counting())
    program = make_env_program(agent, task, spec, td3, run, 4, 1, workers, on_policy=True)
    learner, log = program.init(0, 2), []
    for cycle in range(4):
        learner, episodes, metrics = program.train(learner, jnp.asarray(cycle, jnp.int32))
        log.append(episodes)
        for played in records(episodes):
            first = [a[0, 0] for a in played["action"]]
            np.testing.assert_allclose(first, max(cycle - 1, 0) * 0.01, atol=1e-6)
        if cycle >= 1:
            np.testing.assert_array_equal(metrics["step"], np.full((1, 2, 1), cycle - 1))
            np.testing.assert_array_equal(metrics["rows"][0, :, 0], learner.ring.last)
    # Gone on with from a log, it plays and learns the same.
    again = program.init(0, 2)
    again = again._replace(agent=again.agent._replace(state=again.agent.state + 2))
    for episodes in log[:3]:
        again = program.replay(again, episodes)
    again, episodes, _ = program.train(again, jnp.asarray(3, jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, episodes, log[3])
    jax.tree.map(np.testing.assert_array_equal, again.ring, learner.ring)
    # What it explores by is left out where it is judged.
    wide = lagged(counting(jnp.zeros(1)))
    other = make_env_program(wide, task, spec, td3, run, 4, 1, workers, on_policy=True)
    judged = [p.evaluate(learner.agent, 1, 3)["eval/return"] for p in (program, other)]
    np.testing.assert_array_equal(*judged)
    program.close()
    assert (learner.agent.state == 3).all()


@pytest.mark.parametrize("trials", [0, 2])
def test_a_policy_is_kept_on_the_device_and_after_a_stop(shown, tmp_path, trials):
    """The preset `kernel` in a small run: the best score never falls, and its policy is the one
    that is evaluated and resumed."""
    tiny = {
        "hidden": (16, 16), "batch": 32, "capacity": 4000, "short": 400, "warmup": 200,
        "actor_start": 0, "noise": 0.3,
        "updates_per_step": 0.2, "envs": 2, "seeds": 2, "eval_every": 400, "eval_episodes": 4,
        "demos": str(shown), "trajectories": 1, "every": 5, "preset": "kernel", "quiet": True,
        "trials": trials,
    }  # fmt: skip
    whole = uvd.train("vdi", "PointLoop-v0", out=tmp_path / "whole", steps=2000, **tiny)
    score = np.array([row["demos/score"] for row in whole.rows()])
    first = 0 if not trials else 2  # until somebody has passed its trials, whoever played last
    assert (np.diff(score[first:], axis=0) >= 0).all()
    assert trials or (score[-1] > score[0]).any()
    assert whole.state.kept.sure.all()
    assert bool(trials) == bool(whole.state.kept.trial)
    assert not trials or (whole.state.kept.trial.total != 0).any()
    for seed in (0, 1):
        state = whole.seed_state(seed)
        policy = whole.plan.agent.policy(state)
        kept, plays = (
            evaluate_policy(whole.plan.task, who, jax.random.key(EVAL), 4)["eval/return"]
            for who in (policy._replace(net=state.kept.actor), policy)
        )
        assert float(kept) != float(plays)
        assert whole.rows()[-1]["eval/return"][seed] == pytest.approx(float(kept), rel=1e-4)
    uvd.train("vdi", "PointLoop-v0", out=tmp_path / "parts", steps=800, **tiny)
    again = uvd.resume(tmp_path / "parts", steps=2000, quiet=True)
    for a, b in zip(jax.tree.leaves(whole.state.kept), jax.tree.leaves(again.state.kept)):
        np.testing.assert_array_equal(a, b)


def test_an_on_policy_agent_on_the_device():
    task = find_task("PointLoop-v0", {})._replace(
        horizon=5, action_dim=1, obs_dim=2,
        step=lambda s, a, k: s, observe=lambda s: s.point, reward=lambda s, a, n: a[0],
    )  # fmt: skip
    norm = Norm(np.zeros(2), np.ones(2), np.zeros(0), np.ones(0))
    spec = Spec(2, 1, 0, lambda a, g: a, norm, (), rewards=True)
    td3 = TD3Config(capacity=100, noise=0.0, random=0.0, warmup_random=True)
    judged = []

    def judge(state, player, ring, settled):
        """Notes who it is told of, and what was played."""
        row = newest(ring, 15)[0]
        told = jnp.tanh(player.net.biases[-1][0])
        jax.debug.callback(lambda *x: judged.append(x), told, ring.action[row, 0])
        return state

    agent = counting()._replace(judge=judge)
    program = make_program(agent, task, spec, td3, 3, 4, 1, on_policy=True)
    learner, episodes, metrics = program.train(program.init(0, 2), jnp.asarray(0, jnp.int32))
    means = np.array(episodes.action).reshape(2, 4, 15)
    assert 0.4 < means[:, 0].std() < 0.7  # random until it learns
    means[:, 0] = 0
    np.testing.assert_allclose(means, np.repeat([[[0], [0], [0.01], [0.02]]], 15, 2).repeat(2, 0),
                               atol=1e-6)  # fmt: skip
    np.testing.assert_array_equal(metrics["rows"][1:, 0, 0], [30, 45, 60])
    np.testing.assert_allclose(metrics["collect/return"][1:, 0], [0, 0.05, 0.1], atol=1e-5)
    assert (learner.agent == 3).all()
    jax.effects_barrier()
    assert sorted(round(100 * float(told)) for told, _ in judged) == [0, 0, 1, 1, 2, 2]
    for told, played in judged:
        np.testing.assert_allclose(played, told, atol=1e-6)


def test_workers_draw_and_append_the_action_before():
    task = with_previous_action(env_task(WALK, {"low": -0.5, "high": 0.5}))
    rng = np.random.default_rng(0)
    net = MLP((rng.normal(size=(3, 1)).astype(np.float32),), (np.zeros(1, np.float32),))
    norm = Norm(*(np.full(n, v, np.float32) for n, v in [(3, 0), (3, 1), (0, 0), (0, 1)]))
    policy = Policy(net, norm, np.log(np.float32([0.8])))
    workers = Workers(task, 1)
    try:
        jobs = [Job(who, 0, TRAIN, i) for who in range(2) for i in range(40)]
        played = workers.play(jobs, Policies([policy, Policy(net, norm, noise=np.float32(0.3))]))
    finally:
        workers.close()
    drawn, noisy = played[:40], played[40:]
    for p in played:
        felt = np.clip(p.action, -1, 1)
        np.testing.assert_array_equal(p.obs[0, 2:], [0])
        np.testing.assert_array_equal(p.obs[1:, 2:], felt)
        np.testing.assert_allclose(p.obs[1:, 1], felt[:, 0], atol=1e-6)  # what the step felt
        assert p.goal.shape == (0,)
        assert p.success is None
    for some, std in ((drawn, 0.8), (noisy, 0.3)):
        obs, action = (np.concatenate(x) for x in zip(*((p.obs[:-1], p.action) for p in some)))
        mean = act(Policy(net, norm), obs, np.zeros((len(obs), 0), np.float32))
        calm = abs(mean[:, 0]) < 0.4 if some is noisy else slice(None)
        assert (action - mean)[calm].std() == pytest.approx(std, rel=0.15)
    with pytest.raises(UserError, match="3 numbers: the environment's and the action before"):
        uvd.api.Actor(policy, task)(np.zeros(2))
    assert abs(np.concatenate([p.action for p in drawn])).max() > 1
    assert abs(np.concatenate([p.action for p in noisy])).max() <= 1


def test_actions_of_an_environment_and_of_the_agent():
    task = env_task(WALK, {"low": 1.0, "high": 5.0})
    unit = np.float32([[-1], [0], [0.5], [1]])
    np.testing.assert_allclose(task.own_action(unit), [[1], [3], [4], [5]])
    np.testing.assert_allclose(task.unit_action(task.own_action(unit)), unit)
    np.testing.assert_array_equal(task.unit_action(np.float32([[9]])), [[1]])
    assert (task.obs_dim, task.action_dim, task.goal_dim, task.horizon) == (2, 1, 0, 10)


def test_settings_that_an_algorithm_does_not_have():
    @dataclass(frozen=True)
    class Bare:
        batch: int = 7
        capacity: int = 9

    read = shared(Bare())
    assert (read.batch, read.capacity, read.noise, read.random, read.warmup) == (7, 9, 0, 0, 0)
    assert shared(CloneConfig()) == CloneConfig().td3
