"""Tasks: the built-in ones, registered on first use, and Gymnasium environments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvd.tasks.task import TASKS, Task, make_task

__all__ = ["TASKS", "Task", "make_task"]


def __getattr__(name: str) -> Any:
    """Imports on first use, so that a worker process that steps a simulator never loads JAX."""
    if name not in __all__:
        raise AttributeError(f"module 'uvd.tasks' has no attribute {name!r}")
    for module in ("cliffwalk_task", "point", "pointloop"):  # each registers its tasks
        import_module(f"uvd.tasks.{module}")
    return getattr(import_module("uvd.tasks.task"), name)
