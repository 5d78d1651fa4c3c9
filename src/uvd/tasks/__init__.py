"""The built-in tasks; importing this registers them all."""

from uvd.tasks import point
from uvd.tasks.task import TASKS, Task, make_task

__all__ = ["TASKS", "Task", "make_task", "point"]
