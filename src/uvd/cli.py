"""The command line: parse, call, print."""

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from uvd.core.errors import Stopped, UserError, nearest
from uvd.training.progress import told

ABOUT = """uvd: agents that reach what you show them.

  uvd train ALGORITHM TASK [settings]   train, all seeds at once   (uvd train uvd --help: settings)
  uvd train --resume RUN                go on with a run that was stopped or killed
  uvd eval RUN [--video FILE]           success of a trained run over fresh episodes; a film of it
  uvd plot RUN [RUN ...] -o FILE        learning curves: interquartile mean, 95 % bands
  uvd plot density RUN -o FILE          the learned density and value, as maps over goals
  uvd demos info SOURCE                 what is in a file, folder or dataset of demonstrations
  uvd demos record RUN -o NAME          a run's policy as demonstrations
  uvd list                              algorithms, tasks and presets
  uvd reproduce mini                    all point tasks, all methods: Figure 2 in miniature
  uvd reproduce figure2                 Figure 2 itself: the Fetch robot's push and slide
  uvd reproduce figure3                 Figure 3: VDI, GAIL, DAC and BC on HalfCheetah and Humanoid
  uvd reproduce imitation               VDI and its rivals in miniature, from 20 pairs of one expert
  uvd demo                              the paper's argument in ten minutes

TASK is a built-in task or the id of a Gymnasium environment: one with goals (FetchPush-v4), or one
with rewards for td3 and for imitation (HalfCheetahNonExploitable-v0, module:Id-v0).
Example: uvd train uvd PointPush-v0 --seeds 5 --steps 200000
"""

ABOUT_TRAIN = """uvd train ALGORITHM TASK [settings]: all seeds at once, into a folder of its own.

{}

  uvd train ALGORITHM --help            every setting, its meaning and default
  uvd train ALGORITHM --preset P --help the same with a preset's values (uvd list names them)
  uvd train --resume RUN [--steps N]    go on with a run that was stopped, or to more steps

Examples
  uvd train uvd PointPush-v0 --seeds 5 --steps 2e5
  uvd train her FetchSlide-v4 --seeds 3 --steps 1e6 --out runs/slide
  uvd train td3 HalfCheetahNonExploitableTold-v0 --preset expert
  uvd train vdi HalfCheetahNonExploitable-v0 --preset cheetah --demos expert.h5 --every 20
"""


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Where the run goes and from which preset it starts."""

    preset: str | None = None
    """Named settings to start from (if not given, what suits the task: fetch, expert, cheetah, ...,
    else default); paper: its tables and algorithms to the letter. `uvd list` has them all."""
    out: Path | None = None
    """The run's folder (runs/ALGORITHM-TASK if not given)."""
    overwrite: bool = False
    """Replace a run folder that exists."""
    task_settings: tuple[str, ...] = ()
    """Settings of the task itself, as NAME=VALUE (PointSlideNoise-v0: noise=paper); of an
    environment, what `gymnasium.make` takes."""


def _cli(kind: Any, prog: str, args: list[str], description: str | None = None) -> Any:
    """tyro, with unknown options answered in one line that names the nearest ones."""
    known = _options(kind)
    for arg in args:
        name = arg.split("=")[0]
        if name.startswith("--") and name not in known:
            raise nearest(name, (flag for flag in known if "_" not in flag), "option")
    return tyro.cli(
        kind, prog=prog, args=args, description=description, config=(tyro.conf.OmitArgPrefixes,)
    )


def _options(kind: Any) -> set[str]:
    """The flags of a dataclass whose nested dataclasses share one flat list."""
    flags = {"--help"}
    for f in dataclasses.fields(kind):
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if dataclasses.is_dataclass(default) and not isinstance(default, type):
            flags |= _options(type(default))
        else:
            flag = f.name.replace("_", "-")
            flags |= {f"--{flag}", f"--{f.name}"} | (
                {f"--no-{flag}"} if isinstance(default, bool) else set()
            )
    return flags


def _train(args: list[str]) -> None:
    from uvd import api
    from uvd.agents import ALGORITHMS, get_algorithm
    from uvd.settings import DemoSettings, RunSettings, flatten, override, presets, suited

    if args and args[0].startswith("--resume"):
        return _resume([*args[0].split("=")[1:], *args[1:]])
    if not args or args[0] in ("-h", "--help"):
        print(ABOUT_TRAIN.format("\n".join(f"  {n:6s} {a.about}" for n, a in ALGORITHMS.items())))
        return None
    algorithm = args[0]
    entry = get_algorithm(algorithm)
    flags = args[1:]
    # What the options start from hangs on the task, which is not parsed yet.
    task = next((word for word in flags if re.fullmatch(r"[^-].*-v\d+", word)), "")
    preset = _value(flags, "--preset") or suited(algorithm, task)
    if preset not in presets(algorithm):
        raise nearest(preset, presets(algorithm), f"preset of {algorithm}")
    defaults = override(entry.config(), presets(algorithm)[preset])

    @dataclasses.dataclass(frozen=True)
    class Train:
        task: Positional[str]
        options: TrainOptions = dataclasses.field(default_factory=TrainOptions)
        run: RunSettings = dataclasses.field(default_factory=RunSettings)
        shown: DemoSettings = dataclasses.field(default_factory=DemoSettings)
        settings: entry.config = dataclasses.field(  # type: ignore[name-defined]
            default_factory=lambda: defaults
        )
        """The algorithm's own."""

    flags = [_whole(f) for f in flags]
    names = ", ".join(presets(algorithm))
    about = f"{entry.about}\n\nPresets: {names} (uvd list says what for); shown here: {preset}."
    made = _cli(Train, f"uvd train {algorithm}", flags, about)
    trained = api.train(
        algorithm, made.task, preset=preset, out=made.options.out,
        overwrite=made.options.overwrite, task_settings=_pairs(made.options.task_settings),
        **dataclasses.asdict(made.shown), **dataclasses.asdict(made.run), **flatten(made.settings),
    )  # fmt: skip
    _print_final(trained)


def _pairs(words: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` words as a dictionary."""
    for word in words:
        if "=" not in word:
            raise UserError(f"task setting '{word}' must read NAME=VALUE")
    return dict(word.split("=", 1) for word in words)


def _whole(word: str) -> str:
    """`1e6` as people write it, for settings that are whole numbers."""
    try:
        number = float(word)
        return str(int(number)) if "e" in word.lower() and number == int(number) else word
    except (ValueError, OverflowError):
        return word


def _value(args: list[str], flag: str) -> str | None:
    for i, a in enumerate(args):
        if a == flag and i + 1 < len(args):
            return args[i + 1]
        if a.startswith(flag + "="):
            return a.split("=", 1)[1]
    return None


def _print_final(trained: Any) -> None:
    rows = trained.rows()
    if not rows:
        print(f"{trained.run.path}: step {trained.step:,}, no report yet")
        return
    last = rows[-1]
    if "eval/return" in last:
        each = ", ".join(f"{x:,.1f}" for x in last["eval/return"])
        print(f"{trained.run.path}: step {trained.step:,}, {told(last)} ({each})")
        return
    final, ever = last["eval/success_final"], last["eval/success_ever"]
    per_seed = ", ".join(f"{x:.2f}" for x in final)
    print(
        f"{trained.run.path}: step {trained.step:,}, final-step success "
        f"{sum(final) / len(final):.3f} ({per_seed}), ever reached {sum(ever) / len(ever):.3f}"
    )


@dataclasses.dataclass(frozen=True)
class Resume:
    """Goes on with a run from its newest good checkpoint."""

    run: Positional[Path]
    steps: int | None = None
    """Train to this many steps instead of the run's own number."""


def _resume(args: list[str]) -> None:
    from uvd import api

    made = _cli(Resume, "uvd train --resume", [_whole(a) for a in args])
    _print_final(api.resume(made.run, made.steps))


@dataclasses.dataclass(frozen=True)
class Eval:
    """Each seed's policy over fresh episodes, without exploration: success, or return."""

    run: Positional[Path]
    episodes: int = 100
    """Episodes for each seed."""
    task: str | None = None
    """Without goals: another task of the same sizes to play in (one whose episodes do not end)."""
    video: Path | None = None
    """Also film one seed's policy into this file, .mp4 or .gif (a blue frame: at the goal)."""
    video_episodes: int = 4
    """Episodes of the video."""
    video_seed: int | None = None
    """Whose policy the video shows, by its seed as printed (the run's first if not given)."""


def _eval(args: list[str]) -> None:
    from uvd import api
    from uvd.collect.video import check_out

    made = _cli(Eval, "uvd eval", args)
    for name in ("episodes", "video_episodes"):
        if getattr(made, name) < 1:
            raise UserError(f"{name} = {getattr(made, name)} must be at least 1")
    if made.video:
        check_out(made.video)
    trained = api.load(made.run)
    trained.seed_state(made.video_seed)  # refused before episodes are played
    result = api.evaluate(trained, made.episodes, made.task)
    if "eval/return" in result:
        print("seed      return")
        for seed, value in zip(trained.seeds, result["eval/return"], strict=True):
            print(f"{seed:4d}  {value:10,.1f}")
    else:
        print("seed  final step  ever reached")
        columns = (trained.seeds, result["eval/success_final"], result["eval/success_ever"])
        for seed, final, ever in zip(*columns, strict=True):
            print(f"{seed:4d}  {final:10.3f}  {ever:12.3f}")
    if made.video:
        api.film(trained, made.video, made.video_episodes, made.video_seed)
        print(made.video)


@dataclasses.dataclass(frozen=True)
class Plot:
    """Learning curves of runs: interquartile mean over seeds, bootstrap 95 % bands."""

    runs: Positional[tuple[Path, ...]]
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curves.png")
    """The picture to write."""
    metric: str = ""
    """What to draw, by its name in metrics.jsonl (success at the final step, or the return)."""


@dataclasses.dataclass(frozen=True)
class PlotDensity:
    """From one state: the learned F and Q over goals, beside what was reached."""

    run: Positional[Path]
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("density.png")
    """The picture to write."""
    seed: int | None = None
    """Which seed's agent to draw, as `uvd eval` prints it (the run's first if not given)."""
    episode: int = 0
    """Which start (and goal) to draw it for."""
    step: int | None = None
    """How many steps into that episode (if not given: 0; of an environment, the step before what
    is achieved first changes)."""


def _plot(args: list[str]) -> None:
    from uvd.experiments import curves, maps

    if args and args[0] == "density":
        d = _cli(PlotDensity, "uvd plot density", args[1:])
        maps.draw_density(d.run, d.out, seed=d.seed, episode=d.episode, step=d.step)
        print(d.out)
        return
    made = _cli(Plot, "uvd plot", args)
    if not made.runs:
        raise UserError("uvd plot needs at least one run folder")
    curves.draw_curves(made.runs, made.out, made.metric or curves.main_metric(made.runs))
    print(made.out)


@dataclasses.dataclass(frozen=True)
class DemosInfo:
    """What demonstrations hold: a local Minari dataset, GAIL's HDF5 layout, .npz files, or what is
    shipped (`uvd list` names it)."""

    source: Positional[str]
    task: str | None = None
    """A task whose sizes they must have; shown as that task sees them."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """A picture to write: returns, and a few features over time."""


@dataclasses.dataclass(frozen=True)
class DemosRecord:
    """A run's policy as demonstrations, without exploration, of a task without goals."""

    run: Positional[Path]
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """A Minari dataset of that name (humanoid-expert); a file in GAIL's layout (NAME.h5, .hdf5); or
    a folder of .npz files (NAME.npz makes NAME/)."""
    episodes: int = 20
    """How many trajectories."""
    seed: int | None = None
    """Whose policy plays, by its seed as `uvd eval` prints it (the run's first if not given)."""
    task: str | None = None
    """Another task of the same sizes to play in (one whose episodes do not end)."""


def _record(args: list[str]) -> None:
    from uvd import api

    made = _cli(DemosRecord, "uvd demos record", args)
    if made.episodes < 1:
        raise UserError(f"episodes = {made.episodes} must be at least 1")
    api.check_demos_out(made.out)
    trained = api.load(made.run)
    path, returns = api.record_demos(trained, made.out, made.episodes, made.seed, made.task)
    count = f"{made.episodes} trajector{'y' if made.episodes == 1 else 'ies'}"
    print(f"{path}: {count}, mean return {returns.mean():,.1f}")


def _demos(args: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from uvd.demos.memory import fit_demos, summary
    from uvd.demos.files import load_demos
    from uvd.training.loop import find_task

    if not args or args[0] in ("-h", "--help"):
        return print("\n".join(line for line in ABOUT.splitlines() if "uvd demos" in line))
    if args[0] == "record":
        return _record(args[1:])
    if args[0] != "info":
        raise nearest(args[0], ["info", "record"], "command of uvd demos")
    made = _cli(DemosInfo, "uvd demos info", args[1:])
    demos = load_demos(made.source)
    if made.task:
        task = find_task(made.task, {})
        demos = fit_demos(demos, task.id, task.obs_dim, task.action_dim)
    table = Table(title=f"{demos.name} ({demos.kind})", show_header=False)
    for row in summary(demos):
        table.add_row(*row)
    Console().print(table)
    if made.out:
        from uvd.experiments.curves import draw_demos

        draw_demos(demos, made.out)
        print(made.out)
    return None


def _list(args: list[str]) -> None:
    from uvd.agents import ALGORITHMS
    from uvd.demos.files import shipped
    from uvd.settings import PRESETS_ABOUT, presets
    from uvd.tasks import TASKS
    from uvd.tasks.fetch import ABOUT as ROBOTS
    from uvd.tasks.locomotion import ABOUT as WALKERS

    print("algorithms (presets)")
    for name, algorithm in ALGORITHMS.items():
        print(f"  {name:20s} {algorithm.about} ({', '.join(presets(name))})")
    print("presets")
    for name, about in PRESETS_ABOUT.items():
        print(f"  {name:20s} {about}")
    print("tasks")
    for name, maker in TASKS.items():
        print(f"  {name:36s} {maker().about}")
    for name, about in {**ROBOTS, **WALKERS}.items():
        print(f"  {name:36s} {about}")
    print("  ... and any Gymnasium goal environment by its id: FetchReach-v4, PointMaze_UMaze-v3;")
    print("  for td3 and for imitation any other with rewards too: HalfCheetah-v5")
    print("demonstrations: " + (", ".join(shipped()) or "none are shipped"))


@dataclasses.dataclass(frozen=True)
class Mini:
    """All point tasks, all methods, more seeds: the paper's Figure 2 in miniature."""

    out: Path = Path("runs/mini")
    """Folder for runs, figures and the table."""
    seeds: int = 10
    """Seeds of every run."""
    tasks: tuple[str, ...] = ()
    """Only these tasks (all point tasks if none is named)."""
    methods: tuple[str, ...] = ()
    """Only these methods: td3, her-future, her-final, her-episode, her-paper, uvd; also, if named:
    uvd-density (no true futures), her-calm (a larger penalty on actions)."""
    jobs: int = 0
    """Runs trained side by side (0: one on each of two CPU cores)."""
    draw: bool = False
    """Train nothing: figures and tables again, from the small files of the runs in the folder."""


@dataclasses.dataclass(frozen=True)
class Figure2:
    """TD3, HER and UVD on the Fetch robot's push and slide: the paper's Figure 2."""

    panel: tuple[str, ...] = ()
    """Only these panels: push, slide, sparse, noise."""
    out: Path = Path("runs/figure2")
    """Folder for runs, figures and the tables."""
    seeds: int = 5
    """Seeds of every run."""
    steps: int | None = None
    """Environment steps of each seed (if not given: push 500 000, the others 1 000 000)."""
    methods: tuple[str, ...] = ()
    """Only these methods: td3, her, uvd."""
    jobs: int = 0
    """Runs trained side by side (0: one on each of two CPU cores)."""
    code_noise: bool = False
    """The noise of the authors' released code instead of the paper's formula."""
    draw: bool = False
    """Train nothing: figures and tables again, from the small files of the runs in the folder."""


@dataclasses.dataclass(frozen=True)
class Figure3:
    """VDI (also with its presets `ratio`, `kernel` and `changes`), GAIL, DAC and BC over the amount
    of demonstrations: the paper's Figure 3."""

    panel: tuple[str, ...] = ()
    """Only these panels: cheetah, humanoid."""
    out: Path = Path("runs/figure3")
    """Folder for runs, figures and the tables."""
    seeds: int = 5
    """Seeds of every run."""
    steps: int | None = None
    """Environment steps of each seed (if not given, each method's own: VDI 10 or 25 million)."""
    methods: tuple[str, ...] = ()
    """Only these methods: vdi, vdi-ratio, vdi-kernel, vdi-changes (its presets), gail, dac, bc."""
    grid: tuple[str, ...] = ()
    """Only these amounts, as TRAJECTORIESxEVERY: 1x20 is every 20th pair of one trajectory."""
    demos: str | None = None
    """Demonstrations of the panel's task other than the shipped ones."""
    jobs: int = 0
    """Runs trained side by side (0: one on each of two CPU cores)."""
    draw: bool = False
    """Train nothing: figures and tables again, from the small files of the runs in the folder."""


@dataclasses.dataclass(frozen=True)
class Imitation:
    """VDI, DAC, GAIL and BC on PointLoop from 20 pairs of one expert: imitation in miniature."""

    out: Path = Path("runs/imitation")
    """Folder for runs, demonstrations, the figure and the table."""
    seeds: int = 2
    """Seeds of every run."""
    methods: tuple[str, ...] = ("vdi", "dac", "gail", "bc")
    """Only these methods; also, if named: dac-states, gail-states (without actions, as VDI)."""
    jobs: int = 0
    """Runs trained side by side (0: one on each of two CPU cores)."""


EXPERIMENTS: dict[str, Any] = {
    "mini": Mini,
    "figure2": Figure2,
    "figure3": Figure3,
    "imitation": Imitation,
}


def _reproduce(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(ABOUT)
        return
    name = args[0]
    if name not in EXPERIMENTS:
        raise nearest(name, EXPERIMENTS, "experiment")
    made = _cli(EXPERIMENTS[name], f"uvd reproduce {name}", [_whole(a) for a in args[1:]])
    from uvd.experiments import figure2, figure3, imitation_mini, mini
    from uvd.experiments.batch import AT_ONCE

    at_once = made.jobs or AT_ONCE
    if getattr(made, "draw", False):
        {"mini": mini.draw, "figure2": figure2.draw, "figure3": figure3.draw}[name](made.out)
    elif name == "mini":
        mini.reproduce(made.out, made.seeds, made.tasks, made.methods, at_once)
    elif name == "imitation":
        imitation_mini.run(made.out, made.seeds, made.methods, at_once)
    elif name == "figure3":
        figure3.reproduce(
            made.out, made.panel, made.methods, made.seeds, made.steps, made.grid, made.demos,
            at_once,
        )  # fmt: skip
    else:
        figure2.reproduce(
            made.out, made.panel, made.methods, made.seeds, made.steps, at_once, made.code_noise
        )


@dataclasses.dataclass(frozen=True)
class Demo:
    """The paper's argument in miniature: the cliff walk's bias, learning curves, imitation."""

    out: Path = Path("demo")
    """Folder for runs, figures and the table."""


def _demo(args: list[str]) -> None:
    from uvd.experiments import mini

    mini.demo(_cli(Demo, "uvd demo", args).out)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    "eval": _eval,
    "plot": _plot,
    "demos": _demos,
    "list": _list,
    "reproduce": _reproduce,
    "demo": _demo,
}


def main(args: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    own = args is None  # the process is ours
    args = sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help", "help"):
        print(ABOUT)
        return 0
    try:
        if args[0] not in COMMANDS:
            raise nearest(args[0], COMMANDS, "command")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # for an environment `module:Id-v0` in this folder
        COMMANDS[args[0]](args[1:])
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
