"""Writes the measured numbers of README.md and docs/*.md from the files under results/.

    python docs/tables.py            # writes what differs, and says where
    python docs/tables.py --check    # writes nothing; fails where text and files differ

    <!-- table: fetch -->
    ... a whole table ...
    <!-- end -->
    UVD reaches <!-- value: success figure2/FetchPush-v4-uvd -->100<!-- end --> %.

`TABLES` and `VALUES` below are what can be named; a value's function gets the words that follow its
name. Whoever measures again changes the files under results/ and runs this.
"""

import functools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uvd.experiments import statistics
from uvd.runs import Run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
MARK = re.compile(r"(<!-- (table|value): (.+?) -->).*?(<!-- end -->)", re.DOTALL)
ENOUGH = 5  # seeds for an interval; of fewer the values themselves are shown
Values = Sequence[float] | np.ndarray


class Result(NamedTuple):
    """A finished run: its folder's name, its settings and its reports."""

    name: str
    task: str
    method: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]

    def last(self, metric: str) -> np.ndarray:
        """The last report of a metric, a number a seed."""
        return np.array(self.rows[-1][metric], float)

    @property
    def seeds(self) -> int:
        return len(next(v for v in self.rows[-1].values() if isinstance(v, list)))

    @property
    def steps(self) -> str:
        return number(self.rows[-1]["step"])

    def first(self, metric: str, level: float) -> str:
        """Steps at the first report whose mean over seeds reaches the level."""
        reached = (row["step"] for row in self.rows if np.mean(row[metric]) >= level)
        return number(next(reached, None))


def results(folder: str) -> dict[str, Result]:
    """The runs of a folder of results, by name."""
    found = {}
    for path in sorted((RESULTS / folder).glob("*/metrics.jsonl")):
        run = Run.open(path.parent)
        task, name = run.config["task"], path.parent.name
        found[name] = Result(name, task, name.removeprefix(f"{task}-"), run.config, run.rows())
    return found


def lines(path: str) -> list[dict[str, Any]]:
    """The rows of a .jsonl file."""
    return [json.loads(line) for line in (RESULTS / path).read_text("utf-8").splitlines()]


def number(n: float | None) -> str:
    """A whole number, its thousands apart; a dash for none."""
    return "–" if n is None else f"{n:,.0f}".replace(",", "\u202f")  # a space that does not break


def cell(values: Values, digits: int = 0, scale: float = 100.0, sign: str = "") -> str:
    """The interquartile mean over seeds, with its 95 % interval or, of few seeds, all values."""
    values = scale * np.asarray(values, float)
    value, *ends = statistics.interval(values)
    shown = ends if len(values) >= ENOUGH else values
    text = [f"{x:{sign}.{digits}f}".replace("-", "−") for x in (value, *shown)]
    if len(values) >= ENOUGH:
        return f"{text[0]} [{', '.join(text[1:])}]"
    return f"{text[0]} ({', '.join(text[1:])})" if len(values) > 1 else text[0]


def difference(ours: Values, theirs: Values) -> str:
    """In points; with an interval where both have enough seeds."""
    value, low, high = (100 * float(x) for x in statistics.difference(ours, theirs))
    text = f"{value:+.0f}"
    if min(len(ours), len(theirs)) >= ENOUGH:
        text += f" [{low:+.0f}, {high:+.0f}]"
    return text.replace("-", "−")


def interaction(noisy: Sequence[Values], calm: Sequence[Values], n: int = 5000) -> str:
    """What noise adds to a difference of two methods, in points: seeds are drawn anew."""
    rng = np.random.default_rng(0)
    groups = [np.asarray(values, float) for values in (*noisy, *calm)]
    a, b, c, d = (statistics.iqm(rng.choice(values, (n, len(values)))) for values in groups)
    low, high = np.quantile(100 * (a - b - c + d), [0.025, 0.975])
    a, b, c, d = (100 * float(statistics.iqm(values)) for values in groups)
    return f"{a - b - c + d:+.1f} [{low:+.0f}, {high:+.0f}]".replace("-", "−")


def table(header: Sequence[str], rows: Iterable[Sequence[object]], words: int = 2) -> str:
    """Markdown; the first `words` columns are text, the others numbers."""
    rule = ["---"] * words + ["--:"] * (len(header) - words)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (header, rule, *rows))


# --- goals ---

NAMES = {
    "td3": "TD3", "her": "HER", "her-future": "HER (`future`, k = 4)",
    "her-calm": "HER (`future`, penalty 1.0)", "her-final": "HER (`final`)",
    "her-episode": "HER (`episode`)", "her-paper": "HER (the paper's wording)", "uvd": "UVD",
    "vdi": "VDI", "kdi": "KDI, pairs", "kdi-changes": "KDI, states and next states",
    "gail": "GAIL", "dac": "DAC", "bc": "BC",
    "gail-states": "GAIL, states", "dac-states": "DAC, states",
}  # fmt: skip
FINAL, EVER = "eval/success_final", "eval/success_ever"
TASKS = {
    "mini": ("Reach", "Cliff", "Push", "PushSparse", "Slide", "SlideNoise"),
    "figure2": ("FetchPush-v4", "FetchSlide-v4", "FetchPushSparse-v0", "FetchSlideNoiseCode-v0"),
}
TASKS["mini"] = tuple(f"Point{name}-v0" for name in TASKS["mini"])


def goal_runs(folder: str) -> list[Result]:
    """The runs of Figure 2 or of its miniature, by task and method."""
    found, methods = results(folder).values(), list(NAMES)
    tasks = TASKS[folder]
    return sorted(found, key=lambda r: (tasks.index(r.task), methods.index(r.method)))


def goals(folder: str, *levels: float) -> str:
    """Success at the last report, and the steps to some levels of it."""
    header = ("task", "method", "steps", "seeds", "final step, %", "ever, %", "worst seed, %")
    rows = []
    for r in goal_runs(folder):
        final, ever = r.last(FINAL), r.last(EVER)
        level = [r.first(FINAL, x) for x in levels]
        both = cell(final), f"{100 * statistics.iqm(ever):.0f}", f"{100 * final.min():.0f}"
        rows.append((r.task, NAMES[r.method], r.steps, r.seeds, *both, *level))
    return table((*header, *(f"steps to {100 * x:.0f} %" for x in levels)), rows)


def study(folder: str, metric: str = FINAL) -> dict[tuple[str, str], np.ndarray]:
    """Success in a study, by task and method; runs of other seeds are pooled."""
    found: dict[tuple[str, str], list[float]] = {}
    for r in results(folder).values():
        settings = r.config["task_settings"].items()
        changed = "".join(f", {name} {value}" for name, value in settings)
        folder_of_task = "-".join([r.task, *(f"{name}{value}" for name, value in settings)])
        method = re.sub(r"-first_seed\d+$", "", r.name.removeprefix(f"{folder_of_task}-"))
        found.setdefault((r.task + changed, method), []).extend(r.last(metric))
    return {key: np.array(values) for key, values in found.items()}


def study_table(folder: str, method: str = "") -> str:
    """Success at the last report, of all methods of a study or of one."""
    ever = study(folder, EVER)
    rows = [
        (*key, len(x), cell(x), cell(ever[key]))
        for key, x in sorted(study(folder).items())
        if method in ("", key[1])
    ]
    if not rows:
        return "*No run is stored yet.*"
    return table(("task", "method", "seeds", "final step, %", "ever, %"), rows)


def bias_effect(metric: str, first: str = "0") -> str:
    """What noise adds to the advantage of unbiased goals on the point task, of seeds from a place
    on."""
    found = study("bias", f"eval/success_{metric}")
    noisy, calm = (
        [found[task, method][int(first) :] for method in ("balanced", "future")]
        for task in ("PointSlideNoise-v0", "PointSlide-v0")
    )
    return interaction(noisy, calm)


def critic_bias() -> str:
    """How wrong critics are about their own policy's success, a row a task and method."""
    names = {"uvd": "UVD's kernel", "her": "success", "usher": "success", "td3": "success"}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in lines("critic/bias.jsonl"):
        task, method = row["run"].rsplit("-", 1)
        groups.setdefault((task, method), []).append(row)
    rows = []
    for (task, method), own in sorted(groups.items()):
        means = (f"{np.mean([row[name] for row in own]):.1f}" for name in ("believed", "true"))
        gap = np.array([row["bias"] for row in own])
        error = float(np.hypot.reduce([row["error"] for row in own])) / len(own)
        each = ", ".join(f"{x:+.1f}" for x in gap).replace("-", "−")
        shown = f"{gap.mean():+.1f} ± {1.96 * error:.1f} ({each})".replace("-", "−")
        rows.append((task, method, names.get(method, names["uvd"]), len(own), *means, shown))
    header = ("task", "goals from", "in shares of", "seeds", "believed", "true", "difference")
    return table(header, rows, 3)


def fresh() -> dict[str, dict[str, np.ndarray]]:
    """500 fresh episodes a seed of some runs of Figure 2."""
    rows = lines("figure2/fresh.jsonl")
    return {r["run"]: {x: np.array(r[f"success_{x}"]) for x in ("final", "ever")} for r in rows}


def fresh_table() -> str:
    rows = []
    for run, x in fresh().items():
        task, method = run.rsplit("-", 1)
        rows.append((task, NAMES[method], len(x["final"]), cell(x["final"]), cell(x["ever"])))
    return table(("task", "method", "seeds", "final step, %", "ever, %"), rows)


def differences() -> str:
    """UVD less the best HER of each task, at the final step and ever."""
    rows = []
    for folder in TASKS:
        runs = goal_runs(folder)
        for ours in (r for r in runs if r.method == "uvd"):
            her = [r for r in runs if r.task == ours.task and r.method.startswith("her")]
            best = max(her, key=lambda r: float(statistics.iqm(r.last(FINAL))))
            both = [difference(ours.last(x), best.last(x)) for x in (FINAL, EVER)]
            rows.append((ours.task, NAMES[best.method], f"{ours.seeds}, {best.seeds}", *both))
    header = ("task", "UVD less", "seeds", "final step, points", "ever, points")
    return table(header, rows)


# --- imitation ---

HUMANOID = "HumanoidNonExploitable-v0"


def scales(folder: str) -> dict[str, dict[str, Any]]:
    return json.loads((RESULTS / folder / "references.json").read_text("utf-8"))


def share(folder: str, r: Result) -> np.ndarray:
    """Last returns of the seeds as a share of the expert's; random actions are 0."""
    scale = scales(folder)[r.task]
    return (r.last("eval/return") - scale["random"]) / (scale["expert"] - scale["random"])


def amount(folder: str, r: Result) -> str:
    """Trajectories times demonstrated steps of each."""
    many, every = r.config["demos"]["trajectories"], r.config["demos"].get("every", 1)
    return f"{many} × {len(range(every // 2, scales(folder)[r.task]['steps'], every))}"


def method_of(r: Result) -> str:
    """`KDI, pairs` of `kdi-1x20`; on Humanoid KDI compares states."""
    name = NAMES[re.sub(r"-\d+x\d+$", "", r.method)]
    return "KDI, states" if r.task == HUMANOID and name.startswith("KDI") else name


def imitation_runs(folder: str) -> list[Result]:
    order = list(NAMES)
    runs = results(folder).values()
    return sorted(
        runs, key=lambda r: (r.task, amount(folder, r), order.index(r.method.split("-")[0]))
    )


def imitation(folder: str) -> str:
    """Shares of the expert's return at the last report."""
    header = ("task", "method", "demonstrations", "share of the expert's return", "seeds", "steps")
    rows: list[tuple[object, ...]] = []
    for r in imitation_runs(folder):
        names = r.task.removesuffix("NonExploitable-v0"), method_of(r), amount(folder, r)
        rows.append((*names, cell(share(folder, r), 2, 1), r.seeds, r.steps))
    if HUMANOID in scales(folder):
        rows.append(("Humanoid", "standing still", "–", f"{standing():.2f}", "–", "–"))
    return table(header, rows, 3)


def standing() -> float:
    """The share of a Humanoid that only stands."""
    scale = scales("figure3")[HUMANOID]
    return (scale["idle"] - scale["random"]) / (scale["expert"] - scale["random"])


def experts() -> str:
    header = ("demonstrations", "task", "trajectories", "expert = 1", "random actions = 0")
    rows = []
    for folder in ("figure3", "figure3-authors"):
        for task, s in scales(folder).items():
            ends = number(s["expert"]), number(s["random"]).replace("-", "−")
            rows.append((f"`{s['demos']}`", task, s["trajectories"], *ends))
    return table(header, rows)


# --- one algorithm ---


def of_algorithm(algorithm: str) -> str:
    """All stored results of an algorithm, one line each."""
    header = ("task", "variant", "steps", "seeds", "result")
    rows = []
    for folder in TASKS:
        for r in goal_runs(folder):
            if r.config["algorithm"] == algorithm:
                result = f"success {cell(r.last(FINAL))} %"
                rows.append((r.task, f"preset `{r.config['preset']}`", r.steps, r.seeds, result))
                if r.method != algorithm:
                    rows[-1] = (r.task, NAMES[r.method], *rows[-1][2:])
    for folder in ("figure3", "figure3-authors", "imitation"):
        for r in imitation_runs(folder):
            if r.config["algorithm"] == algorithm:
                source = f"{amount(folder, r)} steps of `{scales(folder)[r.task]['demos']}`"
                match = f", `match = {r.config['settings']['match']}`" if algorithm == "kdi" else ""
                result = f"share {cell(share(folder, r), 2, 1)}"
                rows.append((r.task, source + match, r.steps, r.seeds, result))
    return table(header, rows)


# --- speed ---


def sb3() -> str:
    sizes = {"theirs": "256, 400-300 (its defaults)", "paper": "512, 400-400 (the paper's)"}
    rows = []
    for r in lines("speed/sb3.jsonl"):
        whole, once = r["sb3_s"] / r["ours_s"], r["ours_steps_s"] / r["sb3_steps_s"]
        times = f"{r['ours_s']:.0f} s, {r['sb3_s']:.0f} s", f"{whole:.2f}", f"{once:.2f}"
        rows.append((sizes[r["sizes"]], number(r["steps"]), *times))
    header = ("batch, layers", "steps", "uvd, Stable-Baselines3", "ratio", "ratio once both learn")
    return table(header, rows, 1)


def seeds_at_once() -> str:
    rows = []
    for r in lines("speed/seeds-h200.jsonl"):
        name = r.get("of", "uvd").upper()
        rows.append((name, r["seeds"], f"{r['ms_per_update']:.2f}", f"{r['ratio_to_first']:.2f}"))
    return table(("algorithm", "seeds", "ms an update of all seeds", "ratio to one seed"), rows, 1)


def studies() -> str:
    """What the same 32 runs take in different ways; means over rounds."""
    arms = {
        "hand": "32 commands `uvd train`, two at a time",
        "study": "one `uvd sweep` of 32 trials",
        "seeds": "one `uvd sweep` of 8 trials with 4 seeds each",
        "ray": "one `uvd sweep --ray` of 32 trials, on this machine",
    }
    found = lines("speed/study.jsonl")
    seconds = {arm: np.mean([r["seconds"] for r in found if r["arm"] == arm]) for arm in arms}
    rows = []
    for arm, about in arms.items():
        r = next(r for r in found if r["arm"] == arm)
        success = f"{r['success']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"
        ratio = f"{seconds[arm] / seconds['hand']:.2f}"
        rows.append((about, f"{seconds[arm]:.0f}", ratio, success))
    return table(("32 runs as", "seconds", "ratio to the first", "success at the end"), rows, 1)


# --- the cliff walk ---

LEARNERS = {
    "td": "TD (UVFA)", "her-future": "HER (`future`, k = 4)", "her-final": "HER (`final`)",
    "her-episode": "HER (`episode`)", "her-paper": "HER (the paper's wording)", "uvd": "UVD",
}  # fmt: skip


def cliffwalk(strategy: str, slip: float, name: str) -> np.ndarray:
    """A measure of the tabular cliff walk, in per cent, a number a seed."""
    rows = lines("cliffwalk/rows.jsonl")
    return np.array([100 * r[name] for r in rows if (r["strategy"], r["slip"]) == (strategy, slip)])


def cliffwalk_table() -> str:
    """Bias and success by learner, for three probabilities of a slip."""
    rows = []
    for strategy, name in LEARNERS.items():
        cells = []
        for measure, sign in (("bias_optimal", "+"), ("success_final", "")):
            means = (cliffwalk(strategy, slip, measure).mean() for slip in (0.1, 0.2, 0.3))
            cells += [f"{round(mean, 1) + 0:{sign}.1f}".replace("-", "−") for mean in means]
        rows.append((name, *cells))
    bias = [f"value, {slip}" for slip in (0.1, 0.2, 0.3)]
    return table(("learner", *bias, *(b.replace("value", "success") for b in bias)), rows, 1)


# --- single values ---


def run_of(path: str) -> Result:
    folder, name = path.split("/")
    return results(folder)[name]


def success(path: str, metric: str = "final") -> str:
    """Success of a run at its last report, in per cent."""
    return f"{100 * statistics.iqm(run_of(path).last(f'eval/success_{metric}')):.0f}"


def share_of(path: str) -> str:
    """The share of the expert's return of a run at its last report."""
    return f"{statistics.iqm(share(path.split('/')[0], run_of(path))):.2f}"


def trial(file: str, name: str, *words: str) -> str:
    """The mean over seeds of the last report of a trial, by its name and its settings."""
    wanted = dict(word.split("=") for word in words)
    step = wanted.pop("step", None)
    for row in reversed(lines(f"trials/{file}.jsonl")):
        settings = {key: str(value) for key, value in row.get("combo", {}).items()}
        if row["name"] != name or not wanted.items() <= settings.items():
            continue
        if step in (None, str(row.get("step"))) and row["final"] is not None:
            mean = np.mean(row["final"][-1] if np.ndim(row["final"]) > 1 else row["final"])
            return f"{mean:.2f}" if abs(mean) <= 1 else number(mean).replace("-", "−")
    raise KeyError(f"{file}: {name} {words}")


def overlap() -> str:
    """Whether the seeds of UVD and HER overlap by success at any step of the noisy slide."""
    ours, theirs = (fresh()[f"FetchSlideNoiseCode-v0-{m}"]["ever"] for m in ("uvd", "her"))
    return "seeds overlap" if ours.min() <= theirs.max() else "seeds do not overlap"


def status() -> str:
    """The status of each panel, as docs/reproduction.md has it."""
    text = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| [Figure")]
    rows = [(re.sub(r"\| \[(.+)\]\(.+", r"\1", c[0]), *c[1:3], c[3].strip(" |")) for c in cells]
    return table(("panel", "the paper shows", "its own method", "our method"), rows, 4)


TABLES: dict[str, Callable[[], str]] = {
    "cliffwalk": cliffwalk_table,
    "point-tasks": lambda: goals("mini"),
    "fetch": lambda: goals("figure2", 0.7, 0.9),
    "fetch-fresh": fresh_table,
    "differences": differences,
    "imitation-shipped": lambda: imitation("figure3"),
    "imitation-authors": lambda: imitation("figure3-authors"),
    "experts": experts,
    "pointloop": lambda: imitation("imitation"),
    "speed-sb3": sb3,
    "speed-seeds": seeds_at_once,
    "speed-study": studies,
    "bias": lambda: study_table("bias"),
    "letter": lambda: study_table("letter"),
    "results-usher": lambda: study_table("bias", "usher"),
    "reproduction": status,
    **{
        f"results-{name}": functools.partial(of_algorithm, name)
        for name in ("td3", "her", "uvd", "vdi", "kdi", "bc", "dac", "gail")
    },
}
VALUES: dict[str, Callable[..., str]] = {
    "success": success,
    "share": share_of,
    "returns": lambda path: ", ".join(
        number(x).replace("-", "−") for x in run_of(path).last("eval/return")
    ),
    "trial": trial,
    "removed": lambda name: f"{statistics.iqm(share('figure3', results('removed')[name])):.2f}",
    "standing": lambda: f"{standing():.2f}",
    "updates": lambda path: number(run_of(path).rows[-1]["updates"]),
    "steps": lambda path: run_of(path).steps,
    "cliffwalk": lambda name, slip, what: (
        f"{round(cliffwalk(name, float(slip), what).mean(), 1) + 0:.1f}"
    ),
    "fresh": lambda run, metric: f"{100 * statistics.iqm(fresh()[run][metric]):.0f}",
    "overlap": overlap,
    "bias-effect": bias_effect,
    "noise-effect": lambda metric: interaction(
        *(
            [run_of(f"figure2/{task}-{m}").last(f"eval/success_{metric}") for m in ("uvd", "her")]
            for task in ("FetchSlideNoiseCode-v0", "FetchSlide-v4")
        )
    ),
}


def block(found: re.Match[str]) -> str:
    """One marked table or value, as the files have it."""
    start, kind, words, end = found.groups()
    if kind == "table":
        return f"{start}\n{TABLES[words]()}\n{end}"
    name, *rest = shlex.split(words)
    return f"{start}{VALUES[name](*rest)}{end}"


def render(text: str) -> str:
    """The page with its numbers as the files have them."""
    return MARK.sub(block, text)


def pages() -> list[Path]:
    """README and the pages of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> int:
    """Writes, or with `--check` compares; the exit code says whether anything differs."""
    check, stale = "--check" in sys.argv[1:], 0
    for path in pages():
        text = path.read_text("utf-8")
        if (written := render(text)) != text:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {'differs from results/' if check else 'written'}")
            if not check:
                path.write_text(written, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
