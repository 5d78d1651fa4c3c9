"""Errors that are the user's to fix: one line that says what, where and what to do."""

import difflib
from collections.abc import Iterable


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
