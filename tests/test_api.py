"""Train, load, act and evaluate: what a user gets, and what is refused in one line.

The runs here end in their warm-up: their policies are as they began, which takes little time.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import pytest

import uvd
from uvd.actor import Actor
from uvd.agents.td3 import TD3Settings
from uvd.api import file_name
from uvd.core.errors import UserError
from uvd.core.policy import act
from uvd.runs import Run
from uvd.tasks.find import find_task, with_previous_action

LINE, WALK, PRIVILEGED = "envs:Line-v0", "envs:Walk-v0", "envs:PrivilegedWalk-v0"
WARM = {
    "hidden": (8,), "envs": 2, "steps": 20, "eval_every": 20, "warmup": 1000, "capacity": 100,
    "eval_episodes": 2, "workers": 1, "quiet": True, "actor_scale": 1.0,
}  # fmt: skip
TWO = {"seeds": 2, "first_seed": 3}


def trained(tmp_path_factory, task, **given):
    out = tmp_path_factory.mktemp("run") / "run"
    return uvd.train("td3", task, out=out, **WARM, **given)


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A run with goals, of seeds 3 and 4."""
    return trained(tmp_path_factory, LINE, **TWO)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """A run without goals, whose critics read one number more."""
    return trained(tmp_path_factory, PRIVILEGED)


OBS, GOAL = np.zeros((5, 3), np.float32), np.full((5, 2), 0.5, np.float32)


def test_a_policy_acts_on_one_pair_or_a_batch(line):
    actions = line.policy(seed=4)(OBS, GOAL)
    assert isinstance(actions, np.ndarray)
    assert actions.shape == (5, 2)
    assert (abs(actions) <= 1).all()
    np.testing.assert_allclose(actions[0], line.policy(4)(OBS[0], GOAL[0]), atol=1e-6)
    np.testing.assert_allclose(line.policy(4)(OBS.tolist(), GOAL.tolist()), actions, atol=1e-6)


def test_a_seed_goes_by_its_own_number(line):
    assert line.seeds == [3, 4]
    for index, seed in enumerate(line.seeds):
        state = jax.tree.map(lambda x, i=index: x[i], line.state.agent)
        policy = jax.tree.map(np.asarray, line.plan.agent.policy(state))
        np.testing.assert_allclose(line.policy(seed)(OBS, GOAL), act(policy, OBS, GOAL), atol=1e-6)
    np.testing.assert_array_equal(line.policy()(OBS, GOAL), line.policy(3)(OBS, GOAL))
    assert not np.allclose(line.policy(4)(OBS, GOAL), line.policy(3)(OBS, GOAL))
    for seed in (0, 2, 5, -1):
        with pytest.raises(UserError, match=f"has seeds 3 to 4, not {seed}"):
            line.policy(seed)


def test_a_loaded_run_is_the_trained_one(line):
    loaded = uvd.load(line.run.path)
    assert loaded.step == line.step == 20
    assert loaded.plan.config == line.plan.config
    jax.tree.map(np.testing.assert_array_equal, loaded.state, line.state)
    assert loaded.rows() == line.rows()
    result = uvd.evaluate(loaded, 5)
    assert all(len(x) == 2 and 0 <= min(x) <= max(x) <= 1 for x in result.values())
    assert result["eval/success_final"] <= result["eval/success_ever"]
    assert uvd.evaluate(line, 5) == result


@pytest.mark.parametrize(
    ("obs", "goal", "says"),
    [
        (OBS[:, :2], GOAL, "an observation of envs:Line-v0 is 3 numbers, not 2"),
        (OBS, GOAL[:, :1], r"a goal of envs:Line-v0 is 2 numbers, not an array of shape \(5, 1\)"),
        (OBS, None, r"envs:Line-v0 has goals: act on \(obs, goal\)"),
    ],
)
def test_inputs_of_a_wrong_size_are_refused(line, obs, goal, says):
    with pytest.raises(UserError, match=says):
        line.policy()(obs, goal)


def test_privileged_numbers_may_be_left_out(walk):
    actor, obs = walk.policy(), np.array([0.1, 0.2])
    np.testing.assert_array_equal(actor(obs), actor(np.append(obs, 7.0)))
    with pytest.raises(UserError, match="is 3 numbers, not 1"):
        actor(obs[:1])
    with pytest.raises(UserError, match="has no goals: act on obs alone"):
        actor(obs, np.zeros(2))
    with pytest.raises(UserError, match="has seed 0 only, not 1"):
        walk.policy(1)


def test_a_run_without_goals_is_evaluated_elsewhere_too(walk):
    result = uvd.evaluate(walk, 3)
    assert list(result) == ["eval/return"]
    assert uvd.evaluate(walk, 3, WALK)["eval/return"] == pytest.approx(
        result["eval/return"], abs=1e-5
    )
    with pytest.raises(
        UserError, match=r"PointLoop-v0 has sizes \(observation, action, goal\) \(4"
    ):
        uvd.evaluate(walk, 3, "PointLoop-v0")


def test_a_run_with_goals_is_evaluated_in_its_own_task_only(line):
    with pytest.raises(UserError, match="has goals: only runs without"):
        uvd.evaluate(line, 3, WALK)


def test_actions_are_in_the_environments_units(line):
    task = find_task(LINE, {"low": 2.0, "high": 6.0})
    action = Actor(line.policy().policy, task)(OBS, GOAL)
    assert ((action >= 2) & (action <= 6)).all()
    np.testing.assert_allclose(action, 4 + 2 * line.policy()(OBS, GOAL), atol=1e-5)


def test_an_achieved_goal_that_is_not_observed_is_appended(tmp_path_factory):
    blind = trained(tmp_path_factory, "envs:Blind-v0")
    actor = blind.policy()
    np.testing.assert_array_equal(actor.policy.norm.achieved_columns, [3, 4])  # after its own three
    assert actor(np.zeros(5), np.zeros(2)).shape == (2,)
    with pytest.raises(UserError, match="is 5 numbers: the environment's and the achieved goal, n"):
        actor(np.zeros(3), np.zeros(2))


def test_a_previous_action_is_part_of_the_observation(walk):
    task = with_previous_action(find_task(WALK))
    with pytest.raises(UserError, match="3 numbers: the environment's and the action before"):
        Actor(walk.policy().policy, task)(np.zeros(2))


def test_a_taken_folder_is_refused_unless_it_may_be_replaced(line, tmp_path):
    before = (line.run.path / "config.toml").read_bytes()
    with pytest.raises(UserError, match="exists: go on with uvd train --resume"):
        uvd.train("td3", LINE, out=line.run.path, **WARM)
    assert (line.run.path / "config.toml").read_bytes() == before
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run"):
        uvd.train("td3", LINE, out=tmp_path, **WARM)


def test_a_run_has_a_folder_named_after_algorithm_and_task(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(line.run.path, "runs/td3-envs-Line-v0")
    replaced = uvd.train("td3", LINE, overwrite=True, **WARM)
    assert replaced.run.path == Path("runs/td3-envs-Line-v0")
    assert replaced.seeds == uvd.load(replaced.run.path).seeds == [0]
    assert file_name("uvd/Some:Task-v0") == "uvd-Some-Task-v0"


def test_a_copy_of_the_small_files_is_not_begun_anew(line, tmp_path):
    for name in ("config.toml", "metrics.jsonl"):
        shutil.copy(line.run.path / name, tmp_path)
    for go_on in (uvd.resume, uvd.load):
        with pytest.raises(UserError, match="not what it learned"):
            go_on(tmp_path)
    assert Run.open(tmp_path).rows() == line.rows()
    (tmp_path / "metrics.jsonl").unlink()  # a run that was killed before its first report
    with pytest.raises(UserError, match="no checkpoint yet; go on with: uvd train --resume"):
        uvd.load(tmp_path)


def test_a_run_is_not_resumed_to_fewer_steps(line):
    before = (line.run.path / "config.toml").read_bytes()
    with pytest.raises(UserError, match="has 20 steps already, more than 10"):
        uvd.resume(line.run.path, steps=10)
    assert (line.run.path / "config.toml").read_bytes() == before


@pytest.mark.parametrize("go_on", [uvd.load, uvd.resume])
def test_a_run_of_an_older_version_is_refused_in_one_line(line, tmp_path, go_on):
    old = shutil.copytree(line.run.path, tmp_path / "old")
    config = (old / "config.toml").read_text()
    assert f'uvd_version = "{uvd.__version__}"' in config
    (old / "config.toml").write_text(config.replace(uvd.__version__, "0.1.0"))
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    with pytest.raises(UserError) as error:
        go_on(old)
    assert str(error.value).startswith(f"{old} was made by uvd 0.1.0, and this is uvd ")
    assert "\n" not in str(error.value)
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("go_on", [uvd.load, uvd.resume])
def test_what_is_no_run_is_refused(tmp_path, go_on):
    with pytest.raises(UserError, match=r"is not a run folder: it has no config.toml"):
        go_on(tmp_path)


def test_fetch_is_trained_on_by_its_id(tmp_path, monkeypatch):
    monkeypatch.setattr("uvd.training.on_workers.PROBE_STEPS", 500)
    given = {**WARM, "envs": 1, "steps": 50, "eval_every": 50, "preset": "default"}
    run = uvd.train("her", "FetchReach-v4", out=tmp_path / "run", **given).run
    (record,) = run.episodes().read(0)
    assert record["obs"].shape == (1, 51, 10)
    assert not record["terminated"].any()
    assert 0 < abs(record["action"]).max() <= 1


def test_settings_may_come_as_typed_groups(tmp_path):
    run = uvd.RunSettings(seeds=2, steps=20, envs=2, eval_every=20, eval_episodes=2, workers=1)
    rest = {name: value for name, value in WARM.items() if name not in vars(run)}
    given = uvd.train("td3", LINE, run, out=tmp_path / "run", **rest, first_seed=3)
    assert given.seeds == [3, 4]
    assert given.plan.config.settings.td3.hidden == (8,)
    whole = uvd.train("td3", LINE, TD3Settings(), run, out=tmp_path / "whole", quiet=True, seeds=1)
    assert whole.plan.config.settings == TD3Settings()
    assert whole.plan.run.seeds == 1  # what is named stands above its group


def test_a_callback_sees_every_report_and_may_end_training(tmp_path):
    seen = []
    few = WARM | {"steps": 60}
    whole = uvd.train("td3", LINE, out=tmp_path / "all", callback=seen.append, **few)
    assert seen == whole.rows()
    assert [row["step"] for row in seen] == [20, 40, 60]
    ended = uvd.train(
        "td3", LINE, out=tmp_path / "ended", callback=lambda row: row["step"] < 40, **few
    )
    assert ended.step == 40
    gone_on = uvd.resume(tmp_path / "ended", quiet=True)  # to its 60 steps
    jax.tree.map(np.testing.assert_array_equal, gone_on.state, whole.state)


def test_a_policy_reads_what_goal_environments_return(line):
    env = gym.make_vec("envs:Line-v0", num_envs=3, vectorization_mode="sync")
    obs, _ = env.reset(seed=0)
    action = line.policy()(obs)
    assert action.shape == (3, 2)
    np.testing.assert_array_equal(action, line.policy()(obs["observation"], obs["desired_goal"]))
    np.testing.assert_array_equal(line.policy().predict(obs)[0], action)
    env.step(action)
    env.close()
    with pytest.raises(UserError, match="the observation has no 'desired_goal'"):
        line.policy()({"observation": OBS, "achieved_goal": GOAL})


@pytest.mark.parametrize("name", ["line", "walk"])
def test_an_exported_policy_acts_with_numpy_alone(name, request, tmp_path):
    run = request.getfixturevalue(name)
    actor = run.policy()
    path = actor.export(tmp_path / "mine" / "policy_of_mine.py")
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(7, run.plan.task.obs_dim))
    goals = (rng.normal(size=(7, run.plan.task.goal_dim)),) if run.plan.task.goal_dim else ()
    np.savez(tmp_path / "inputs.npz", *(obs, *goals))
    code = (
        "import sys, numpy as np; from policy_of_mine import policy; f = np.load(sys.argv[1]);"
        "np.save(sys.argv[2], policy(*[f[k] for k in f.files]));"
        "assert not {'jax', 'uvd', 'gymnasium'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, tmp_path / "inputs.npz", tmp_path / "out.npy"]
    subprocess.run(command, cwd=path.parent, check=True, env={"PYTHONPATH": str(path.parent)})
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), actor(obs, *goals), atol=1e-6)
    with pytest.raises(UserError, match="name a Python module"):
        actor.export(tmp_path / "policy.npz")
