"""The code of README and pages: shell lines and Python files, made to run in seconds."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *(f"docs/{x}.md" for x in ("quickstart", "your-environment"))]
PAGES += ["docs/your-demonstrations.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Lines that set up, or run for minutes whatever their settings; tests have these by themselves.
SKIPPED = ("git ", "make ", "uvd demo\n")
TINY = " --hidden 8 --batch 8 --eval-episodes 1 --warmup 100 --workers 1"
STEPS = re.compile(r"(--steps |steps=)([\d_.e]+)")


def blocks(page: str, language: str) -> list[str]:
    """The page's code blocks of a language ("" is the shell)."""
    found = BLOCK.findall((ROOT / page).read_text("utf-8"))
    return [text for name, text in found if name == language]


def shell_lines(page: str) -> list[str]:
    """The page's shell lines, tiny: 400 steps, and 800 where a run goes on."""
    lines = [line for text in blocks(page, "") for line in text.splitlines(keepends=True)]
    return [tiny(line.strip()) for line in lines if not line.startswith(SKIPPED)]


def tiny(line: str) -> str:
    """The same line with nets, batches and evaluations as small as they can be."""
    line = STEPS.sub(r"\g<1>800" if "--resume" in line else r"\g<1>400", line)
    return line + TINY if re.match(r"uvd train \w", line) else line


def write_files(page: str, folder: Path) -> list[str]:
    """Writes the page's Python blocks that begin with `# name.py`; gives the others, tiny."""
    others = []
    for text in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", text):
            (folder / name[1]).write_text(text, encoding="utf-8")
        else:
            others.append(STEPS.sub(r"\g<1>400", text))
    return others
