"""The built-in tasks; importing this registers them all."""

from uvd.tasks import cliffwalk_task, point
from uvd.tasks.task import TASKS, Task, make_task

__all__ = ["TASKS", "Task", "cliffwalk_task", "make_task", "point"]
