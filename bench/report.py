"""The page of many runs: its size, the time to build it, and the time until it can be used.

    python bench/report.py            # 500 synthetic runs
    python bench/report.py 100

Each run has 4 seeds and 200 reports of 20 metrics: 5 tasks, 5 algorithms, 4 settings of each, and
the rest of them in other seeds. The last two times are of headless Chromium, if it is installed:
from the start of loading to the first figures, and from a click on a curve's name to the figure
without it.
"""

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from uvd.experiments.report import write_report
from uvd.runs import Run
from uvd.settings import build, to_file

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import browser

TASKS = ("PointReach-v0", "PointCliff-v0", "PointPush-v0", "PointSlide-v0", "PointPushSparse-v0")
ALGORITHMS = ("td3", "her", "uvd", "usher", "vdi")
NOISES = (0.1, 0.2, 0.3, 0.4)
SEEDS, REPORTS, METRICS, STEPS = 4, 200, 20, 200_000
DRAWN = "return document.querySelector('.plot .js-line') !== null"
NOW = "return performance.now()"
TOGGLE = """const start = performance.now(), done = arguments[0];
document.querySelector('.chips button').click();
requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"""


def make_runs(folder: Path, runs: int) -> None:
    """Synthetic runs: curves that rise at random."""
    rng = np.random.default_rng(0)
    methods = [(t, a, noise) for t in TASKS for a in ALGORITHMS for noise in NOISES]
    others = [
        json.dumps({f"metric/{k}": values for k, values in enumerate(row)}).removeprefix("{")
        for row in rng.normal(size=(REPORTS, METRICS, SEEDS)).tolist()
    ]
    for i in range(runs):
        task, algorithm, noise = methods[i % len(methods)]
        first = SEEDS * (i // len(methods))
        given = {"seeds": SEEDS, "first_seed": first, "steps": STEPS, "noise": noise}
        run = Run.create(folder / f"run{i}", to_file(build(algorithm, task, given=given)))
        success = rng.random() * np.sort(rng.random((REPORTS, SEEDS)), 0)
        rows = [
            f'{{"step": {1000 * (j + 1)}, "seconds": {2.0 * j}, "eval/success_final": {scores}, '
            for j, scores in enumerate(success.tolist())
        ]
        text = "\n".join(row + other for row, other in zip(rows, others)) + "\n"
        (run.path / "metrics.jsonl").write_text(text)


def main(runs: int) -> None:
    with TemporaryDirectory() as folder:
        make_runs(Path(folder), runs)
        page, start, busy = Path(folder) / "report.html", time.perf_counter(), time.process_time()
        write_report([Path(folder)], page)
        busy = time.process_time() - busy
        print(f"{runs} runs of {SEEDS} seeds and {REPORTS} reports")
        print(
            f"built in        {time.perf_counter() - start:6.1f} s, {busy:.1f} s of them computing"
        )
        print(f"size            {page.stat().st_size / 1e6:6.1f} MB")
        if browser.missing():
            return print("no browser: it needs Selenium, and Debian's chromium and chromium-driver")
        with browser.chromium() as chromium:
            chromium.execute_cdp_cmd("Performance.enable", {})
            browser.show(chromium, page, 1300, 4000, "light")  # as high as the first figure needs
            while not chromium.execute_script(DRAWN):
                time.sleep(0.02)
            ready = chromium.execute_script(NOW) / 1000
            metrics = chromium.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
            busy = next(m["value"] for m in metrics if m["name"] == "ProcessTime")
            print(f"interactive in  {ready:6.1f} s, {busy:.1f} s of them computing")
            print(f"a curve toggles {chromium.execute_async_script(TOGGLE) / 1000:6.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
