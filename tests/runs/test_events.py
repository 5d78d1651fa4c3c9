"""TensorBoard reads what was reported."""

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from uvd.runs import Run


def test_each_seed_and_a_resumed_run_once(run):
    for step in (1, 2, 3):
        run.report({"step": step, "critic/loss": [step / 2, 1.0], "nan": [np.nan, 7.0]})
    resumed = Run.open(run.path)
    resumed.truncate_rows(1)
    for step in (2, 4):
        resumed.report({"step": step, "critic/loss": [-step, 0.0]})
    seeds = [EventAccumulator(str(run.path / f"tensorboard/seed{k}")) for k in range(2)]
    for seed in seeds:
        seed.Reload()
    assert [seed.Tags()["scalars"] for seed in seeds] == [["critic/loss"], ["critic/loss", "nan"]]
    points = seeds[0].Scalars("critic/loss")
    assert [(p.step, p.value) for p in points] == [(1, 0.5), (2, -2.0), (4, -4.0)]
