"""How an episode went: its scores, and whether the object moved; NumPy and JAX alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uvd.core.episode import Episode
from uvd.tasks import make_task
from uvd.tasks.find import find_task
from uvd.training.evaluate import collected, moved, scores, seed_means

STEPS = 10
REACH, LOOP = make_task("PointReach-v0"), make_task("PointLoop-v0")


def episode_of(success=(), shift=0.0, reward=0.0):
    """An episode that succeeds after these steps; its achieved goal moves in the last one."""
    achieved = np.zeros((STEPS + 1, 2), np.float32)
    achieved[-1] = [0.6 * shift, 0.8 * shift]
    return Episode(
        obs=achieved,
        action=achieved[:-1],
        achieved=achieved,
        goal=achieved[0],
        length=np.int32(STEPS),
        terminated=np.bool_(False),
        success=np.isin(np.arange(STEPS), success),
        reward=np.full(STEPS, reward, np.float32),
    )


@pytest.mark.parametrize(
    ("success", "final", "ever"), [((), 0, 0), ((0,), 0, 1), ((3, 9), 1, 1), ((9,), 1, 1)]
)
@pytest.mark.parametrize("task", [REACH, "envs:Line-v0"], ids=["device", "environment"])
def test_success_is_counted_after_the_last_step_and_after_any(task, success, final, ever):
    task = find_task(task) if isinstance(task, str) else task
    assert scores(task, episode_of(success)) == {"success_final": final, "success_ever": ever}


@pytest.mark.parametrize("task", [LOOP, "envs:Walk-v0"], ids=["device", "environment"])
def test_without_goals_the_score_is_the_return(task):
    task = find_task(task) if isinstance(task, str) else task
    assert scores(task, episode_of(reward=0.5)) == {"return": 5.0}
    assert collected(task, episode_of(reward=0.5, shift=1.0)) == {"collect/return": 5.0}


@pytest.mark.parametrize(
    ("radius", "shift", "expected"),
    [
        (0.25, 0.051, True),  # a fifth of the radius is 0.05
        (0.25, 0.049, False),
        (None, 0.0011, True),  # a millimetre, where success is no distance
        (None, 0.0009, False),
        (0.001, 0.0011, True),
        (0.001, 0.0009, False),
    ],
)
def test_a_drift_is_no_move(radius, shift, expected):
    assert moved(radius, episode_of(shift=shift)) == expected
    there_and_back = episode_of()
    there_and_back.achieved[5] = 1.0
    assert not moved(radius, there_and_back)


def test_what_is_reported_of_a_training_episode_on_host_and_device():
    episode = episode_of((2, 4), shift=0.5)
    expected = {"collect/success_final": 0, "collect/success_ever": 1, "collect/moved": 1}
    assert collected(REACH, episode) == expected
    on_device = jax.jit(lambda e: collected(REACH, e))(jax.tree.map(jnp.asarray, episode))
    assert on_device == expected


def test_the_mean_over_each_seeds_episodes():
    rows = [scores(REACH, episode_of(success)) for success in ((), (0,), (9,), (1, 9))]
    mean = seed_means([rows, [], rows[2:]])
    np.testing.assert_array_equal(mean["success_final"], [0.5, np.nan, 1.0])
    np.testing.assert_array_equal(mean["success_ever"], [0.75, np.nan, 1.0])
    assert all(x.dtype == np.float32 for x in mean.values())
    assert seed_means([[], []]) == {}
