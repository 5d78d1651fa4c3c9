"""In place of training: runs that report what they are told to."""

import pytest

from uvd.experiments import batch
from uvd.runs import Run

SUCCESS = {"td3": 0.1, "her": 0.7, "uvd": 0.9}
RETURN = {"vdi": 90.0, "gail": 70.0, "dac": 50.0, "bc": 20.0}  # less where less is shown


def fake_training(calls, stop_at=None):
    """In place of a process that trains: two reports, from where it stands, and a checkpoint."""

    def train_process(path, cores):
        run = Run.open(path)
        calls.append(path.name)
        for i in range(len(run.rows()) + 1, 3):
            if stop_at == (path.name, i):
                run.close()
                return 130
            seeds, algorithm = run.config["run"]["seeds"], run.config["algorithm"]
            row = {"step": i * run.config["run"]["steps"] // 2, "seconds": float(i)}
            row |= {"actor/abs_action": [0.1 * i] * seeds}
            if shown := run.config.get("demos"):
                best = RETURN[algorithm] - shown.get("every", 1)
                best -= 30 * (run.config["preset"] == "ratio")
                row |= {"eval/return": [best * i / 2 - seed for seed in range(seeds)]}
            else:
                best = SUCCESS[algorithm]
                final = [best * i / 2 - 0.01 * seed for seed in range(seeds)]
                row |= {"eval/success_final": final, "eval/success_ever": [best] * seeds}
            if algorithm in ("uvd", "vdi"):
                row |= {"critic/target_over_bound_max": [0.5 * i - 0.1 * s for s in range(seeds)]}
            if algorithm == "vdi":
                row |= {f"demos/log_d_{what}": [i - 3.0] * seeds for what in ("min", "mean", "max")}
            run.report(row)
        run.save(row["step"], {}, {})
        run.close()
        return 0

    return train_process


@pytest.fixture
def training():
    return fake_training


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(batch, "_train_process", fake_training(made))
    return made
