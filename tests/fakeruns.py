"""Run folders whose agents are random numbers in the right shapes: to train one would take longer
than all tests that draw it, and the drawing cannot tell. `test_reproduce` draws trained ones."""

import jax
import numpy as np
from matplotlib.image import imread

from uvd.runs import Run
from uvd.settings import to_file
from uvd.training.loop import plan_run
from uvd.training.plan import configure

TINY = {"hidden": (16, 16), "batch": 32}
FLOW = {"flow_hidden": (8, 8), "bijectors": 2}
CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"


def make_run(path, algorithm, task, steps=(100, 200, 300), task_settings=None, **settings):
    """A run's folder with two seeds, 3 and 4, and a report at each of these steps."""
    given = {"seeds": 2, "first_seed": 3, "steps": 300, "envs": 2, "eval_episodes": 10}
    given |= {**TINY, **(FLOW if algorithm == "uvd" else {}), **settings}
    config, _ = configure(algorithm, task, "default", given, task_settings)
    run = Run.create(path, to_file(config))
    for step in steps:
        run.report(
            {
                "step": step,
                "seconds": 1.0,
                "eval/success_final": [0.5, step / 300],
                "eval/success_ever": [1.0, float("nan")],
            }
        )
    return path


def train(
    path, algorithm, task, curves, every=100, budget=None, metric="eval/success_final", **more
):
    """A run whose seeds have these curves."""
    steps = budget or every * len(curves[0])
    make_run(path, algorithm, task, steps=(), seeds=len(curves), **more)
    run = Run.open(path)
    run.config["run"]["steps"] = steps
    run.write_config()
    for i, values in enumerate(zip(*curves), 1):
        run.report({"step": i * every, "seconds": 2.0 * i, metric: list(values)})
    return path


def add_agent(path):
    """A checkpoint for the run."""
    run, rng = Run.open(path), np.random.default_rng(0)
    plan = plan_run(run)
    plan.program.close()
    like = jax.eval_shape(lambda: plan.program.init(0, 2).state)
    arrays = {}
    for where, leaf in jax.tree_util.tree_flatten_with_path(like)[0]:
        name = jax.tree_util.keystr(where)
        values = 0.3 * rng.normal(size=leaf.shape)
        for feature, known in plan.spec.norm._asdict().items():
            if name.endswith(feature):  # at random, a scale could be 0
                values = np.broadcast_to(known, leaf.shape)
        arrays[name] = values.astype(leaf.dtype)
    run.save(300, arrays, {})
    return path


def assert_picture(path, wide, high):
    """About as large as it should be, and not all of one colour."""
    picture = imread(path)
    assert wide[0] <= picture.shape[1] <= wide[1], picture.shape
    assert high[0] <= picture.shape[0] <= high[1], picture.shape
    assert picture[..., :3].std() > 0.05
