"""Puts runs of the same settings and different seeds together, as the small files of one run.

    python bench/together.py OUT RUN...

For seeds that were trained one at a time, a core each. Only reports that all of them have are
written, the seeds in the order of the runs, which must be consecutive; seconds are those of the
slowest.
"""

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import Any

import tomli_w

from uvd.core.errors import UserError
from uvd.runs import Run


def joined(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One report of all seeds."""
    first = rows[0]
    names = [name for name, value in first.items() if isinstance(value, list)]
    lists = {name: list(chain.from_iterable(r[name] for r in rows)) for name in names}
    return {**first, **lists, "seconds": max(r["seconds"] for r in rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args()
    try:
        runs = [Run.open(path) for path in args.runs]
    except UserError as error:
        parser.error(str(error))
    if args.out.exists():
        parser.error(f"{args.out} is there already")
    first, seed = runs[0].config, runs[0].config["run"]["first_seed"]
    for run in runs:
        here = run.config["run"]
        where = {"first_seed": seed, "seeds": here["seeds"], "steps": here["steps"]}
        if run.config != {**first, "run": {**first["run"], **where}}:
            parser.error(f"{run.path} has other settings than {runs[0].path}, or not the next seed")
        seed += here["seeds"]
    rows = [joined(r) for r in zip(*(run.rows() for run in runs))]
    if not rows:
        parser.error("not all of them have a report")
    steps = {tuple(r["step"] for r in run.rows()[: len(rows)]) for run in runs}
    if len(steps) > 1:
        parser.error("reports are not of the same steps")
    own = {"seeds": seed - first["run"]["first_seed"], "steps": rows[-1]["step"]}
    args.out.mkdir(parents=True)
    text = tomli_w.dumps({**first, "run": {**first["run"], **own}})
    (args.out / "config.toml").write_text(text, encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (args.out / "metrics.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
