"""In place of training: processes that report some numbers at once."""

import pytest

from uvd.experiments import batch
from uvd.runs import Run

SUCCESS = {"td3": 0.1, "her": 0.7, "uvd": 0.9}
RETURN = {"vdi": 90.0, "kdi": 95.0, "gail": 70.0, "dac": 50.0, "bc": 20.0}


class FakeTraining:
    """Two reports, from where a run stands, and a checkpoint. `trained` has the runs' names."""

    def __init__(self):
        self.trained: list[str] = []
        self.stop_before: tuple[str, int] | None = None  # a run's name, and a report
        self.code = 0

    def __call__(self, path, core):
        run = Run.open(path)
        self.trained.append(path.name)
        for i in range(len(run.rows()) + 1, 3):
            if self.stop_before == (path.name, i):
                return 130
            run.report(self.report(run.config, i))
        run.save(run.rows()[-1]["step"], {}, {})
        return self.code

    def report(self, config, i):
        seeds, algorithm = range(config["run"]["seeds"]), config["algorithm"]
        row = {"step": i * config["run"]["steps"] // 2, "seconds": float(i)}
        row |= {"actor/abs_action": [0.1 * i for _ in seeds]}
        if demos := config.get("demos"):  # a larger stride, a smaller return
            best = RETURN[algorithm] - demos.get("every", 1)
            row |= {"eval/return": [best * i / 2 - seed for seed in seeds]}
        else:
            best = SUCCESS[algorithm]
            final = [best * i / 2 - 0.01 * seed for seed in seeds]
            row |= {"eval/success_final": final, "eval/success_ever": [best for _ in seeds]}
        if algorithm in ("uvd", "vdi", "kdi"):
            row |= {"critic/target_over_bound_max": [0.5 * i - 0.1 * seed for seed in seeds]}
        return row


@pytest.fixture
def training(monkeypatch):
    fake = FakeTraining()
    monkeypatch.setattr(batch, "train_process", fake)
    return fake
