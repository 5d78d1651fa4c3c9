"""Studies on Ray: the same bits as on this machine, whatever is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from uvd import cli
from uvd.runs.files import write_folder
from uvd.study import cluster as cluster_module
from uvd.study import runner
from wholeruns import assert_same_run

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

STUDY = """\
[settings]
seeds = 2
steps = {steps}
envs = 2
eval_every = 300
eval_episodes = 4
warmup = 300
hidden = [8]
batch = 16
save_seconds = 0.1
[tasks]
PointReach-v0 = {{}}
[methods]
her = {{}}
[grid]
gamma = {gammas}
"""


def write(tmp_path, steps, gammas):
    path = tmp_path / "small.toml"
    path.write_text(STUDY.format(steps=steps, gammas=gammas))
    return path


@pytest.fixture
def cluster(monkeypatch):
    """A head with one core."""
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_trials_on_a_cluster_have_the_same_bits(cluster, tmp_path, capsys):
    study, here, there = write(tmp_path, 600, [0.9]), tmp_path / "here", tmp_path / "there"
    assert cli.main(["sweep", str(study), "--out", str(here), "--jobs", "1"]) == 0
    assert cli.main(["sweep", str(study), "--out", str(there), "--ray", cluster.address]) == 0
    assert f"1 of 1 trials to train, on the Ray cluster at {cluster.address}" in (
        capsys.readouterr().out
    )
    assert_same_run(here / "PointReach-v0-her-gamma0.9", there / "PointReach-v0-her-gamma0.9")
    assert cli.main(["sweep", "--resume", str(there), "--ray", cluster.address]) == 0
    assert "0 of 1 trials to train" in capsys.readouterr().out


def test_a_copy_that_goes_to_and_fro_has_the_same_bits(tmp_path, monkeypatch):
    """As on nodes that do not see the study's folder: each piece ends at its first report."""
    text = STUDY.format(steps=900, gammas=[0.9]).replace("PointReach-v0", "PointLoop-v0")
    text = text.replace("her = {}", "kdi = { demos = 'pointloop-expert', every = 5 }")
    (study := tmp_path / "small.toml").write_text(text)
    here, there = tmp_path / "here", tmp_path / "there"
    assert cli.main(["sweep", str(study), "--out", str(here), "--jobs", "1"]) == 0
    runner.plan(there, plan := runner.read_plan(here))
    ((name, rows),) = plan.items()
    pieces = 0
    while not runner.state_of(there / name, rows).finished:
        files = cluster_module.copy_of(there / name, rows)
        assert "demos.safetensors" in files  # the node need not have the demonstrations' file
        write_folder(there / name, cluster_module.train_copy(files, 0.0))
        pieces += 1
    assert pieces == 3
    assert_same_run(here / name, there / name)


def test_an_address_that_does_not_answer_is_refused_in_one_line(tmp_path, capsys):
    study, begun = write(tmp_path, 600, [0.9]), time.monotonic()
    assert cli.main(["sweep", str(study), "--out", str(tmp_path / "out"), "--ray", "localhost:1"])
    error = capsys.readouterr().err
    assert error.startswith("uvd: no Ray cluster answers at localhost:1")
    assert error.count("\n") == 1
    assert time.monotonic() - begun < 15


def test_without_ray_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    study = write(tmp_path, 600, [0.9])
    assert cli.main(["sweep", str(study), "--out", str(tmp_path / "out"), "--ray", "auto"]) == 2
    assert capsys.readouterr().err == (
        "uvd: --ray needs Ray: pip install 'ray[client]' (the extra `ray` of this project)\n"
    )


def tasks_of(out):
    """The processes that train a trial of the study: those that hold its lock."""
    found = []
    for entry in os.listdir("/proc"):
        links = f"/proc/{entry}/fd"
        if entry.isdigit() and os.access(links, os.R_OK):
            for fd in os.listdir(links):
                try:
                    target = os.readlink(f"{links}/{fd}")
                except OSError:
                    continue
                if target.startswith(str(out)) and target.count("/") > str(out).count("/") + 1:
                    found.append(int(entry))
    return sorted(set(found))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_a_worker_a_node_and_the_driver_are_killed(cluster, tmp_path):
    study = write(tmp_path, 30_000, [0.8, 0.85, 0.9, 0.95])
    here, there = tmp_path / "here", tmp_path / "there"
    assert cli.main(["sweep", str(study), "--out", str(here), "--jobs", "2"]) == 0
    node = cluster.add_node(num_cpus=1)
    command = [sys.executable, "-m", "uvd.cli", "sweep", "--ray", cluster.address]
    driver = subprocess.Popen([*command, str(study), "--out", str(there)])

    def progress():
        plan = runner.read_plan(there) if (there / "study.json").exists() else {}
        return sum(runner.state_of(there / name, rows).step for name, rows in plan.items())

    def wait_for(steps):
        end = time.monotonic() + 300
        while progress() < steps:
            assert time.monotonic() < end
            time.sleep(0.2)

    wait_for(5_000)
    os.kill(tasks_of(there)[0], signal.SIGKILL)
    wait_for(progress() + 5_000)
    cluster.remove_node(node, allow_graceful=False)
    wait_for(progress() + 5_000)
    driver.kill()
    driver.wait()
    assert progress() < 4 * 30_000
    subprocess.run([*command, "--resume", str(there)], check=True)
    for name in runner.read_plan(here):
        assert_same_run(here / name, there / name)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of a node's own takes root")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_a_node_that_does_not_see_the_study_trains_copies(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cluster_module, "PIECE", 1.0)
    study, here = write(tmp_path, 1200, [0.9, 0.95]), tmp_path / "here"
    assert cli.main(["sweep", str(study), "--out", str(here), "--jobs", "2"]) == 0
    (hidden := tmp_path / "hidden").mkdir()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    ray_command = f"{os.path.dirname(sys.executable)}/ray start --address {made.address}"
    own = f"mount -t tmpfs none {hidden} && exec {ray_command} --num-cpus 1 --block"
    node = subprocess.Popen(["unshare", "--mount", "sh", "-c", own], stdout=subprocess.DEVNULL)
    try:
        there = hidden / "there"
        assert cli.main(["sweep", str(study), "--out", str(there), "--ray", made.address]) == 0
        assert "step " in capsys.readouterr().out  # it took several pieces
        for name in runner.read_plan(here):
            assert_same_run(here / name, there / name)
    finally:
        node.terminate()
        node.wait()
        ray.shutdown()
        made.shutdown()
