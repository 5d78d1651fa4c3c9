"""From what a user asks for to a plan: cycles, demonstrations, defaults, and what is refused."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import uvd
from uvd.core.config import flatten
from uvd.core.errors import UserError
from uvd.demos.memory import Trajectory
from uvd.demos.write import write_npz
from uvd.runs import Run
from uvd.settings import from_file, to_file
from uvd.training.plan import configure, make_plan, make_schedule

REACH, LOOP, WALK, LINE = "PointReach-v0", "PointLoop-v0", "envs:Walk-v0", "envs:Line-v0"
SMALL = {"hidden": (8,), "batch": 8, "envs": 2}


def schedule_of(algorithm, task, **given):
    config, inputs = configure(algorithm, task, given=given)
    return make_schedule(config, inputs.task)


def made_plan(algorithm, task, **given):
    plan = make_plan(*configure(algorithm, task, given={**SMALL, **given}))
    plan.program.close()
    return plan


# Cycles


def test_a_schedule_by_hand():
    """Cycles of 4 episodes of 50 steps: 100 updates each; reports and calls are whole cycles."""
    schedule = schedule_of("td3", REACH, envs=4, steps=10_100, eval_every=2000, warmup=250)
    assert schedule.steps == 200
    assert schedule.updates == 100
    assert schedule.warm == 2  # 250 steps, rounded up
    assert schedule.per_report == 10
    assert schedule.per_call == 5  # of 500 updates
    assert schedule.total == 60  # 10 100 steps, rounded up to whole reports
    assert [schedule.updates_before(c) for c in (0, 2, 3)] == [-200, 0, 100]


def test_reports_are_a_twentieth_of_the_steps_apart_unless_given():
    assert schedule_of("td3", REACH, envs=2, steps=20_000).per_report == 10
    assert schedule_of("td3", REACH, envs=2, steps=100).per_report == 1
    config, _ = configure("td3", REACH, given={"envs": 2, "steps": 20_000})
    assert config.run.eval_every == 1000, "reports keep their places when the run is resumed"


def test_calls_are_single_cycles_with_workers_and_for_on_policy_algorithms(demos):
    assert schedule_of("td3", LINE, envs=2, eval_every=200).per_call == 1
    gail = schedule_of("gail", LOOP, envs=2, eval_every=2000, demos=str(demos))
    assert (gail.updates, gail.per_call, gail.per_report) == (1, 1, 10)


@pytest.mark.parametrize(
    ("algorithm", "task", "given", "says"),
    [
        ("td3", REACH, {"capacity": 100}, "capacity = 100 holds no 4 episodes of 50 steps"),
        (
            "uvd",
            REACH,
            {"lookahead": 51, "combine": "max"},
            "lookahead = 51 is longer than the task's",
        ),
        (
            "td3",
            REACH,
            {"cycle_steps": 100},
            "td3 plays PointReach-v0 in whole episodes, give --envs",
        ),
        ("td3", REACH, {"updates_per_step": 0.001}, "gives 0.2 updates for the 200 steps"),
        (
            "td3",
            REACH,
            {"updates_per_step": 0.003, "envs": 5},
            "gives 0.75 updates for the 250 steps",
        ),
        ("td3", LINE, {"episode_steps": 11}, "^episode_steps = 11 is more than an episode's 10 st"),
        ("td3", LINE, {"late_episode_steps": 11}, "late_episode_steps = 11 is more than an epis"),
        ("td3", REACH, {"episode_steps": 5}, "whole episodes: leave out --episode-steps"),
        ("td3", REACH, {"late_episode_steps": 5}, "whole episodes: leave out --late-episode-steps"),
        ("td3", LINE, {"episode_steps": -1}, "^episode_steps = -1 must not be negative"),
        ("td3", "HalfCheetahNonExploitabel-v0", {}, "nearest: HalfCheetahNonExploitable-v0"),
        ("her", LOOP, {}, f"her needs a task with goals, and {LOOP} has none"),
        ("uvd", WALK, {}, f"uvd needs a task with goals, and {WALK} has none"),
        ("bc", LOOP, {}, "bc needs demonstrations: give --demos FILE"),
        ("bc", "PointPush-v0", {"demos": "d.h5"}, "PointPush-v0 has goals: take a task without"),
        ("bc", "envs:PrivilegedWalk-v0", {"demos": "d.h5"}, "has privileged observations"),
        ("bc", LOOP, {"demos": "no.h5"}, "no.h5: no such file or folder"),
        ("bc", LOOP, {"demos": "torn.h5"}, "torn.h5"),
        ("td3", LOOP, {"demos": "d.h5"}, "td3 does not imitate: leave out --demos"),
        ("td3", LOOP, {"previous_action": True}, "leave out --previous-action"),
        ("td3", REACH, {"gama": 1}, "unknown setting 'gama'; nearest: gamma"),
        ("td3", REACH, {"evry": 2}, "unknown setting 'evry'; nearest: every"),
        ("td3", REACH, {"seed": 2}, "unknown setting 'seed'; nearest: seeds"),
        ("td4", REACH, {}, "unknown algorithm 'td4'; nearest: td3"),
        ("td3", REACH, {"preset": "papre"}, "unknown preset of td3 'papre'; nearest: paper"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, algorithm, task, given, says
):
    monkeypatch.chdir(tmp_path)
    whole = hdf5(tmp_path / "d.h5").read_bytes()
    (tmp_path / "torn.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=says) as error:
        uvd.train(algorithm, task, out=tmp_path / "run", **given)
    assert "\n" not in str(error.value)
    assert {p.name for p in tmp_path.iterdir()} == {"d.h5", "torn.h5"}


# Demonstrations


def trajectories(n=2, steps=60, seed=0):
    """They fit PointLoop; positions go much further than those of random actions."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)  # noqa: E731
    return [Trajectory(3 * draw(steps + 1, 4), draw(steps, 2), draw(steps)) for _ in range(n)]


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    return write_npz(trajectories(), tmp_path_factory.mktemp("demos") / "d")


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> Path:
    """The same without actions and rewards."""
    alone = [Trajectory(t.obs) for t in trajectories()]
    return write_npz(alone, tmp_path_factory.mktemp("demos") / "states")


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


NO_ACTIONS = {"a_B_T_Da": None}


@pytest.mark.parametrize(
    ("algorithm", "changes", "given", "says"),
    [
        ("bc", {"obs_B_T_Do": np.ones((2, 30, 5))}, {}, "obs_B_T_Do has 5 numbers a step, PointL"),
        ("bc", {"a_B_T_Da": np.ones((2, 30, 3))}, {}, "a_B_T_Da has 3 numbers a step, PointLoop"),
        (
            "bc",
            {"obs_B_T_Do": np.full((2, 30, 4), np.nan)},
            {},
            r"obs_B_T_Do\[0\] is nan at step 0",
        ),
        ("bc", NO_ACTIONS, {}, "d.h5 has no actions: bc needs them"),
        (
            "kdi",
            NO_ACTIONS,
            {"previous_action": True},
            "the previous action in an observation need",
        ),
        ("kdi", NO_ACTIONS, {"match": "pairs"}, "d.h5: no actions, which match = pairs needs"),
        (
            "kdi",
            {},
            {"match": "changes"},
            "d.h5: match = changes needs the state after each chosen",
        ),
        ("dac", NO_ACTIONS, {"reads": "action"}, "d.h5: no actions, which reads = action needs"),
        ("bc", {"len_B": np.array([30, 0])}, {}, r"len_B\[1\] is 0, expected 1 to 30"),
        ("bc", {}, {"trajectories": 3}, "has 2 trajectories, 3 were asked for"),
        ("bc", {}, {"trajectories": 0}, "trajectories = 0 must be a whole number, at least 1"),
        ("bc", {}, {"every": 0}, "every = 0 must be a whole number, at least 1"),
        ("bc", {}, {"every": 100}, "every = 100 takes none"),
        ("bc", {}, {"every": 5, "offset": 5}, "offset = 5 must lie in 0 to every - 1 = 4"),
    ],
)
def test_bad_demonstrations_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, algorithm, changes, given, says
):
    monkeypatch.chdir(tmp_path)
    hdf5(tmp_path / "d.h5", **changes)
    with pytest.raises(UserError, match=says) as error:
        uvd.train(algorithm, LOOP, out=tmp_path / "run", demos="d.h5", **given)
    assert "\n" not in str(error.value)
    assert "d.h5" in str(error.value) or given
    assert [p.name for p in tmp_path.iterdir()] == ["d.h5"]


def test_the_chosen_steps_are_imitated_and_widen_the_ranges(demos):
    chosen = {"trajectories": 2, "every": 20, "offset": 3, "previous_action": True}
    spec = made_plan("bc", LOOP, demos=str(demos), **chosen).spec
    steps = np.arange(3, 60, 20)
    for name, x, offset in (("obs", "obs", 0), ("action", "action", 0), ("next_obs", "obs", 1)):
        expected = np.concatenate([getattr(t, x)[steps + offset] for t in trajectories()])
        np.testing.assert_array_equal(getattr(spec.demos, name)[:, : expected.shape[1]], expected)
    before = np.concatenate([t.action[steps - 1] for t in trajectories()])
    np.testing.assert_array_equal(spec.demos.obs[:, 4:], before)
    assert (spec.obs_dim, spec.goal_dim, spec.cycle_steps, spec.has_rewards) == (6, 0, 200, True)
    assert spec.norm.obs_clip is None  # ranges, not standard deviations
    assert spec.varying_obs == tuple(range(6))
    unit = (spec.demos.obs - spec.norm.obs_shift) / spec.norm.obs_scale
    assert 0.9 < abs(unit[:, :4]).max() < 1 + 1e-5  # random actions alone go much less far


def test_demonstrations_are_read_once(tmp_path):
    """A first start opens every file once: for settings, plan and hash together."""
    walks = [Trajectory(t.obs[:, :2], t.action[:, :1]) for t in trajectories()]
    folder = write_npz(walks, tmp_path / "d")
    opened: list[str] = []

    def note(event, args):
        if event == "open" and str(args[0]).startswith(str(folder)):
            opened.append(Path(args[0]).name)

    sys.addaudithook(note)  # it stays for the process; only this test opens this folder
    trained = uvd.train(
        "kdi", WALK, demos=folder, out=tmp_path / "run", steps=10, warmup=100, quiet=True,
        eval_episodes=1, hidden=(8,), workers=1,
    )  # fmt: skip
    assert sorted(opened) == ["00000.npz", "00001.npz"]
    uvd.load(trained.run.path)
    assert len(opened) == 2, "a run holds its demonstrations itself"


# Defaults of kdi that follow from the demonstrations

PAIRS = {
    "width": 0, "width_half": 0, "width_end": 0.7, "weight_bound": 5.0, "short": 4000,
    "noise": 0.15, "late_noise": 0.07, "late_updates": 60_000, "gamma": 0.99, "warmup": 2000,
}  # fmt: skip
CHANGES = {**PAIRS, "noise": 0.3, "late_noise": 0.1, "late_updates": 100_000}
STATES = {
    **PAIRS, "width": 1.16, "weight_bound": 30.0, "short": 20_000,
    "late_noise": 0.1, "late_updates": 600_000, "gamma": 0.98, "warmup": 10_000,
}  # fmt: skip


def settings_of(path, preset=None, **given):
    config, _ = configure("kdi", LOOP, preset, {"demos": str(path), **given})
    return flatten(config.settings)


@pytest.mark.parametrize(
    ("actions", "given", "match", "expected"),
    [
        (True, {}, "pairs", PAIRS),
        (False, {"every": 3}, "changes", CHANGES),
        (False, {}, "states", STATES),  # the last step has no state after it
        (True, {"match": "states"}, "states", STATES),
        (True, {"match": "changes"}, "changes", CHANGES),
        (True, {"match": "auto"}, "pairs", PAIRS),
    ],
)
def test_defaults_follow_from_the_demonstrations(demos, states, actions, given, match, expected):
    settings = settings_of(demos if actions else states, **given)
    # A setting that is given keeps its value; `auto` says that it is to be found.
    assert settings["match"] == given.get("match", match)
    assert {name: settings[name] for name in expected} == expected


def test_settings_of_a_user_or_a_preset_override_what_follows(states, demos):
    own = {"width": 1.1, "width_half": 7, "width_end": 0.9, "short": 50, "noise": 0.25}
    settings = settings_of(states, match="states", **own)
    assert {name: settings[name] for name in STATES} == {**STATES, **own}
    whole = {"episode_steps": 0, "late_episode_steps": 0}  # of a task on the device
    humanoid = settings_of(demos, preset="humanoid", **whole)
    assert humanoid["match"] == "states"
    assert {name: humanoid[name] for name in STATES} == STATES
    assert humanoid["lr_half"] == 400_000


def test_a_run_writes_down_what_follows_and_reads_it_back(states, tmp_path):
    given = {"demos": str(states), "every": 3, "width": 1.05, "hidden": (8, 4)}
    config, inputs = configure("kdi", LOOP, given=given)
    run = Run.create(tmp_path / "run", to_file(config))
    assert from_file(Run.open(run.path).config) == config
    rows = run.config["settings"]
    assert (rows["match"], rows["width"], rows["late_updates"]) == ("changes", 1.05, 100_000)
    assert (rows["noise"], rows["hidden"]) == (0.3, [8, 4])
    assert run.config["demos"] == {"demos": str(states), "every": 3, "sha256": config.sha256}
    assert run.config["run"]["envs"] == 1  # kdi's own default
    assert len(config.sha256) == 64
    assert inputs.demos.action is None


# Settings that the plan takes from the collection's


@pytest.mark.parametrize("task", [WALK, LOOP])
def test_probe_noise_is_what_feature_ranges_are_measured_on(task):
    usual, narrow = (made_plan("td3", task, probe_noise=noise).spec.norm for noise in (0.0, 0.1))
    assert (narrow.obs_scale / usual.obs_scale).min() < 0.5
    assert usual.obs_clip == narrow.obs_clip == 20


def test_a_choice_of_steps_that_misses_phases_is_said(tmp_path):
    """From the demonstrations to the plan's notices; of several trajectories nothing is said."""
    phase = 2 * np.pi * np.arange(600)[:, None] / 60
    obs = np.concatenate([np.sin(phase), np.cos(phase), np.sin(2 * phase), np.cos(2 * phase)], 1)
    walks = [
        Trajectory(obs.astype(np.float32), np.cos(phase + np.arange(2)).astype(np.float32))
    ] * 2
    given = {"demos": str(write_npz(walks, tmp_path / "walks")), "every": 20}
    for trajectories, said in ((1, True), (2, False)):
        config, inputs = configure("bc", LOOP, given={**given, "trajectories": trajectories})
        plan = make_plan(config, inputs)
        assert any("every = 20 chooses few phases" in line for line in plan.notices) == said
        plan.program.close()
