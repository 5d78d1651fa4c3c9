"""A run, and disks that fail."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from uvd.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", {"algorithm": "uvd"})


@pytest.fixture
def full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], AbstractContextManager[None]]:
    """`with full_disk("fsync")`: this function of `os` says that there is no space left."""

    def refuse(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def patched(call: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            yield

    return patched
