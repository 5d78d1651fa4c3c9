"""uvd: agents that reach what you show them, by a density of what they will achieve."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    **dict.fromkeys(("train", "resume", "load", "evaluate"), "uvd.api"),
    "UserError": "uvd.core.errors",
}
__all__ = ["UserError", "__version__", "evaluate", "load", "resume", "train"]


def __getattr__(name: str) -> Any:
    """Imports on first use, so that a worker process that only needs NumPy never loads JAX."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'uvd' has no attribute {name!r}")
