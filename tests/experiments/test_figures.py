"""The agents drawn here are random numbers in the right shapes: to train one would take longer than
all other tests of this folder, and the drawing cannot tell. `test_mini` draws trained ones."""

import jax
import numpy as np
import pytest
from matplotlib.image import imread

from uvd.collect.exploration import Exploration
from uvd.collect.worker import EVAL, Job, play
from uvd.core.policy import MLP, Norm, Policy
from uvd.errors import UserError
from uvd.experiments import figures
from uvd.loop import make_config, make_plan
from uvd.runs import Run
from uvd.tasks.goalenv import goal_task, make_env

TINY = {"hidden": (16, 16), "batch": 32}
FLOW = {"flow_hidden": (8, 8), "bijectors": 2}
CLIFF, PUSH = "PointCliff-v0", "PointPush-v0"


def make_run(path, algorithm, task, steps=(100, 200, 300), task_settings=None, **settings):
    """A run's folder with two seeds and a report at each of these steps."""
    asked = {"seeds": 2, "steps": 300, "envs": 2, "eval_episodes": 10}
    every = {**TINY, **(FLOW if algorithm == "uvd" else {}), **settings}
    run = Run.create(
        path, make_config(algorithm, task, "default", asked, every, task_settings or {})
    )
    for step in steps:
        run.report(
            {
                "step": step,
                "seconds": 1.0,
                "eval/success_final": [0.5, step / 300],
                "eval/success_ever": [1.0, float("nan")],
            }
        )
    run.close()
    return path


def add_agent(path):
    """A checkpoint for the run."""
    run, rng = Run.open(path), np.random.default_rng(0)
    plan = make_plan(run.config)
    plan.program.close()
    like = jax.eval_shape(lambda: plan.program.init(0, 2).agent)
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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "uvd": add_agent(make_run(folder / "uvd", "uvd", CLIFF)),
        "future": make_run(folder / "future", "her", CLIFF),
        "paper": make_run(folder / "paper", "her", CLIFF, strategy="paper"),
        "td3": make_run(folder / "td3", "td3", PUSH),
        "fresh": make_run(folder / "fresh", "td3", PUSH, steps=()),
        "env": add_agent(make_run(folder / "env", "uvd", "envs:Line-v0")),
    }


def assert_picture(path, wide, high):
    """About as large as it should be, and not all of one colour."""
    picture = imread(path)
    assert wide[0] <= picture.shape[1] <= wide[1], picture.shape
    assert high[0] <= picture.shape[0] <= high[1], picture.shape
    assert picture[..., :3].std() > 0.05


def configs(runs, *names):
    return [Run.open(runs[name]).config for name in names]


def test_a_label_names_what_sets_a_run_apart(runs):
    assert figures.run_labels(configs(runs, "future", "uvd")) == ["HER", "UVD"]
    assert figures.run_labels(configs(runs, "future", "paper", "uvd")) == [
        "HER (future)",
        "HER (paper)",
        "UVD",
    ]
    one, other = configs(runs, "uvd", "uvd")
    other["settings"] |= {"horizon": 4}
    assert figures.run_labels([one, other]) == ["UVD (horizon 1)", "UVD (horizon 4)"]
    other["settings"] |= {"gamma": 0.9, "batch": 8, "intended": 1.0}
    other["preset"] = "paper"
    assert figures.run_labels([one, other]) == ["UVD (preset default)", "UVD (preset paper)"]


def test_a_method_keeps_its_colour(runs):
    few, all_ = configs(runs, "paper"), configs(runs, "td3", "future", "paper", "uvd")
    alone = figures.run_styles(few, figures.run_labels(few))
    among = figures.run_styles(all_, figures.run_labels(all_))
    assert alone["HER"] == among["HER (paper)"]
    assert among["UVD"].color == figures.COLORS["uvd"][0]
    assert len({style.color for style in among.values()}) == 4
    unknown = figures.run_styles([{"algorithm": "new"}], ["NEW"])
    assert unknown["NEW"].color in figures.OTHERS


def test_curves_have_a_panel_a_task(runs, tmp_path):
    names = [runs[name] for name in ("uvd", "future", "paper", "td3")]
    figures.draw_curves(names, tmp_path / "new" / "two.png")
    assert_picture(tmp_path / "new" / "two.png", (1200, 1600), (500, 750))
    figures.draw_curves(names[:1], tmp_path / "one.png", "eval/success_ever")  # with a NaN
    assert_picture(tmp_path / "one.png", (600, 850), (500, 750))


def test_runs_that_differ_in_seeds_are_one_curve(runs, tmp_path):
    more = make_run(tmp_path / "more", "td3", PUSH, steps=(200, 300))
    steps, values = figures._pooled([Run.open(runs["td3"]), Run.open(more)], "eval/success_final")
    assert steps.tolist() == [200, 300]
    np.testing.assert_allclose(values, [[0.5, 0.5], [2 / 3, 1.0]] * 2)
    apart = make_run(tmp_path / "apart", "td3", PUSH, steps=(150,))
    with pytest.raises(UserError, match="no common step"):
        figures.draw_curves([more, apart], tmp_path / "x.png")


def test_a_task_with_other_settings_is_another_panel(tmp_path):
    run = make_run(tmp_path / "r", "td3", CLIFF, task_settings={"noise": 0.2})
    assert figures.task_name(Run.open(run).config) == "PointCliff-v0 (noise 0.2)"


def test_density_maps_are_drawn(runs, tmp_path):
    figures.draw_density(runs["uvd"], tmp_path / "d.png", seed=1, episode=2, step=3)
    assert_picture(tmp_path / "d.png", (1800, 2300), (500, 900))


def test_density_maps_of_an_environment_are_of_the_agent_at_hand(runs, tmp_path):
    pictures = []
    for seed in (0, 1):
        figures.draw_density(runs["env"], tmp_path / "e.png", seed=seed, episode=2, step=3)
        assert_picture(tmp_path / "e.png", (1800, 2300), (500, 900))
        pictures.append(imread(tmp_path / "e.png")[100:500, :1500, :3])
    assert pictures[0].shape == pictures[1].shape
    assert abs(pictures[0] - pictures[1]).mean() > 0.01


def still(task):
    """A policy that does nothing, for exploration to stand out."""
    ones = [np.ones(n, np.float32) for n in (task.obs_dim, task.goal_dim)]
    net = MLP(
        (np.zeros((task.obs_dim + task.goal_dim, task.action_dim), np.float32),),
        (np.zeros(task.action_dim, np.float32),),
    )
    return Policy(net, Norm(0 * ones[0], ones[0], 0 * ones[1], ones[1]))


def test_an_environment_is_played_again_from_the_same_state():
    task = goal_task("envs:Line-v0")
    policy = still(task)
    calm = figures._env_scene(task, policy, Exploration(), 1, 4)
    wild = figures._env_scene(task, policy, Exploration(noise=1.0), 1, 4)
    played = play(task, make_env(task), policy, Job(0, 0, EVAL, 1))
    for scene in (calm, wild):
        np.testing.assert_array_equal(scene.achieved, played.achieved[4])
        assert scene.reached.shape == (figures.REPEATS * 6, 2)
        assert "as in training" in scene.how
    first = np.asarray(calm.reached).reshape(figures.REPEATS, 6, 2)[:, 0]
    assert len(np.unique(first, axis=0)) == figures.REPEATS  # the environment's noise is new
    assert np.std(wild.reached) > 2 * np.std(calm.reached - calm.achieved)


def test_without_a_step_the_one_before_something_moves_is_taken():
    task = goal_task("envs:Late-v0")
    scene = figures._env_scene(task, still(task), Exploration(), 0, None)
    assert scene.step == 4
    np.testing.assert_array_equal(scene.obs[:2], scene.achieved)


def test_an_environment_that_does_not_repeat_itself_leaves_the_episode():
    task = goal_task("envs:Restless-v0")
    scene = figures._env_scene(task, still(task), Exploration(), 0, 2)
    assert scene.reached.shape == (8, 2)
    assert "cannot be repeated" in scene.how


def test_paths_are_drawn_over_the_pit(runs, tmp_path):
    figures.draw_paths([runs["uvd"]], tmp_path / "p.png")
    assert_picture(tmp_path / "p.png", (450, 900), (500, 900))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda r, out: figures.draw_curves([], out), "no runs"),
        (lambda r, out: figures.draw_curves([out], out), "not a run folder"),
        (lambda r, out: figures.draw_curves([r["fresh"]], out), "no reports yet"),
        (lambda r, out: figures.draw_curves([r["td3"]], out, "success"), "eval/success_ever"),
        (lambda r, out: figures.draw_curves([r["td3"]], out, "seconds"), "unknown metric"),
        (lambda r, out: figures.draw_curves([r["td3"]], out / "a.nonsense"), "cannot write"),
        (lambda r, out: figures.draw_curves([r["td3"]], r["td3"] / "config.toml/a"), "cannot"),
        (lambda r, out: figures.draw_density(r["future"], out), "need a run of uvd"),
        (lambda r, out: figures.draw_density(r["uvd"], out, step=50), "0 to 49"),
        (lambda r, out: figures.draw_density(r["uvd"], out, episode=-1), "negative"),
        (lambda r, out: figures.draw_density(r["env"], out, step=-1), "negative"),
        (lambda r, out: figures.draw_density(r["env"], out, step=10), "0 to 9"),
        (lambda r, out: figures.draw_density(r["uvd"], out, seed=2), "seeds 0 to 1"),
        (lambda r, out: figures.draw_paths([], out), "no runs"),
        (lambda r, out: figures.draw_paths([r["td3"]], out), "pit of PointCliff"),
        (lambda r, out: figures.draw_paths([r["future"]], out), "no checkpoint yet"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(runs, tmp_path, draw, message):
    with pytest.raises(UserError, match=message) as error:
        draw(runs, tmp_path / "folder")
    assert "\n" not in str(error.value)
