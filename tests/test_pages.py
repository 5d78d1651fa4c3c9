"""README and the first pages: their commands run, their lines are short."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pages
from uvd.cli import main


def test_readme_has_no_long_lines() -> None:
    lines = (pages.ROOT / "README.md").read_text("utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120]


@pytest.mark.parametrize("command", ["uvd train uvd my_arm:MyArm-v0", "uvd train kdi Pendulum-v1"])
def test_commands_of_readme_train_on_its_own_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.write_files("README.md", tmp_path)
    line = next(x for x in pages.shell_lines("README.md") if x.startswith(command))
    if "--demos" in line:
        subprocess.run([sys.executable, "record.py"], check=True)
    assert main(shlex.split(line)[1:]) == 0
    assert ": step 400, " in capsys.readouterr().out


def test_github_files_are_valid_yaml() -> None:
    workflow = yaml.safe_load((pages.ROOT / ".github/workflows/test.yml").read_text("utf-8"))
    job = workflow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert {"run": "make check"} in job["steps"]
    hooks = yaml.safe_load((pages.ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [hook["id"] for hook in hooks["repos"][0]["hooks"]]
    for path in (pages.ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(path.read_text("utf-8").split("---")[1])
        assert {"name", "about"} <= set(head)
