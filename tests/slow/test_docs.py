"""The site builds without a warning, and its links and anchors lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def test_the_site_builds(tmp_path):
    pytest.importorskip("sphinx")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*build, "docs", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Every setting" in (tmp_path / "generated" / "settings.html").read_text("utf-8")
    pages = {path.resolve(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    dead = []
    for path, html in pages.items():
        for link in re.findall(r'(?:href|src)="([^":]*)"', html):
            target, _, anchor = link.partition("#")
            there = (path.parent / target.split("?")[0]).resolve() if target else path
            if not there.exists() or (anchor and f'id="{anchor}"' not in pages[there]):
                dead.append(f"{path.name}: {link}")
    assert not dead
