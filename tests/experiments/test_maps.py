import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread

from fakeruns import CLIFF, PUSH, add_agent, assert_picture, make_run
from uvd.collect.exploration import Exploration
from uvd.collect.worker import EVAL, Job, play
from uvd.core.errors import UserError
from uvd.core.policy import MLP, Norm, Policy
from uvd.experiments import maps
from uvd.tasks import make_task
from uvd.tasks.env import make_env
from uvd.tasks.find import find_task


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "uvd": add_agent(make_run(folder / "uvd", "uvd", CLIFF)),
        "future": make_run(folder / "future", "her", CLIFF),
        "td3": make_run(folder / "td3", "td3", PUSH),
        "env": add_agent(make_run(folder / "env", "uvd", "envs:Line-v0")),
    }


@pytest.fixture
def coarse(monkeypatch):
    """Maps of fewer goals, made from fewer roll-outs."""
    monkeypatch.setattr(maps, "GRID", 21)
    monkeypatch.setattr(maps, "ROLLOUTS", 20)


def test_density_maps_are_drawn(runs, coarse, tmp_path):
    maps.draw_density(runs["uvd"], tmp_path / "d.png", seed=4, episode=2, step=3)
    assert_picture(tmp_path / "d.png", (1000, 1500), (1000, 1500))


def test_density_maps_of_an_environment_are_of_the_agent_at_hand(runs, coarse, tmp_path):
    pictures = []
    for seed in (None, 4):
        maps.draw_density(runs["env"], tmp_path / "e.png", seed=seed, episode=2, step=3)
        assert_picture(tmp_path / "e.png", (1000, 1500), (1000, 1500))
        pictures.append(imread(tmp_path / "e.png")[100:900, :1000, :3])
    assert pictures[0].shape == pictures[1].shape
    assert abs(pictures[0] - pictures[1]).mean() > 0.01


def test_values_of_a_map_are_shares_of_the_bound(runs, coarse):
    trained = maps.api.load(runs["env"])
    scene = maps.env_scene(trained.plan.task, trained.policy().policy, Exploration(), 1, 3)
    goals = jnp.resize(np.append(scene.reached[:3], [[9.0, 9.0]], 0), (21 * 21, 2))
    reached, *learned = maps.make_maps(trained, 3, scene, goals)
    values = np.asarray(reached.values)
    assert (values[:3] > 0.001).all()
    assert values[3] == 0  # nothing is near it
    for m in learned:
        assert m.values.shape == (21 * 21,)
        assert (m.values >= 0).all()
        assert (m.values <= 1 + 1e-6).all()


def test_a_point_task_is_followed_from_its_state(coarse):
    """Without exploration and noise, what follows is the episode itself."""
    task = make_task("PointPush-v0")
    later, start = (maps.point_scene(task, still(task), Exploration(), 1, n) for n in (10, 0))
    np.testing.assert_array_equal(later.goal, start.goal)
    np.testing.assert_allclose(later.reached, np.tile(start.achieved, (len(later.reached), 1)))
    noisy = maps.point_scene(task, still(task), Exploration(noise=1.0), 1, 10)
    assert noisy.paths.shape == (maps.PATHS, 40, 2)
    assert np.std(noisy.reached - later.reached) > 0.01


def still(task):
    """A policy that does nothing, for exploration to stand out."""
    ones = [np.ones(n, np.float32) for n in (task.obs_dim, task.goal_dim)]
    net = MLP(
        (np.zeros((task.obs_dim + task.goal_dim, task.action_dim), np.float32),),
        (np.zeros(task.action_dim, np.float32),),
    )
    return Policy(net, Norm(0 * ones[0], ones[0], 0 * ones[1], ones[1]))


def test_an_environment_is_played_again_from_the_same_state():
    task = find_task("envs:Line-v0")
    policy = still(task)
    calm = maps.env_scene(task, policy, Exploration(), 1, 4)
    noisy = maps.env_scene(task, policy, Exploration(noise=1.0), 1, 4)
    played = play(task, make_env(task), policy, Job(0, 0, EVAL, 1))
    # The environment itself refuses actions beyond its bounds.
    unclipped = maps.env_scene(task, policy, Exploration(noise=50.0, store_unclipped=True), 1, 4)
    for scene in (calm, noisy, unclipped):
        np.testing.assert_array_equal(scene.achieved, played.achieved[4])
        assert scene.reached.shape == (maps.REPEATS * 6, 2)
        assert "as in training" in scene.how
    first = np.asarray(calm.reached).reshape(maps.REPEATS, 6, 2)[:, 0]
    assert len(np.unique(first, axis=0)) == maps.REPEATS  # the environment's noise is new
    assert np.std(noisy.reached) > 2 * np.std(calm.reached - calm.achieved)


def test_without_a_step_the_one_before_something_moves_is_taken():
    task = find_task("envs:Late-v0")
    scene = maps.env_scene(task, still(task), Exploration(), 0, None)
    assert scene.step == 4
    np.testing.assert_array_equal(scene.obs[:2], scene.achieved)


def test_an_environment_that_does_not_repeat_itself_leaves_the_episode():
    task = find_task("envs:Restless-v0")
    scene = maps.env_scene(task, still(task), Exploration(), 0, 2)
    assert scene.reached.shape == (8, 2)
    assert "cannot be repeated" in scene.how


def test_paths_are_drawn_over_the_pit(runs, tmp_path):
    maps.draw_paths([runs["uvd"]], tmp_path / "p.png")
    assert_picture(tmp_path / "p.png", (450, 900), (500, 900))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda r, out: maps.draw_density(r["future"], out), "need a run of uvd, .* is of her"),
        (lambda r, out: maps.draw_density(r["uvd"], out, step=50), "0 to 49"),
        (lambda r, out: maps.draw_density(r["uvd"], out, episode=-1), "negative"),
        (lambda r, out: maps.draw_density(r["env"], out, step=-1), "negative"),
        (lambda r, out: maps.draw_density(r["env"], out, step=10), "0 to 9"),
        (lambda r, out: maps.draw_density(r["uvd"], out, seed=1), "seeds 3 to 4, not 1"),
        (lambda r, out: maps.draw_paths([], out), "no runs"),
        (lambda r, out: maps.draw_paths([r["td3"]], out), "pit of PointCliff"),
        (lambda r, out: maps.draw_paths([r["future"]], out), "not what it learned"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(runs, tmp_path, draw, message):
    with pytest.raises(UserError, match=message) as error:
        draw(runs, tmp_path / "folder")
    assert "\n" not in str(error.value)
