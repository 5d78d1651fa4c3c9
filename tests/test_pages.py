"""README and the first pages: their commands run, their lines are short."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import pages
from uvd.cli import main


def test_readme_has_no_long_lines() -> None:
    lines = (pages.ROOT / "README.md").read_text("utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[[str], str]:
    """Runs README's line that begins so, beside README's files; gives what it prints."""
    monkeypatch.chdir(tmp_path)
    pages.write_files("README.md", tmp_path)

    def run_line(start: str) -> str:
        line = next(x for x in pages.shell_lines("README.md") if x.startswith(start))
        assert main(shlex.split(line)[1:]) == 0
        return capsys.readouterr().out

    return run_line


def test_readme_trains_on_its_own_environment(run: Callable[[str], str]) -> None:
    assert "runs/arm: step 400, success " in run("uvd train uvd my_arm:MyArm-v0")


def test_readme_reads_its_own_demonstrations(run: Callable[[str], str]) -> None:
    subprocess.run([sys.executable, "record.py"], check=True)
    printed = run("uvd demos info my_demos").split()
    assert printed[printed.index("trajectories") + 1] == "5"
    assert printed[printed.index("steps") + 1] == "1,000"


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
