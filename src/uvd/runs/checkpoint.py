"""Checkpoints of a run: one file per step, `<step>.safetensors`."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from uvd.core.errors import UserError
from uvd.runs.files import Arrays, read_arrays, write_arrays

KEPT = 2  # good checkpoints of a run; older ones are removed


class Checkpoint(NamedTuple):
    """What was saved at a step."""

    step: int
    arrays: Arrays
    meta: dict[str, Any]


def save_checkpoint(folder: Path, step: int, arrays: Arrays, meta: dict[str, Any]) -> None:
    """Writes a checkpoint and removes all others except the newest good ones before it."""
    try:
        write_arrays(folder / f"{step}.safetensors", arrays, {"step": step, "meta": meta})
    except UserError as error:
        last = next(_good_ones(folder, []), None)
        left = f"the checkpoint of step {last.step} survives" if last else "there is none before"
        raise UserError(f"{error}; {left}") from error
    earlier = islice(_good_ones(folder, [], before=step), KEPT - 1)
    kept = {str(step), *(str(good.step) for good in earlier)}
    for other in folder.glob("*.safetensors"):  # also unfinished ones
        if other.stem not in kept:
            with suppress(OSError):
                other.unlink()


def restore_checkpoint(folder: Path, warn: Callable[[str], object]) -> Checkpoint | None:
    """The newest good checkpoint; None if none was saved.

    `warn` receives one line for each damaged one that is newer.
    """
    problems: list[str] = []
    checkpoint = next(_good_ones(folder, problems), None)
    if checkpoint:
        for problem in problems:
            warn(f"{problem}: the one of step {checkpoint.step} is used")
    elif problems:
        raise UserError(f"{problems[0]} and there is no good one: start again with --overwrite")
    return checkpoint


def _good_ones(folder: Path, problems: list[str], before: float = math.inf) -> Iterator[Checkpoint]:
    """The undamaged checkpoints, newest first; `problems` receives a line for each other one."""
    steps = [int(path.stem) for path in folder.glob("*.safetensors") if path.stem.isdigit()]
    for step in sorted((step for step in steps if step < before), reverse=True):
        path = folder / f"{step}.safetensors"
        try:
            arrays, body = read_arrays(path)
            if body["step"] != step:
                raise ValueError(f"it is of step {body['step']}")
        except ValueError as error:
            problems.append(f"checkpoint {path} is damaged ({error})")
        else:
            yield Checkpoint(step, arrays, body["meta"])
