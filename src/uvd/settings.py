"""A run's settings: typed in the program, flat in config.toml and for the user.

A setting lives in a frozen dataclass: an algorithm's own, `RunSettings` or `DemoSettings`. Users
see one flat list of names. `build` makes the typed form from what a user gave; `to_file` writes it
down and `from_file` reads it back.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from uvd.agents import get_algorithm
from uvd.agents.agent import Facts, Preset
from uvd.core.config import (
    Count,
    NotNegative,
    Positive,
    Size,
    flatten,
    override,
    require,
    require_known,
    validate,
)
from uvd.demos.select import DemoSettings


@dataclass(frozen=True)
class RunSettings:
    """How long, how often, how many."""

    seeds: Count = 1
    """Seeds trained at once, as one program."""
    steps: Count = 100_000
    """Environment steps of each seed, rounded up to whole reports."""
    envs: Count = 4
    """Episodes of a cycle, per seed. A cycle collects experience, then makes the updates for it."""
    cycle_steps: Size = 0
    """Steps of a Gymnasium environment in a cycle, per seed (0: those of `envs` whole episodes):
    with fewer, policies learn from fresher experience where episodes end early."""
    eval_every: Size = 0
    """Steps between reports (0: a twentieth of all steps)."""
    eval_episodes: Count = 100
    """Episodes of each evaluation; their starts, goals and noise are fixed."""
    first_seed: Size = 0
    """The seeds are first_seed, first_seed + 1, ..."""
    workers: Size = 0
    """Processes that play a Gymnasium environment (0: one a core); results do not depend on it."""
    confirm_cycles: Size = 0
    """More cycles that a policy plays before it is kept as the best, by the mean of their scores
    (0: it is kept at once if its score is the highest). For algorithms that score cycles: kdi."""
    episode_steps: Size = 0
    """Steps after which a training episode of a Gymnasium environment is cut, though nothing ended
    (0: never): more starts, fewer steps after a fall. Evaluation episodes are never cut."""
    late_episode_steps: Size = 0
    """The same once `late_steps` have been played (0: never)."""
    late_steps: Size = 0
    """Steps of a seed after which `late_episode_steps` holds (0: never)."""
    save_seconds: NotNegative = 30.0
    """Seconds between checkpoints: the most that a kill can cost."""
    episode_seconds: Positive = 300.0
    """Seconds after which an environment's episode counts as hung and is played again."""

    def __post_init__(self) -> None:
        validate(self)
        last = self.first_seed + self.seeds
        require(last < 2**31, f"first_seed = {self.first_seed} is too large")


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run."""

    algorithm: str
    task: str
    preset: str
    settings: Any  # the algorithm's own
    run: RunSettings = field(default_factory=RunSettings)
    demos: DemoSettings = field(default_factory=DemoSettings)
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""  # of the demonstrations, where there are any


def suited(algorithm: str, facts: Facts) -> str:
    """The preset that such a task is trained with unless one is named."""
    found = (name for name, p in get_algorithm(algorithm).presets.items() if p.suits(facts))
    return next(found, "default")


def presets(algorithm: str) -> dict[str, Preset]:
    """An algorithm's presets; `default` is its dataclass as it stands."""
    return {"default": Preset("the defaults", {}), **get_algorithm(algorithm).presets}


def build(
    algorithm: str,
    task: str,
    preset: str = "default",
    given: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Typed settings: what was `given` by flat names, beside a preset, beside the defaults."""
    entry = get_algorithm(algorithm)
    require_known(preset, presets(algorithm), f"preset of {algorithm}")
    run, demos = RunSettings(**entry.run_defaults), DemoSettings()
    config = RunConfig(algorithm, task, preset, entry.config(), run, demos, task_settings or {})
    flat = {**(defaults or {}), **presets(algorithm)[preset].settings, **(given or {})}
    return override(config, flat)


def to_file(config: RunConfig) -> dict[str, Any]:
    """What config.toml holds: enough to run it again."""
    rows = {
        "algorithm": config.algorithm,
        "task": config.task,
        "preset": config.preset,
        "task_settings": dict(config.task_settings),
        "run": asdict(config.run),
        "settings": flatten(config.settings),
    }
    if config.demos.demos:
        usual = asdict(DemoSettings())
        asked = {name: x for name, x in asdict(config.demos).items() if x != usual[name]}
        path = Path(config.demos.demos)
        source = str(path.resolve() if path.exists() else config.demos.demos)
        rows["demos"] = {**asked, "demos": source, "sha256": config.sha256}
    return rows


def from_file(rows: Mapping[str, Any]) -> RunConfig:
    """The typed form of what `to_file` made."""
    demos = dict(rows.get("demos", {}))
    config = RunConfig(
        rows["algorithm"],
        rows["task"],
        rows["preset"],
        settings=get_algorithm(rows["algorithm"]).config(),
        task_settings=rows.get("task_settings", {}),
        sha256=demos.pop("sha256", ""),
    )
    return override(config, {**rows["run"], **rows["settings"], **demos})
