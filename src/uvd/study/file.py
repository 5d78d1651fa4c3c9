"""Study files: what to run, as TOML. Every method on every task, with every setting of a grid.

    [settings]                      # of all trials: of the algorithms, the run, the demonstrations
    seeds = 5
    steps = 100_000
    [tasks]
    PointPush-v0 = {}
    sparse = { task = "PointPushSparse-v0", steps = 200_000 }
    [methods]
    uvd = {}
    calm = { algorithm = "her", action_penalty = 1.0, only = ["sparse"] }
    [methods.uvd.on.sparse]         # of this method on this task
    preset = "precise"
    [grid]                          # every combination
    gamma = [0.95, 0.98]

A trial is a run: one method on one task, all its seeds. Later settings override earlier ones:
`settings`, the task's, the method's, the method's on the task, the command line's, the grid's.
`amounts` of a task are amounts of demonstrations, TRAJECTORIESxEVERY. What is `extra` is trained
only where it is named. `over` names a setting of tasks, with its usual value: a figure shows the
scores over it.
"""

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from uvd.api import file_name
from uvd.core.config import require, require_known
from uvd.core.errors import UserError, refused

Table = dict[str, Any]
KEYS = {"about", "note", "metrics", "over", "settings", "tasks", "methods", "grid"}
OF_TASK = {"task", "title", "amounts", "extra"}
OF_METHOD = {"algorithm", "only", "on", "extra"}


class Trial(NamedTuple):
    """A run of a study."""

    name: str  # its folder
    algorithm: str
    task: str
    preset: str | None
    given: Table
    task_settings: Table


@dataclass(frozen=True)
class Study:
    """A study file."""

    path: Path
    text: str
    tasks: dict[str, Table]
    methods: dict[str, Table]
    about: str = ""
    note: str = ""
    """What a reader of its tables must know."""
    metrics: list[str] = field(default_factory=list)
    """Metrics to draw beside the scores."""
    over: dict[str, float] = field(default_factory=dict)
    """A setting of tasks to draw the scores over, and its usual value."""
    settings: Table = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)

    def refuse(self, error: UserError, trial: Trial | None = None) -> UserError:
        """The error with the line it is about: the one with most of the words that it names."""
        message, known = str(error), _words(self.text)
        if trial:
            known = {trial.task, trial.algorithm, str(trial.preset), *trial.given}
            known |= {str(value) for value in trial.given.values()}
        named = {word: 1 + 2 * (f"'{word}'" in message) for word in known & _words(message)}
        lines = [_words(line.split("#")[0]) for line in self.text.splitlines()] or [set()]
        weights = [sum(named.get(word, 0) for word in line) for line in lines]
        return UserError(f"{self.path}:{weights.index(max(weights)) + 1}: {message}")

    def trials(
        self,
        tasks: Sequence[str] = (),
        methods: Sequence[str] = (),
        amounts: Sequence[str] = (),
        extra: bool = False,
        **given: Any,
    ) -> list[Trial]:
        """All trials, or those of the named tasks and methods; `given` settings override tables."""
        pairs = itertools.product(
            _choose(self.tasks, tasks, "task", extra),
            _choose(self.methods, methods, "method", extra),
        )
        found = []
        for (key, task), (name, method) in pairs:
            if key not in method.get("only", [key]):
                continue
            own = {**self.settings, **_rest(task, OF_TASK), **_rest(method, OF_METHOD)}
            own |= method.get("on", {}).get(key, {}) | given
            preset, of_task = own.pop("preset", None), own.pop("task_settings", {})
            identity, algorithm = task.get("task", key), method.get("algorithm", name)
            start = f"{task_folder(identity, of_task)}-{name}"
            every_amount = amounts or task.get("amounts", [""])
            for amount, *values in itertools.product(every_amount, *self.grid.values()):
                chosen = dict(zip(self.grid, values))
                settings = own | chosen | (_parse_amount(amount) if amount else {})
                ends = [f"{name}{value}" for name, value in chosen.items()]
                folder = "-".join(filter(None, [start, *ends, amount]))
                found.append(Trial(folder, algorithm, identity, preset, settings, of_task))
        require(found, "no method is left for these tasks")
        for name, times in Counter(trial.name for trial in found).items():
            require(times == 1, f"two trials are called '{name}'")
        return found


def task_folder(task: str, settings: Mapping[str, Any]) -> str:
    """How the folders of a task's trials begin; settings of the task itself are part of it."""
    return "-".join([file_name(task), *(f"{name}{value}" for name, value in settings.items())])


def _parse_amount(word: str) -> dict[str, int]:
    """The settings that `1x20` stands for: 1 trajectory, every 20th step of it."""
    well_formed = re.fullmatch(r"[1-9]\d*x[1-9]\d*", word)
    require(well_formed, f"amount '{word}' must read TRAJECTORIESxEVERY, such as 1x20")
    trajectories, every = map(int, word.split("x"))
    return {"trajectories": trajectories, "every": every}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w-]+(?:\.\d+)*", text))


def _choose(
    known: dict[str, Table], names: Sequence[str], what: str, extra: bool
) -> list[tuple[str, Table]]:
    """The named entries, or all of them: the extra ones only if they are wanted."""
    _require_all_known(names, known, what)
    wanted = names or [name for name, x in known.items() if extra or not x.get("extra")]
    return [(name, x) for name, x in known.items() if name in wanted]


def _rest(table: Table, own: set[str]) -> Table:
    return {name: value for name, value in table.items() if name not in own}


def _require_all_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in names:
        require_known(name, known, what)


def read_study(path: Path) -> Study:
    """A study from its file; what does not fit together is refused with its line."""
    with refused(f"cannot read {path}"):
        text = path.read_text("utf-8")
        rows = tomllib.loads(text)
    study = Study(path, text, {}, {})
    try:
        _require_all_known(rows, KEYS, "key")
        for key in ("tasks", "methods"):
            require(rows.get(key), f"a study needs '{key}': name at least one")
            if isinstance(rows[key], list):
                rows[key] = {name: {} for name in rows[key]}
        study = Study(path, text, **rows)
        tables = [study.settings, study.grid, *study.tasks.values(), *study.methods.values()]
        require(all(isinstance(x, dict) for x in tables), "tasks and methods are tables: NAME = {}")
        for method in study.methods.values():
            named = [*method.get("only", []), *method.get("on", {})]
            _require_all_known(named, study.tasks, "task")
    except UserError as error:
        raise study.refuse(error) from None
    return study
