import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import trim_mean

import uvd
from fakeruns import CLIFF, PUSH, make_run, train
from uvd import cli
from uvd.core.errors import UserError
from uvd.experiments import report
from uvd.runs import Run

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def read(page):
    """The numbers in a page."""
    text = page.read_text("utf-8").split('id="data">')[1].split("</script>")[0]
    return json.loads(text)


def write(*folders):
    page = folders[0].parent / f"{folders[0].name}.html"
    notes = report.write_report(folders, page)
    return read(page), notes


def row_of(data, label, task=CLIFF):
    [found] = [
        row
        for t in data["tasks"]
        if t["name"] == task
        for row in t["rows"]
        if row["label"] == label
    ]
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """UVD in two folders, HER in one, TD3 elsewhere, a task of returns."""
    folder, rng = tmp_path_factory.mktemp("all") / "study", np.random.default_rng(0)
    uvd = np.sort(rng.random((5, 6)), 1)
    curves = {"uvd": uvd, "her": np.sort(0.8 * rng.random((3, 6)), 1)}
    train(folder / "a", "uvd", CLIFF, uvd[:3])
    train(folder / "b", "uvd", CLIFF, uvd[3:], first_seed=6)
    train(folder / "c", "her", CLIFF, curves["her"])
    train(folder / "d", "her", PUSH, curves["her"])
    train(folder / "e", "td3", "PointLoop-v0", 100 * uvd, metric="eval/return")
    (folder / "a" / "density.png").write_bytes(PNG)
    return folder, curves


def test_seeds_in_several_folders_are_one_row(study):
    folder, curves = study
    data, notes = write(folder)
    assert not notes
    row, values = row_of(data, "UVD"), curves["uvd"]
    np.testing.assert_allclose(row["y"], trim_mean(values, 0.25, axis=0), rtol=1e-3)
    np.testing.assert_allclose(row["each"], values, rtol=1e-3)
    assert np.all(np.array(row["low"]) <= row["y"])
    assert np.all(np.array(row["y"]) <= row["high"])
    assert row["final"][0] == pytest.approx(trim_mean(values[:, -1], 0.25), rel=1e-5)
    assert [seed[0] for seed in row["seeds"]] == [3, 4, 5, 6, 7]
    np.testing.assert_allclose([seed[2] for seed in row["seeds"]], values[:, -1], rtol=1e-5)
    assert row["x"] == [100, 200, 300, 400, 500, 600]
    assert row["t"] == [2, 4, 6, 8, 10, 12]
    assert (row["steps"], row["seconds"], row["best"]) == (600, 12, True)
    assert row["commands"][0].endswith("--seeds 5 --first-seed 3")
    assert data["runs"] == 5


def test_time_to_threshold_is_counted_seed_by_seed(study):
    folder, curves = study
    data, _ = write(folder)
    firsts = [trim_mean(curves[name][:, 0], 0.25) for name in ("uvd", "her")]
    best = trim_mean(curves["uvd"][:, -1], 0.25)
    threshold = min(firsts) + 0.9 * (best - min(firsts))
    assert data["tasks"][0]["threshold"] == pytest.approx(threshold, rel=1e-5)
    for label in ("UVD", "HER"):
        row, values = row_of(data, label), curves[label.lower()]
        times = [
            next((100 * i for i, x in enumerate(v, 1) if x >= threshold), np.inf) for v in values
        ]
        assert [seed[3] for seed in row["seeds"]] == [t if t < np.inf else None for t in times]
        assert row["reached"] == sum(t < np.inf for t in times)
        middle = trim_mean(times, 0.25)
        assert row["reach"]["steps"][0] == (
            pytest.approx(middle, rel=1e-5) if middle < np.inf else None
        )


def test_the_best_is_compared_with_the_others(study):
    folder, curves = study
    data, _ = write(folder)
    ours, theirs = curves["uvd"][:, -1], curves["her"][:, -1]
    share = np.mean([x > y for x in ours for y in theirs])
    assert row_of(data, "HER")["beaten"][0] == pytest.approx(share, rel=1e-5)
    assert "beaten" not in row_of(data, "UVD")
    assert not row_of(data, "HER")["best"]
    assert not row_of(data, "HER", PUSH)["best"]  # alone there


def test_over_tasks_are_the_methods_that_have_all_of_them(study):
    folder, curves = study
    data, _ = write(folder)
    both = np.tile(curves["her"][:, -1], 2)
    assert data["over"].keys() == data["profile"].keys() == {"HER"}
    assert data["over"]["HER"][0] == pytest.approx(trim_mean(both, 0.25), rel=1e-5)
    above = [np.mean(both > x) for x in np.linspace(0, 1, 51)]
    np.testing.assert_allclose(data["profile"]["HER"][0], above, rtol=1e-3)


def test_returns_have_a_task_of_their_own(study):
    data, _ = write(study[0])
    assert [(t["name"], t["percent"]) for t in data["tasks"]] == [
        (CLIFF, True), (PUSH, True), ("PointLoop-v0", False),
    ]  # fmt: skip
    values = 100 * study[1]["uvd"]
    row = row_of(data, "TD3", "PointLoop-v0")
    assert row["final"][0] == pytest.approx(trim_mean(values[:, -1], 0.25), rel=1e-5)


def test_different_budgets_share_a_range(tmp_path):
    train(tmp_path / "in" / "long", "uvd", CLIFF, np.arange(24.0).reshape(3, 8) / 24)
    short = train(tmp_path / "in" / "short", "her", CLIFF, np.ones((2, 2)), every=150)
    data, _ = write(tmp_path / "in")
    [task] = data["tasks"]
    assert (task["common"], task["log"]) == (300, False)
    values = np.arange(24.0).reshape(3, 8)[:, 2] / 24
    assert row_of(data, "UVD")["common"][0] == pytest.approx(trim_mean(values, 0.25), rel=1e-5)
    shutil.rmtree(short)
    train(short, "her", CLIFF, np.ones((2, 2)), every=40)
    [task] = write(tmp_path / "in")[0]["tasks"]
    assert (task["common"], task["log"]) == (80, True)
    assert "common" not in row_of({"tasks": [task]}, "UVD")


def test_what_is_not_finished_is_left_out_of_those_that_are(tmp_path):
    folder = tmp_path / "in"
    train(folder / "a", "uvd", CLIFF, np.ones((1, 4)))
    train(folder / "b", "uvd", CLIFF, np.zeros((1, 2)), budget=400, first_seed=9)
    train(folder / "c", "her", CLIFF, np.zeros((1, 2)), budget=400)
    train(folder / "e", "her", CLIFF, np.zeros((1, 1)), budget=400, every=50, first_seed=9)
    data, notes = write(folder)
    assert [seed[0] for seed in row_of(data, "UVD")["seeds"]] == [3]
    her = row_of(data, "HER")  # one of them has nothing at the first report of the other
    assert (her["steps"], [seed[0] for seed in her["seeds"]]) == (200, [3])
    assert notes == [
        f"left out: {folder / 'b'} is not finished, other seeds of UVD are",
        "not finished: HER on PointCliff-v0, drawn as far as it is",
    ]


def test_a_run_counts_once(tmp_path):
    whole = train(tmp_path / "in" / "runs" / "a", "uvd", CLIFF, np.ones((2, 3)))
    shutil.copytree(whole, tmp_path / "in" / "a")  # its small files, as `uvd reproduce` keeps them
    data, notes = write(tmp_path / "in", tmp_path / "in" / "a")
    assert (data["runs"], notes) == (1, [])
    shutil.copytree(whole, tmp_path / "in" / "copy")
    data, [note] = write(tmp_path / "in")
    assert len(row_of(data, "UVD")["seeds"]) == 2
    assert note.startswith("left out: ")
    assert "has seed 3, as" in note


def test_what_cannot_be_read_is_one_line_and_the_rest_is_drawn(tmp_path):
    folder = tmp_path / "in"
    train(folder / "good", "uvd", CLIFF, np.ones((2, 3)))
    make_run(folder / "fresh", "uvd", CLIFF, steps=())
    for name, text in (("toml", "run = ["), ("lacks", 'uvd_version = "0.2.0"')):
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text(text)
    for name, row in (("metrics", "nonsense\n{}"), ("ragged", '{"step": 1, "eval/return": [1]}')):
        make_run(folder / name, "her", CLIFF, steps=())
        (folder / name / "metrics.jsonl").write_text(f"{row}\n")
    data, notes = write(folder)
    assert data["runs"] == 1
    assert len(notes) == 5
    assert all(note.startswith("left out: ") and "\n" not in note for note in notes)
    assert data["notes"] == notes
    shutil.rmtree(folder / "good")
    with pytest.raises(UserError, match=r"no run can be drawn; the first: .*no reports yet"):
        write(folder)


def test_a_study_says_what_failed_and_what_waits(tmp_path):
    folder = tmp_path / "in"
    train(folder / "good", "uvd", CLIFF, np.ones((2, 3)))
    bad = train(folder / "bad", "uvd", CLIFF, np.ones((2, 2)), budget=300, noise=0.3)
    (bad / "error.txt").write_text("no luck")
    plan = {"uvd_version": uvd.__version__, "trials": {"good": {}, "bad": {}, "a": {}}}
    (folder / "study.json").write_text(json.dumps(plan))
    _, notes = write(folder)
    assert notes[:2] == [f"failed: {bad}: no luck", f"1 of 3 trials of {folder} wait"]
    (folder / "study.json").write_text("{")
    assert "study.json is damaged" in write(folder)[1][0]


def test_a_number_that_is_not_finite_is_none(tmp_path):
    train(tmp_path / "in" / "a", "uvd", CLIFF, [[0.5, float("nan")], [0.5, 0.5]])
    row = row_of(write(tmp_path / "in")[0], "UVD")
    assert (row["y"], row["final"]) == ([0.5, None], [None] * 3)


def test_long_curves_are_thinned_to_their_ends(tmp_path):
    train(tmp_path / "in" / "a", "uvd", CLIFF, [np.linspace(0, 1, 1001)], every=10)
    row = row_of(write(tmp_path / "in")[0], "UVD")
    assert len(row["x"]) == len(row["y"]) == 200
    assert (row["x"][0], row["x"][-1], row["y"][-1]) == (10, 10010, 1)


def test_pictures_are_embedded_and_large_ones_named(tmp_path, monkeypatch):
    run = train(tmp_path / "in" / "a", "uvd", CLIFF, np.ones((2, 3)))
    (run / "density.png").write_bytes(PNG)
    (tmp_path / "in" / "film.mp4").write_bytes(bytes(5000))
    monkeypatch.setattr(report, "MEDIA_BYTES", 1000)
    picture, film = write(tmp_path / "in")[0]["media"]
    assert picture["src"].startswith("data:image/png;base64,iVBOR")
    assert (film["name"], film["bytes"]) == (str(tmp_path / "in" / "film.mp4"), 5000)
    assert "src" not in film


def test_nothing_in_a_name_is_markup(tmp_path):
    train(tmp_path / "in" / "</script><b>", "uvd", CLIFF, np.ones((2, 3)))
    [seed, _] = row_of(write(tmp_path / "in")[0], "UVD")["seeds"]
    assert seed[1].endswith("</script><b>")


def test_the_command_line(study, tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    assert cli.main(["report", str(study[0]), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "plotly.js v" in page.read_text("utf-8")
    (tmp_path / "empty").mkdir()
    for folder, text in (("empty", "holds no runs"), ("none", "is not a folder")):
        assert cli.main(["report", str(tmp_path / folder)]) == 2
        assert text in capsys.readouterr().err
    assert cli.main(["report", str(study[0]), "-o", str(study[0] / "a" / "config.toml" / "x")]) == 2
    assert cli.main(["report"]) == 2


def test_an_experiment_ends_with_the_page_of_its_runs(tmp_path, capsys):
    name = "PointReach-v0-td3"
    stored = Path(__file__).parents[2] / "results" / "mini" / name
    shutil.copytree(stored, tmp_path / name)
    assert cli.main(["reproduce", "mini", "--draw", "--out", str(tmp_path)]) == 0
    page = tmp_path / "report.html"
    assert capsys.readouterr().out.endswith(f"{page}\n")
    data = read(page)
    final = Run.open(stored).rows()[-1]["eval/success_final"]
    assert row_of(data, "TD3", "PointReach-v0")["final"][0] == pytest.approx(trim_mean(final, 0.25))
    assert {Path(item["name"]).name for item in data["media"]} == {"curves.png"}
