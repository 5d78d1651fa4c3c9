"""Numbers on the pages are those of the files under results/."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_agree_with_the_files(tables):
    marked = 0
    for page in tables.pages():
        text = page.read_text("utf-8")
        marked += len(tables.MARK.findall(text))
        assert tables.render(text) == text, f"{page} differs from results/: run `make tables`"
    assert marked > 10


@pytest.mark.parametrize("name", ["fetch", "imitation-shipped", "cliffwalk"])
def test_a_number_changed_by_hand_is_caught(tables, name):
    right = f"<!-- table: {name} -->\n{tables.TABLES[name]()}\n<!-- end -->"
    assert tables.render(right) == right
    digit = max(i for i, c in enumerate(right) if c.isdigit())
    wrong = right[:digit] + str((int(right[digit]) + 1) % 10) + right[digit + 1 :]
    assert tables.render(wrong) == right


def test_a_value_is_the_one_of_its_run(tables):
    rows = (ROOT / "results/mini/PointCliff-v0-uvd/metrics.jsonl").read_text().splitlines()
    seeds = np.sort(json.loads(rows[-1])["eval/success_final"])
    expected = f"{100 * seeds[2:-2].mean():.0f}"  # of ten seeds without the two best and worst
    text = "<!-- value: success mini/PointCliff-v0-uvd -->0<!-- end -->"
    assert tables.render(text) == text.replace(">0<", f">{expected}<")


def test_intervals_need_five_seeds(tables):
    assert tables.cell([0.1, 0.2, 0.3]) == "20 (10, 20, 30)"
    assert tables.cell([0.5] * 5) == "50 [50, 50]"


def test_runs_of_other_seeds_are_pooled(tables, tmp_path, monkeypatch):
    source, name = ROOT / "results/mini/PointSlideNoise-v0-uvd", "PointSlideNoise-v0"
    config = (source / "config.toml").read_text("utf-8")
    halved = config.replace("[task_settings]", "[task_settings]\nnoise_scale = 0.5")
    folders = {
        f"{name}-her-uvd-first_seed100": config,
        f"{name}-her-uvd-first_seed105": config,
        f"{name}-noise_scale0.5-td3-paper": halved,
    }
    for folder, text in folders.items():
        path = tmp_path / "bias" / folder
        path.mkdir(parents=True)
        (path / "config.toml").write_text(text, encoding="utf-8")
        shutil.copy(source / "metrics.jsonl", path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    found = {key: len(values) for key, values in tables.study("bias").items()}
    assert found == {(name, "her-uvd"): 20, (f"{name}, noise_scale 0.5", "td3-paper"): 10}
    assert "No run" in tables.study_table("letter")
