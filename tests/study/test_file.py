"""Study files: which trials they make, which settings win, and what is refused with its line."""

import pytest

from uvd.core.errors import UserError
from uvd.study.file import read_study
from uvd.study.runner import complete

STUDY = """\
[settings]
seeds = 2
gamma = 0.9
steps = 100
[tasks]
PointPush-v0 = { steps = 200, gamma = 0.91 }
cliff = { task = "PointCliff-v0", task_settings = { noise = 0.1 } }
slow = { task = "PointSlide-v0", extra = true }
[methods.uvd]
gamma = 0.92
[methods.uvd.on.cliff]
gamma = 0.93
preset = "paper"
[methods]
calm = { algorithm = "her", action_penalty = 1.0, only = ["cliff"] }
"""


def write(tmp_path, text):
    path = tmp_path / "my-study.toml"
    path.write_text(text)
    return path


def test_what_stands_nearer_to_a_trial_wins(tmp_path):
    study = read_study(write(tmp_path, STUDY))
    push, cliff, calm = study.trials()
    assert [t.name for t in study.trials()] == [
        "PointPush-v0-uvd",
        "PointCliff-v0-noise0.1-uvd",
        "PointCliff-v0-noise0.1-calm",
    ]
    assert (push.algorithm, push.preset, calm.algorithm) == ("uvd", None, "her")
    assert push.given == {"seeds": 2, "gamma": 0.92, "steps": 200}
    assert cliff.given == {"seeds": 2, "gamma": 0.93, "steps": 100}
    assert (cliff.preset, cliff.task_settings) == ("paper", {"noise": 0.1})
    assert calm.given["action_penalty"] == 1.0
    assert study.trials(["slow"])[0].task == "PointSlide-v0"  # it is named
    (named,) = study.trials(["cliff"], ["calm"], gamma=0.5)
    assert named.given["gamma"] == 0.5


def test_a_grid_has_every_combination(tmp_path):
    text = 'tasks = ["PointPush-v0"]\nmethods = ["her"]\n[grid]\ngamma = [0.9, 0.95]\nk = [2, 4]\n'
    trials = read_study(write(tmp_path, text)).trials()
    assert [(t.given["gamma"], t.given["k"]) for t in trials] == [
        (0.9, 2), (0.9, 4), (0.95, 2), (0.95, 4),
    ]  # fmt: skip
    assert trials[0].name == "PointPush-v0-her-gamma0.9-k2"
    text = '[tasks]\nPointLoop-v0 = { demos = "x", amounts = ["1x5", "4x20"] }\n[methods.bc]\n'
    trials = read_study(write(tmp_path, text)).trials()
    assert [t.name for t in trials] == ["PointLoop-v0-bc-1x5", "PointLoop-v0-bc-4x20"]
    assert trials[1].given == {"demos": "x", "trajectories": 4, "every": 20}


def plan(path):
    study = read_study(path)
    return complete(study, study.trials())


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        (3, "gama = 0.9", "unknown setting 'gama'; nearest: gamma"),
        (3, "gamma = 'high'", "setting 'gamma' takes a number, not 'high'"),
        (2, "seeds = 0", "seeds = 0 must be at least 1"),
        (6, "PointPsh-v0 = {}", "unknown task 'PointPsh-v0'.*nearest: PointPush-v0"),
        (9, "[methods.uwd]", "unknown algorithm 'uwd'; nearest: uvd"),
        (13, "preset = 'papr'", "unknown preset of uvd 'papr'; nearest: paper"),
        (11, "[methods.uvd.on.clif]", "unknown task 'clif'; nearest: cliff"),
        (15, "calm = { only = ['clff'] }", "unknown task 'clff'; nearest: cliff"),
        (5, "[task]", "unknown key 'task'; nearest: tasks"),
        (6, "PointPush-v0 = 3", "tasks and methods are tables"),
        (4, "steps = ", r"TOML.*line 4"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path, line, wrong, message):
    lines = STUDY.splitlines()
    lines[line - 1] = wrong
    path = write(tmp_path, "\n".join(lines))
    with pytest.raises(UserError, match=message) as error:
        plan(path)
    assert "\n" not in str(error.value)
    if "TOML" not in message and "tables" not in message:
        assert str(error.value).startswith(f"{path}:{line}: ")


def test_words_of_the_command_line_are_checked(tmp_path):
    study = read_study(write(tmp_path, STUDY))
    for tasks, methods, message in (
        (["clif"], [], "unknown task 'clif'; nearest: cliff"),
        ([], ["clam"], "unknown method 'clam'; nearest: calm"),
        (["PointPush-v0"], ["calm"], "no method is left"),
    ):
        with pytest.raises(UserError, match=message):
            study.trials(tasks, methods)
    with pytest.raises(UserError, match="amount '0x2' must read TRAJECTORIESxEVERY"):
        study.trials(amounts=["0x2"])
    with pytest.raises(UserError, match="needs 'methods'"):
        read_study(write(tmp_path, "tasks = ['PointPush-v0']"))
    with pytest.raises(UserError, match=r"cannot read .*none.toml"):
        read_study(tmp_path / "none.toml")
