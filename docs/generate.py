"""The pages that the code knows best: every setting, and the help of every command."""

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from uvd import cli
from uvd.agents import ALGORITHMS
from uvd.agents.agent import Algorithm
from uvd.agents.kdi import BY_MATCH
from uvd.demos.select import DemoSettings
from uvd.settings import RunSettings, presets

WIDTH = 92  # of help
SETTINGS = """\
# Every setting

On the command line `--name value` (`_` becomes `-`), in Python a keyword argument of `uvd.train`,
in a run's `config.toml` under its name. Later wins: the default, what follows from the
demonstrations, the preset, what was given.

`uvd train ALGORITHM TASK --help` prints the same with the values that hold for that task."""


def documented(config: type) -> dict[str, tuple[str, str]]:
    """For each field of a dataclass: its type as it is written, and its documentation."""
    source = textwrap.dedent(inspect.getsource(config))
    body, lines = ast.parse(source).body[0].body, source.splitlines()
    found = {}
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            about = lines[node.end_lineno - 1].partition("  # ")[2]
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                about = str(following.value.value)
            found[node.target.id] = ast.unparse(node.annotation), " ".join(about.split())
    return found


def shown(value: Any) -> str:
    """A value as it stands in config.toml."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def settings(config: Any) -> list[str]:
    """A row for each setting of a dataclass; nested ones follow under their own headings."""
    rows, nested = [], []
    about = documented(type(config))
    for field in dataclasses.fields(config):
        value, (kind, text) = getattr(config, field.name), about[field.name]
        if dataclasses.is_dataclass(value):
            nested += ["", f"**{field.name}**", "", *settings(value)]
        else:
            options = re.findall(r"'([\w-]+)'", kind) if "Literal" in kind else []
            text += f" One of {', '.join(f'`{x}`' for x in options)}." if options else ""
            text = text.replace("|", "\\|").replace("*", "\\*")
            rows.append(f"| `{field.name}` | `{shown(value)}` | {text} |")
    header = ["| setting | default | meaning |", "|---|---|---|"] if rows else []
    return [*header, *rows, *nested]


def preset_table(algorithm: str) -> list[str]:
    """What each preset is for, and what it sets."""
    lines = ["| preset | for | sets |", "|---|---|---|"]
    for name, (about, given, _) in presets(algorithm).items():
        sets = ", ".join(f"`{key} = {shown(value)}`" for key, value in given.items())
        lines.append(f"| `{name}` | {about} | {sets or '–'} |")
    if algorithm == "kdi":
        lines += [
            "",
            "Defaults that differ by `match`:",
            "",
            "| compared | defaults |",
            "|---|---|",
        ]
        for name, given in BY_MATCH.items():
            sets = ", ".join(f"`{key} = {shown(value)}`" for key, value in given.items())
            lines.append(f"| `{name}` | {sets or 'as below'} |")
    return lines


def settings_page() -> str:
    lines = [
        SETTINGS, "", "## All runs", "", *settings(RunSettings()),
        "", "## Demonstrations", "", "For algorithms that imitate.", "", *settings(DemoSettings()),
    ]  # fmt: skip
    for name, algorithm in ALGORITHMS.items():
        about = algorithm.about[0].upper() + algorithm.about[1:]
        page = [f"## {name}", "", f"{about}. [Its page](../{name}.md).", "", *preset_table(name)]
        changed = ", ".join(f"`{k} = {shown(v)}`" for k, v in algorithm.run_defaults.items())
        page += ["", f"Its runs have {changed} by default."] if changed else []
        lines += ["", *page, "", *settings(algorithm.config())]
    return "\n".join([*lines, ""])


def help_of(words: list[str]) -> str:
    """What `uvd WORDS --help` prints."""
    os.environ["COLUMNS"], out = str(WIDTH), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    text = re.sub(r"\x1b\[[\d;]*m| +$", "", out.getvalue(), flags=re.MULTILINE).strip("\n")
    return "\n".join(textwrap.fill(line, WIDTH) or line for line in text.splitlines())


def commands(group: Any, words: list[str]) -> list[list[str]]:
    """The words of every command below a group."""
    if not isinstance(group, cli.Group):
        return [words]
    found = [words] if words else []
    for word, child in group.commands.items():
        if not word.startswith("-") and words != ["train"]:
            found += commands(child, [*words, word])
    return found


def command_page() -> str:
    lines = ["# The command line", "", "```text", help_of([]), "```"]
    for words in commands(cli.Group("", "", cli.COMMANDS), []):
        lines += ["", f"## uvd {' '.join(words)}", "", "```text", help_of(words), "```"]
        if words == ["train"]:
            lines += ["", "The settings of each algorithm: [Every setting](settings.md)."]
    return "\n".join([*lines, ""])


def pseudocode(algorithm: Algorithm) -> str:
    """The first indented block of the docstring that an algorithm's file opens with."""
    lines = inspect.getdoc(inspect.getmodule(algorithm.make)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    "))
    block = itertools.takewhile(lambda line: not line or line.startswith("    "), lines[start:])
    return textwrap.dedent("\n".join(block)).strip() + "\n"


def write(folder: Path) -> None:
    """Writes both pages, and what the page of each algorithm includes."""
    files = {"settings.md": settings_page(), "commands.md": command_page()}
    for name, algorithm in ALGORITHMS.items():
        files[f"{name}.txt"] = pseudocode(algorithm)
        files[f"{name}-presets.txt"] = "\n".join([*preset_table(name), ""])
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:  # Sphinx looks at dates
            path.write_text(text, encoding="utf-8")
