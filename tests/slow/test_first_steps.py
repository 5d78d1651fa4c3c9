"""What a new user does: every command of README and first pages, an installed wheel, notebooks."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import pages

pytestmark = pytest.mark.slow


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What a command prints; its errors fail the test."""
    env = {**os.environ, "MPLBACKEND": "Agg", **variables}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_command_of_a_page(page: str, tmp_path: Path) -> None:
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    scripts = pages.write_files(page, tmp_path)
    for line in pages.shell_lines(page):
        run(["bash", "-c", line], tmp_path, HOME=str(tmp_path), PATH=path)
    for script in scripts:
        run([sys.executable, "-c", script], tmp_path)


def test_a_wheel_installs_and_runs(tmp_path: Path) -> None:
    """Built from this tree, into an environment of its own with the tested versions."""
    pip = ["-m", "pip", "-qq", "--disable-pip-version-check"]
    run([sys.executable, *pip, "wheel", "--no-deps", "-w", str(tmp_path), "."], pages.ROOT)
    wheel = next(tmp_path.glob("uvd-*.whl"))
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env/bin/python")
    constraints = str(pages.ROOT / "constraints.txt")
    run([python, *pip, "install", "-c", constraints, str(wheel)], tmp_path, PYTHONPATH="")
    uvd = str(tmp_path / "env/bin/uvd")
    assert run([uvd, "--version"], tmp_path, PYTHONPATH="").startswith("uvd 0")
    assert "halfcheetah-expert" in run([uvd, "list"], tmp_path, PYTHONPATH="")
    assert "walk to a goal" in run([uvd, "list"], tmp_path, PYTHONPATH="")


@pytest.mark.parametrize("name", ["goals", "imitation"])
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(pages.ROOT / f"notebooks/{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "outputs are stored"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    text = [out.get("text", "") for cell in cells for out in cell.outputs]
    assert not [line for line in text if "Traceback" in line]
