"""The generated pages hold what the code has."""

import re
import sys
from pathlib import Path

import pytest

from uvd.agents import ALGORITHMS
from uvd.core.config import flatten

DOCS = Path(__file__).resolve().parents[2] / "docs"
README = DOCS.parent / "README.md"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    sys.path.insert(0, str(DOCS))
    import generate

    folder = tmp_path_factory.mktemp("generated")
    generate.write(folder)
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_setting_is_explained(pages, algorithm):
    section = pages["settings.md"].split(f"\n## {algorithm}\n")[1].split("\n## ")[0]
    for name in flatten(ALGORITHMS[algorithm].config()):
        row = next(line for line in section.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.split("|")[3].strip(), f"{name} has no documentation"


def test_every_command_is_there(pages):
    for command in ("train", "eval", "plot", "demos record", "reproduce", "list"):
        section = pages["commands.md"].split(f"\n## uvd {command}\n")[1]
        assert f"usage: uvd {command}" in section


def test_words_are_those_of_the_field(pages):
    """Private words of earlier versions stay away; ids and names do not count."""
    texts = pages | {x.name: x.read_text("utf-8") for x in [README, *DOCS.glob("*.md")]}
    for name, text in texts.items():
        words = re.sub(r"`[^`]*`|<!--.*?-->|https?://\S+", "", text)
        found = re.search(r"\b(who plays|goes round|lanes?|in sight|told)\b", words)
        assert not found, f"{name}: {found}"


def test_pseudocode_is_that_of_the_file(pages):
    assert "line 11" in pages["vdi.txt"]
    assert all(pages[f"{name}.txt"].strip() for name in ALGORITHMS)
