"""Errors that are the user's to fix: one line that says what, where and what to do."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in what the user asked for. The command line prints it without a traceback."""


class Stopped(UserError):
    """The user stopped a run; it was saved and can go on."""


def nearest(word: str, valid: Iterable[str], what: str) -> UserError:
    """The error for an unknown name: names the nearest valid ones."""
    valid = sorted(valid)
    close = difflib.get_close_matches(word.lower(), [v.lower() for v in valid], n=3, cutoff=0.4)
    names = [v for c in close for v in valid if v.lower() == c] or valid[:8]
    return UserError(f"unknown {what} '{word}'; nearest: {', '.join(dict.fromkeys(names))}")


def one_line(error: BaseException) -> str:
    """An exception's type and text on one line; of the file system, its reason alone."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


@contextmanager
def refused(problem: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Turns an exception inside into a `UserError` of one line that begins with the problem."""
    try:
        yield
    except UserError:
        raise
    except kind as error:
        raise UserError(f"{problem}: {one_line(error)}") from error
