"""uvd: goal-conditioned reinforcement learning and imitation, by density estimation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvd.actor import Actor
    from uvd.api import Trained, evaluate, load, resume, train
    from uvd.core.errors import UserError
    from uvd.demos.select import DemoSettings
    from uvd.settings import RunSettings
    from uvd.tasks.goalwrapper import GoalWrapper

__version__ = "0.2.0"

_PUBLIC = {
    **dict.fromkeys(("Trained", "evaluate", "load", "resume", "train"), "uvd.api"),
    "Actor": "uvd.actor",
    "DemoSettings": "uvd.demos.select",
    "GoalWrapper": "uvd.tasks.goalwrapper",
    "RunSettings": "uvd.settings",
    "UserError": "uvd.core.errors",
}
__all__ = [
    "Actor", "DemoSettings", "GoalWrapper", "RunSettings", "Trained", "UserError", "__version__",
    "evaluate", "load", "resume", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports on first use, so that a worker process that only needs NumPy never loads JAX."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'uvd' has no attribute {name!r}")
