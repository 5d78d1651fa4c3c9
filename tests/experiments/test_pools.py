import json
import shlex

import numpy as np
import pytest

from fakeruns import CLIFF, PUSH, make_run
from uvd import cli
from uvd.experiments import pools
from uvd.experiments.pools import Curve
from uvd.runs import Run
from uvd.settings import build, to_file


def labels(*runs):
    found = pools.label_runs([Run.open(run) for run in runs])
    return [found[run] for run in runs]


def test_runs_that_differ_only_in_seeds_have_one_label(tmp_path):
    alike = [make_run(tmp_path / f"{i}", "her", CLIFF, first_seed=i, seeds=1) for i in range(3)]
    other = make_run(tmp_path / "other", "her", CLIFF, strategy="paper", noise=0.3)
    elsewhere = make_run(tmp_path / "push", "her", PUSH)
    assert labels(*alike, other, elsewhere) == ["HER"] * 3 + ["HER strategy=paper", "HER"]
    assert labels(other) == ["HER"]  # nothing to tell it from


def test_labels_name_as_few_settings_as_tell_runs_apart(tmp_path):
    grid = [
        make_run(tmp_path / f"{noise}-{lr}", "td3", PUSH, noise=noise, actor_lr=lr, steps=())
        for noise in (0.1, 0.3)
        for lr in (1e-4, 1e-3)
    ]
    assert labels(*grid) == [
        "TD3 actor_lr=0.0001, noise=0.1", "TD3 noise=0.1", "TD3 actor_lr=0.0001, noise=0.3",
        "TD3 noise=0.3",
    ]  # fmt: skip
    longer = make_run(tmp_path / "longer", "td3", PUSH, steps=())
    config = Run.open(longer).config
    config["run"]["steps"] = 600
    Run(longer, config).write_config()
    usual = make_run(tmp_path / "usual", "td3", PUSH, steps=())
    assert len(set(labels(longer, usual))) == 2  # a budget tells if nothing else does


def test_a_pool_has_all_seeds_over_the_common_range():
    fine = Curve(np.array([10, 20, 30, 40]), np.array([[0.0, 1.0, 4.0, 9.0]]), np.arange(4.0))
    coarse = Curve(np.array([20, 40, 60]), np.array([[5.0, 7.0, 8.0]] * 2), np.array([5.0, 6, 7]))
    got = pools.pool([fine, coarse])
    assert got.steps.tolist() == [20, 40]
    assert got.values.tolist() == [[1, 9], [5, 7], [5, 7]]
    assert got.seconds.tolist() == [3.0, 4.5]
    between = pools.pool([fine, Curve(np.array([15, 25]), np.zeros((1, 2)), np.zeros(2))])
    assert between.values[0].tolist() == [0.5, 2.5]
    for whole, same in zip(coarse, pools.pool([coarse])):
        np.testing.assert_array_equal(whole, same)


@pytest.mark.parametrize(
    ("algorithm", "task", "preset", "given"),
    [
        ("uvd", PUSH, "default", {"seeds": 4, "steps": 5000, "hidden": (32, 16), "noise": 1e-5}),
        ("td3", "HalfCheetah-v5", "rewards", {"critic_norm": False}),
        ("uvd", "PointPushSparse-v0", "precise", {"steps": 40_000, "eval_every": 500}),
        ("her", CLIFF, "default", {"strategy": "paper", "warmup_random": True, "first_seed": 3}),
        (
            "td3",
            "PointSlideNoise-v0",
            "default",
            {"seeds": 2, "critic_head": "huber", "critic_norm": True},
        ),
    ],
)
def test_the_command_of_a_run_gives_its_settings(tmp_path, algorithm, task, preset, given):
    task_settings = {"noise": "paper"} if "Noise" in task else {}
    config = build(algorithm, task, preset, given, task_settings)
    run = Run.create(tmp_path / "run", to_file(config))
    [command] = pools.commands(run, pools.seeds_of(run))
    words = shlex.split(command)
    assert words[:2] == ["uvd", "train"]
    parsed = cli.parse(words[1:])
    typed = {name: word for name, word in vars(parsed.words).items() if word is not None}
    settings = dict(word.split("=") for word in parsed.start.task_settings)
    preset = parsed.start.preset or "default"
    again = build(parsed.algorithm, parsed.start.task, preset, typed, settings)
    assert json.dumps(to_file(again)) == json.dumps(to_file(config))


def test_seeds_with_gaps_need_a_command_each(tmp_path):
    run = Run.open(make_run(tmp_path / "run", "td3", PUSH))
    first, second = pools.commands(run, [5, 1, 0, 2])
    assert first.endswith("--seeds 3")
    assert second.endswith("--seeds 1 --first-seed 5")


def test_a_run_of_another_version_is_told_apart(tmp_path):
    paths = [make_run(tmp_path / name, "td3", PUSH) for name in ("old", "new")]
    config = Run.open(paths[0]).config
    Run(paths[0], {**config, "uvd_version": "0.1.0", "preset": "gone"}).write_config()
    assert labels(*paths) == ["TD3 uvd=0.1", "TD3"]
    [command] = pools.commands(Run.open(paths[0]), [0])
    assert command.startswith("uvd train td3 PointPush-v0 --preset gone --steps 300")
