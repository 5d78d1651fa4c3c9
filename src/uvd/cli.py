"""The command line: parse, call, print.

`uvd` is one tyro application: a tree of subcommands, whose leaves are dataclasses. A parsed leaf is
called and does its work. What needs JAX or a simulator is imported by the command that uses it, so
that `uvd --help` is fast.
"""

import functools
import io
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro
from tyro import conf
from tyro.conf import Positional, arg, subcommand

from uvd import __version__
from uvd.core.config import Count, NotNegative, Size, flatten, require, validate
from uvd.core.errors import Stopped, UserError, nearest

if TYPE_CHECKING:
    from uvd.api import Trained
    from uvd.settings import RunConfig
    from uvd.study.file import Study, Trial

ABOUT = """uvd: goal-conditioned reinforcement learning, and imitation from few demonstrations.

TASK is a built-in task or the id of a Gymnasium environment: one with goals (FetchPush-v4), or one
with rewards for td3 and for imitation (HalfCheetahNonExploitable-v0, module:Id-v0).

  uvd train uvd PointPush-v0 --seeds 5 --steps 2e5
  uvd train her FetchSlide-v4 --seeds 3 --steps 1e6 --out runs/slide
  uvd train td3 HalfCheetah-v5 --steps 5e5
  uvd train kdi HalfCheetahNonExploitable-v0 --demos expert.h5 --every 20"""

# Presets that vdi had, and what kdi needs to do the same or better.
FORMER_PRESETS = {"kernel": "", "ratio": "", "changes": " --match changes"}
FORMER_PRESETS |= dict.fromkeys(("kernel-humanoid", "humanoid"), " --preset humanoid")

# What presets of other algorithms were called.
RENAMED_PRESETS = {"fetch": "environment", "fetch-precise": "environment-precise"}
RENAMED_PRESETS |= {"expert": "rewards", "walkers": "environment", "cheetah": "environment"}

# Arguments that several commands have.
Run = Annotated[Path, conf.Positional, arg(help="The run's folder.")]
Picture = Annotated[Path, arg(aliases=["-o"], help="The picture to write.")]
SEED = "The seed whose policy is taken, as `uvd eval` prints it (the run's first if not given)."
Seed = Annotated[int | None, arg(help=SEED)]
TASK = "Without goals: another task of the same sizes to play in (one whose episodes do not end)."
OtherTask = Annotated[str | None, arg(help=TASK)]


@dataclass(frozen=True)
class Start:
    """The task, the preset, and where the run goes."""

    task: Positional[str]  # A built-in task (`uvd list`) or the id of a Gymnasium environment.
    preset: str | None = None
    """Named settings to start from (`uvd list`); if not given, those that suit such a task."""
    out: Path | None = None  # The run's folder (runs/ALGORITHM-TASK if not given).
    overwrite: bool = False  # Replace a run folder that exists.
    task_settings: tuple[str, ...] = ()
    """Settings of the task itself, as NAME=VALUE (PointSlideNoise-v0: noise=paper); of an
    environment, what `gymnasium.make` takes."""


class Train:
    """`uvd train ALGORITHM`; `train_command` makes a dataclass of it for each algorithm."""

    algorithm: str
    asks_help: bool  # print the settings, instead of training
    start: Start
    words: Any  # each setting as it was typed, or None

    def __call__(self) -> None:
        from uvd import api
        from uvd.settings import build, presets
        from uvd.training.plan import configure, preset_for

        start, name, task = self.start, self.algorithm, self.start.task
        if name == "vdi" and start.preset in FORMER_PRESETS:
            kdi = f"uvd train kdi TASK --demos FILE{FORMER_PRESETS[start.preset]}"
            raise UserError(f"vdi has no preset '{start.preset}' any more, kdi replaces it: {kdi}")
        if now := RENAMED_PRESETS.get(start.preset or ""):
            raise UserError(f"the preset '{start.preset}' is called {now} now (see `uvd list`)")
        for word in start.task_settings:
            require("=" in word, f"task setting '{word}' must read NAME=VALUE")
        task_settings = dict(word.split("=", 1) for word in start.task_settings)
        given = {setting: word for setting, word in vars(self.words).items() if word is not None}
        choices = (name, task, start.preset, given, task_settings)
        if self.asks_help:
            if task and "demos" in given:
                return print_settings(configure(*choices)[0])
            preset = start.preset or (preset_for(name, task, task_settings) if task else "default")
            return print_settings(build(name, task, preset, given, task_settings))
        out = api.free_folder(name, task, start.out, start.overwrite)
        config, inputs = configure(*choices)
        if not start.preset:
            about = presets(name)[config.preset].about
            print(f"{name} {task}: preset {config.preset} ({about})")
        if inputs.demos is not None and not start.preset and name != "kdi":
            kdi = f"try kdi first: uvd train kdi {task} --demos {config.demos.demos}"
            print(f"uvd: settings of {name} were not tuned on {task}; {kdi}", file=sys.stderr)
        return print_final(api.start(config, inputs, out, start.overwrite))


def train_command(name: str, asks_help: bool) -> type:
    """The dataclass of `uvd train NAME`. Settings are words: `change` knows their types."""
    from uvd.agents import get_algorithm
    from uvd.demos.select import DemoSettings
    from uvd.settings import RunSettings

    algorithm = get_algorithm(name)
    kinds: dict[type, Any] = {bool: bool | None, tuple: tuple[str, ...] | None}
    settings: dict[str, Any] = {}
    for group in (algorithm.config(), RunSettings(), DemoSettings()):
        settings |= {s: kinds.get(type(value), str | None) for s, value in flatten(group).items()}
    words = make_dataclass("Words", [(s, kind, None) for s, kind in settings.items()], frozen=True)
    start: Any = ("start", Start, Start("")) if asks_help else ("start", Start)
    own = {"algorithm": name, "asks_help": asks_help, "__doc__": algorithm.about}
    fields = [start, ("words", words, words())]
    return make_dataclass(f"Train_{name}", fields, bases=(Train,), namespace=own, frozen=True)


def print_settings(config: "RunConfig") -> None:
    """The help of `uvd train ALGORITHM`: every setting, what it means and its value here."""
    from uvd.agents import get_algorithm
    from uvd.settings import presets

    algorithm, ungrouped = get_algorithm(config.algorithm), arg(name="")
    groups: list[Any] = [("start", Annotated[Start, ungrouped])]
    groups += [("run", type(config.run), config.run)]
    if algorithm.learns_from == "demos":
        groups += [("demonstrations", type(config.demos), config.demos)]
    groups += [("settings", Annotated[algorithm.config, ungrouped], config.settings)]
    names = ", ".join(presets(config.algorithm))
    about = f"{algorithm.about}\n\nPresets: {names}. These are the defaults of {config.preset}."
    page, prog = make_dataclass("Settings", groups), f"uvd train {config.algorithm}"
    with suppress(SystemExit):
        tyro.cli(page, prog=prog, description=about, args=["--help"], config=STYLE)


def print_final(trained: "Trained") -> None:
    """Where a run is, how far it came, and its score: the mean over seeds, then each seed."""
    from uvd.training.progress import format_score

    score = "no report yet"
    if rows := trained.rows():
        name = "eval/return" if "eval/return" in rows[-1] else "eval/success_final"
        each = ", ".join(f"{x:,.{1 if name == 'eval/return' else 2}f}" for x in rows[-1][name])
        score = f"{format_score(rows[-1])} ({each})"
    print(f"{trained.run.path}: step {trained.step:,}, {score}")


@dataclass(frozen=True)
class Resume:
    """Goes on with a run that was stopped or killed, from its newest good checkpoint."""

    run: Run
    steps: int | None = None  # Train to this many steps instead of the run's own number.

    def __call__(self) -> None:
        from uvd import api

        print_final(api.resume(self.run, self.steps))


@dataclass(frozen=True)
class Eval:
    """Each seed's policy over fresh episodes, without exploration: success, or return; a film."""

    run: Run
    episodes: Count = 100  # Episodes for each seed.
    task: OtherTask = None
    video: Path | None = None
    """Also film one seed's policy into this file, .mp4 or .gif (a blue frame: at the goal)."""
    video_episodes: Count = 4  # Episodes of the video.
    video_seed: Seed = None

    def __call__(self) -> None:
        from uvd import api
        from uvd.collect.video import check_out
        from uvd.recording import film

        if self.video:
            check_out(self.video)
        trained = api.load(self.run)
        trained.seed_state(self.video_seed)  # refused before episodes are played
        result = api.evaluate(trained, self.episodes, self.task)
        names = {"return": "return", "success_final": "final step", "success_ever": "ever reached"}
        columns = {name: result[f"eval/{x}"] for x, name in names.items() if f"eval/{x}" in result}
        print("seed", *(f"{name:>12s}" for name in columns))
        for seed, *values in zip(trained.seeds, *columns.values(), strict=True):
            print(f"{seed:4d}", *(f"{value:12,.3f}" for value in values))
        if self.video:
            film(trained, self.video, self.video_episodes, self.video_seed)
            print(self.video)


@dataclass(frozen=True)
class Export:
    """A trained policy as one Python file that needs NumPy alone."""

    run: Run
    out: Annotated[Path, arg(aliases=["-o"], help="The file to write.")] = Path("policy.py")
    seed: Seed = None
    overwrite: bool = False  # Replace a file that exists.

    def __call__(self) -> None:
        from uvd import api

        require(
            self.overwrite or not self.out.exists(),
            f"{self.out} exists: name another file with -o, or say --overwrite",
        )
        policy = api.load(self.run).policy(self.seed)
        path = policy.export(self.out)
        given = "observation, goal" if policy.task.goal_dim else "observation"
        print(f"{path}: from {path.stem} import policy; action = policy({given})")


@dataclass(frozen=True)
class PlotDensity:
    """The learned F and Q over goals, from one state, beside what was reached."""

    run: Run
    out: Picture = Path("density.png")
    seed: Seed = None
    episode: int = 0  # Which start (and goal) to draw it for.
    step: int | None = None
    """How many steps into that episode (if not given: 0; of an environment, the step before what
    is achieved first changes)."""

    def __call__(self) -> None:
        from uvd.experiments import maps

        maps.draw_density(self.run, self.out, self.seed, self.episode, self.step)
        print(self.out)


@dataclass(frozen=True)
class Plot:
    """Learning curves of runs: interquartile mean over seeds, bootstrap 95 % bands."""

    runs: Positional[tuple[Path, ...]]  # The runs' folders.
    out: Picture = Path("curves.png")
    metric: str = ""
    """What to draw, by its name in metrics.jsonl (success at the final step, or the return)."""
    density: Annotated[PlotDensity, subcommand("density")] | None = None

    def __call__(self) -> None:
        from uvd.experiments import curves

        if self.density:
            return self.density()
        require(bool(self.runs), "uvd plot needs at least one run folder")
        curves.draw_curves(self.runs, self.out, self.metric or curves.main_metric(self.runs))
        return print(self.out)


@dataclass(frozen=True)
class Report:
    """A page of runs that opens without a network: scores, learning curves, seeds, commands."""

    folders: Positional[tuple[Path, ...]]  # Folders of runs, or runs.
    out: Annotated[Path, arg(aliases=["-o"])] = Path("report.html")  # The page to write.

    def __call__(self) -> None:
        from uvd.experiments.report import write_report

        require(bool(self.folders), "uvd report needs at least one folder of runs")
        for note in write_report(self.folders, self.out):
            print(f"uvd: {note}", file=sys.stderr)
        print(self.out)


def write_page(out: Path) -> None:
    """The report of a folder's runs, beside them."""
    Report((out,), out / "report.html")()


@dataclass(frozen=True)
class DemosInfo:
    """What demonstrations hold: a local Minari dataset, GAIL's HDF5 layout, .npz files, or what is
    shipped (`uvd list` names it)."""

    source: Positional[str]  # A file, a folder, or a name.
    task: str | None = None
    """A task whose sizes they must have; they are described as that task has them."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """A picture to write: returns, and a few features over time."""

    def __call__(self) -> None:
        from uvd.demos import files, memory
        from uvd.experiments.curves import draw_demos
        from uvd.tasks.find import find_task

        demos = files.load_demos(self.source)
        if self.task:
            demos = memory.fit_demos(demos, find_task(self.task))
        print(f"{demos.name} ({demos.kind})")
        for name, value in memory.summary(demos):
            print(f"  {name:14s} {value}")
        if self.out:
            draw_demos(demos, self.out)
            print(self.out)


@dataclass(frozen=True)
class DemosRecord:
    """A run's policy as demonstrations, without exploration, of a task without goals."""

    run: Run
    out: Annotated[str, arg(aliases=["-o"])]
    """A Minari dataset of that name (humanoid-expert); a file in GAIL's layout (NAME.h5, .hdf5); or
    a folder of .npz files (NAME.npz makes NAME/)."""
    episodes: Count = 20  # How many trajectories.
    seed: Seed = None
    task: OtherTask = None

    def __call__(self) -> None:
        from uvd import api, recording

        recording.check_demos_out(self.out)
        demos = (self.out, self.episodes, self.seed, self.task)
        path, returns = recording.record_demos(api.load(self.run), *demos)
        count = f"{self.episodes} trajector{'y' if self.episodes == 1 else 'ies'}"
        print(f"{path}: {count}, mean return {returns.mean():,.1f}")


@dataclass(frozen=True)
class List:
    """Algorithms with their presets, tasks, and shipped demonstrations."""

    def __call__(self) -> None:
        from uvd.agents import ALGORITHMS
        from uvd.demos.files import shipped
        from uvd.settings import presets
        from uvd.tasks import TASKS, fetch, locomotion

        print("algorithms and their presets")
        for name, algorithm in ALGORITHMS.items():
            print(f"  {name:20s} {algorithm.about}")
            for name_of, preset in presets(name).items():
                print(f"    {name_of:20s} {preset.about}")
        print("tasks")
        tasks = {name: make().about for name, make in TASKS.items()}
        for name, about in {**tasks, **fetch.ABOUT, **locomotion.ABOUT}.items():
            print(f"  {name:42s} {about}")
        print("  ... and any Gymnasium environment with goals by its id: PointMaze_UMaze-v3;")
        print("  for td3 and for imitation any other with rewards too: HalfCheetah-v5")
        print("demonstrations: " + (", ".join(shipped()) or "none are shipped"))


@dataclass(frozen=True)
class Trials:
    """Which trials of a study, and where. Those that are finished are not trained again."""

    out: Path | None = None  # Folder of the study (runs/NAME if not given).
    tasks: Annotated[tuple[str, ...], arg(aliases=["--panel", "--panels"])] = ()
    """Only these tasks, by their names in the study (those not marked extra)."""
    methods: tuple[str, ...] = ()  # Only these methods (those not marked extra).
    amounts: Annotated[tuple[str, ...], arg(aliases=["--grid"])] = ()
    """Only these amounts of demonstrations, as TRAJECTORIESxEVERY: 1x20 is every 20th pair of one
    trajectory."""
    seeds: Count | None = None  # Seeds of every trial (the study's if not given).
    steps: Count | None = None  # Environment steps of each seed (the study's if not given).
    demos: str | None = None  # Demonstrations of the task other than the study's.
    jobs: Size = 0  # Trials trained side by side (0: one on each of two CPU cores).
    ray: str | None = None
    """Train on a running Ray cluster: its address (host:port, ray://host:port), or auto."""
    gpus: NotNegative = 0.0  # On a Ray cluster: share of a GPU that each trial takes.
    dry_run: bool = False  # Train nothing: what would be trained, and how long it takes.

    def train(self, out: Path, names: Sequence[str] = ()) -> None:
        """Trains trials of the study in `out`: here, or on a cluster."""
        from uvd.study import cluster, runner

        if self.ray:
            return cluster.train(out, names, self.ray, self.gpus)
        return runner.train(out, names, self.jobs)

    def of(self, study: "Study") -> "list[Trial]":
        """The trials."""
        given = {name: getattr(self, name) for name in ("seeds", "steps", "demos")}
        given = {name: value for name, value in given.items() if value is not None}
        trials = study.trials(self.tasks, self.methods, self.amounts, **given)
        many = self.demos and len({trial.task for trial in trials}) > 1
        require(not many, "--demos are of one task: name it with --tasks")
        return trials


@dataclass(frozen=True)
class Sweep(Trials):
    """Many runs from one file: every method on every task, with every setting of a grid, each with
    all its seeds (docs/scale.md has the format)."""

    study: Annotated[Path | None, Positional] = None  # A study file (TOML).
    status: Path | None = None  # The folder of a study: print how far each trial is.
    resume: Path | None = None  # The folder of a study: train what is not finished.

    def __call__(self) -> None:
        from uvd.study import runner
        from uvd.study.file import read_study

        if self.status:
            return runner.status(self.status)
        if self.resume:
            self.train(self.resume)
            return write_page(self.resume)
        if self.study is None:
            raise UserError("uvd sweep needs a study file, or --status DIR, or --resume DIR")
        study = read_study(self.study)
        trials = runner.complete(study, self.of(study))
        if self.dry_run:
            return runner.dry_run(trials, self.jobs)
        out = self.out or Path("runs", study.path.stem)
        runner.plan(out, trials)
        self.train(out, list(trials))
        return write_page(out)


@dataclass(frozen=True)
class Reproduce(Trials):
    """The experiments of this project, which are study files of the package. figure2, figure3:
    the paper's figures; mini, imitation: the same in miniature. bias: what hindsight bias costs.
    letter, letter-vdi: the paper's own settings. ladder: from these to the defaults."""

    experiment: Annotated[str, Positional] = ""
    """figure2, figure3, mini, imitation, bias, letter, letter-vdi or ladder."""
    draw: bool = False
    """Train nothing: figures and tables again, from the small files of the runs in the folder."""

    def __call__(self) -> None:
        from uvd.experiments import reproduce
        from uvd.study import runner

        study = reproduce.load(self.experiment)
        out = self.out or Path("runs", study.path.stem)
        if self.draw:
            reproduce.draw(study, out)
            return write_page(out)
        trials = self.of(study)
        if self.dry_run:
            return runner.dry_run(runner.complete(study, trials), self.jobs)
        reproduce.reproduce(study, out, trials, self.train)
        return write_page(out)


@dataclass(frozen=True)
class Demo:
    """The paper's argument in three minutes: the cliff walk's bias, learning curves, imitation."""

    out: Path = Path("demo")  # Folder for runs, figures and tables.

    def __call__(self) -> None:
        from uvd.experiments.demo import demo

        demo(self.out)
        write_page(self.out)


class Group(NamedTuple):
    """Commands that share their first words."""

    about: str
    noun: str  # what each of them is called
    commands: Mapping[str, Any]  # dataclasses and groups, by the next word


HELP = {"-h", "--help"}
NAMES = (conf.OmitArgPrefixes, conf.OmitSubcommandPrefixes, conf.PositionalMetavarFromFieldName)
STYLE: Any = (*NAMES, conf.DisallowNone)
DEMOS = {"info": DemosInfo, "record": DemosRecord}
COMMANDS = {
    "train": Group("An algorithm on a task, all seeds at once.", "algorithm", {"--resume": Resume}),
    "eval": Eval,
    "export": Export,
    "plot": Plot,
    "report": Report,
    "demos": Group("What demonstrations hold; a run's policy as new ones.", "command", DEMOS),
    "list": List,
    "sweep": Sweep,
    "reproduce": Reproduce,
    "demo": Demo,
}


def all_commands(args: list[str]) -> Group:
    """The tree of commands; with the algorithms, which need JAX, only for `uvd train`."""
    tree: dict[str, Any] = {**COMMANDS}
    if args[0] == "train":
        from uvd.agents import ALGORITHMS

        asks_help = not HELP.isdisjoint(args)
        algorithms = {name: train_command(name, asks_help) for name in ALGORITHMS}
        tree["train"] = tree["train"]._replace(commands={**algorithms, "--resume": Resume})
    return Group(ABOUT, "command", tree)


def find(group: Any, args: list[str]) -> Any:
    """The command that the first words name, or the group where they end."""
    if not isinstance(group, Group) or not args or args[0] in HELP:
        return group
    if args[0] not in group.commands:
        raise nearest(args[0], group.commands, group.noun)
    return find(group.commands[args[0]], args[1:])


def subcommands(group: Group) -> Any:
    """The group as tyro knows it: a union (with None, which cannot be chosen: it needs two)."""
    kinds: list[Any] = [None]
    for word, kind in group.commands.items():
        if isinstance(kind, Group):
            kinds.append(Annotated[subcommands(kind), subcommand(word, description=kind.about)])
        else:
            kinds.append(Annotated[kind, subcommand(word)])
    return functools.reduce(operator.or_, kinds)


def parse(args: list[str]) -> Callable[[], None]:
    """The command that was typed: calling it does its work. Help is printed at once."""
    if args in ([], ["help"]):
        args = ["--help"]
    if args == ["--version"]:
        return lambda: print(f"uvd {__version__}")
    if args[0].startswith("--tyro-"):  # shell completion: printed or written by tyro, which exits
        tyro.cli(subcommands(all_commands(["train"])), prog="uvd", args=args, config=STYLE)
    if args[0] == "train" and len(args) > 1:
        args = ["train", *args[1].split("=", 1), *args[2:]]  # --resume=RUN
    tree = all_commands(args)
    found = find(tree, args)
    trains = isinstance(found, type) and issubclass(found, Train)  # prints its help by itself
    if trains:
        args = [word for word in args if word not in HELP]
    elif isinstance(found, Group):
        args = [*args, "--help"]
    message = io.StringIO()
    try:
        with redirect_stderr(message):
            command, rest = tyro.cli(
                subcommands(tree),
                prog="uvd",
                description=tree.about,
                args=[whole_number(word) for word in args],
                add_help=not trains,
                return_unknown_args=True,
                config=STYLE,
            )
    except SystemExit as stop:
        if stop.code:
            raise UserError(unboxed(message.getvalue())) from None
        return lambda: None
    if rest and rest[0].startswith("-"):
        flags = [f"--{name.replace('_', '-')}" for name in flatten(command)]
        raise nearest(rest[0].split("=")[0], flags, "option")
    require(not rest, f"{' '.join(rest[:1])} is one word too many")
    validate(command)
    return command


def whole_number(word: str) -> str:
    """The word; if it is a whole number as people write it (1e6), as tyro reads it."""
    if re.fullmatch(r"\d+(\.\d+)?e\d+", word) and float(word).is_integer():
        return str(int(float(word)))
    return word


def unboxed(box: str) -> str:
    """What tyro says in a box, without title, frame, and the help below the rule."""
    text = re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯]", "", box)
    rule = "[─-]{3,}"
    return " ".join(re.split(rule, re.split(rule, text, maxsplit=1)[-1])[0].split())


def main(args: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    own = args is None  # the process is ours
    try:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # for an environment `module:Id-v0` in this folder
        parse(sys.argv[1:] if args is None else args)()
        sys.stdout.flush()
    except UserError as error:
        print(f"uvd: {error}", file=sys.stderr)
        return 130 if isinstance(error, Stopped) else 2
    except KeyboardInterrupt:
        print("uvd: interrupted; a run goes on with: uvd train --resume RUN", file=sys.stderr)
        if own:  # an orderly end would wait for, or fall over, what is being compiled
            sys.stdout.flush()
            os._exit(130)
        return 130
    except BrokenPipeError:  # whoever read (`| head`) has seen enough
        if own:  # nothing is left to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
