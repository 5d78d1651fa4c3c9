"""Comparing runs to the last bit, and doing something in the middle of one."""

import io
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from uvd.runs import Run


def final_state(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the newest checkpoint."""
    found = Run.open(path).restore()
    assert found is not None
    return found[1]


def assert_equal_arrays(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """The same names and the same numbers."""
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


def reports(path: Path) -> list[dict]:
    """The evaluations of a run. Means over an interrupted report cover only what followed."""
    own = ("step", "updates")
    return [
        {k: x for k, x in row.items() if k in own or k.startswith("eval/")}
        for row in Run.open(path).rows()
    ]


def assert_same_run(a: Path, b: Path) -> None:
    """The same learners, episodes and evaluations."""
    assert_equal_arrays(final_state(a), final_state(b))
    assert reports(a) == reports(b)
    for log in (a / "episodes").iterdir():
        assert log.read_bytes() == (b / "episodes" / log.name).read_bytes()


class _Watched(io.StringIO):
    def __init__(self, text, action):
        super().__init__()
        self.text, self.action, self.done = text, action, False

    def write(self, piece):
        n = super().write(piece)
        if not self.done and self.text in self.getvalue():
            self.done = True
            self.action()
        return n


@contextmanager
def when_printed(text, action):
    """Calls `action` as soon as `text` is printed; gives all that is printed."""
    usual, sys.stdout = sys.stdout, _Watched(text, action)
    try:
        yield sys.stdout
    finally:
        sys.stdout = usual
