"""In place of training: trials that report some numbers at once."""

import pytest

from uvd.runs import Run
from uvd.study import runner

SUCCESS = {"td3": 0.1, "her": 0.7, "uvd": 0.9}
RETURN = {"vdi": 90.0, "kdi": 95.0, "gail": 70.0, "dac": 50.0, "bc": 20.0}


class FakeTraining:
    """Two reports and a checkpoint. `trained` has the trials' names."""

    def __init__(self):
        self.trained: list[str] = []

    def __call__(self, driver, name, core):
        path = driver.out / name
        self.trained.append(name)
        run = Run.create(path, driver.trials[name])
        for i in (1, 2):
            run.report(self.report(run.config, i))
        (path / "episodes").mkdir()
        run.save(run.rows()[-1]["step"], {}, {})
        return 0, ""

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
    monkeypatch.setattr(runner.Driver, "_train", lambda *args: fake(*args))
    return fake
