"""One live line per run on a terminal; plain lines in a pipe."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def format_score(result: Mapping[str, Sequence[float]]) -> str:
    """An evaluation in words: success at the final step and at any, or the return; seeds' means."""
    scores = ("eval/", "newest/")
    mean = {name: sum(x) / len(x) for name, x in result.items() if name.startswith(scores)}
    if "newest/return" in mean:
        return f"return {mean['eval/return']:,.1f} (newest {mean['newest/return']:,.1f})"
    if "eval/return" in mean:
        return f"return {mean['eval/return']:,.1f}"
    final, ever = mean["eval/success_final"], mean["eval/success_ever"]
    return f"success {final:.2f} final, {ever:.2f} ever"


class RunProgress:
    """Shows step, speed, time left and the latest evaluation of a run."""

    def __init__(self, name: str, total: int, done: int = 0, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False)
        self.name, self.total, self.start = name, total, done
        self.begun = time.monotonic()
        self.bar: Progress | None = None  # to be entered while the run goes on
        if self.console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=24),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[speed]}"), TimeRemainingColumn(),
                TextColumn("{task.fields[success]}"), console=self.console,
            )  # fmt: skip
            self.id = self.bar.add_task(name, total=total, completed=done, speed="", success="")

    def _speed(self, step: int) -> float:
        return (step - self.start) / max(time.monotonic() - self.begun, 1e-9)

    def advance(self, step: int) -> None:
        """The run has come to this step."""
        if self.bar:
            speed = f"{self._speed(step):,.0f} steps/s"
            self.bar.update(self.id, completed=step, speed=speed)

    def report(self, step: int, result: Mapping[str, Sequence[float]]) -> None:
        """The latest evaluation, as means over seeds."""
        score = format_score(result)
        if self.bar:
            self.bar.update(self.id, success=score)
            self.advance(step)
            return
        speed = self._speed(step)
        left = (self.total - step) / speed if speed else 0.0
        self.console.print(
            f"{self.name}: step {step:,}/{self.total:,}, {speed:,.0f} steps/s, "
            f"{left:,.0f} s left, {score}",
            soft_wrap=True,
        )
