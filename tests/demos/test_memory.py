"""Demonstrations in memory: their sizes, their hash, and what fits a task."""

import numpy as np
import pytest

from randomdemos import TaskSizes, demos_of, made
from uvd.core.errors import UserError
from uvd.demos.memory import Trajectory, digest, fit_demos, summary


def test_steps_are_those_of_the_actions_or_rewards_or_else_of_the_observations() -> None:
    (whole,) = made((7,))
    assert whole.steps == 7
    assert Trajectory(whole.obs, reward=whole.reward).steps == 7
    assert Trajectory(whole.obs).steps == 8


def test_the_digest_is_of_the_numbers_and_their_order() -> None:
    a, b = made()
    same = digest(demos_of(a, b))
    assert same == digest(demos_of(*made()))
    without_reward = Trajectory(a.obs, a.action)
    other = Trajectory(a.obs + np.float32(1e-6), a.action, a.reward)
    for changed in ((b, a), (a,), (without_reward, b), (other, b)):
        assert digest(demos_of(*changed)) != same


def test_summary() -> None:
    lines = dict(summary(demos_of(*made())))
    assert lines["trajectories"] == "2"
    assert lines["steps"] == "11 (each 4 to 7)"
    assert lines["observation"].startswith("16 numbers, ")
    assert lines["observation"].endswith("one more than steps")
    assert lines["return"].startswith("mean ")
    alone = dict(summary(demos_of(Trajectory(np.zeros((3, 2), np.float32)))))
    assert alone["observation"] == "2 numbers, 0 to 0, as many as steps"
    assert (alone["action"], alone["return"]) == ("none", "no rewards")


@pytest.mark.parametrize("size", [17, 16])
def test_upstreams_cheetah_loses_its_x_velocity(size: int) -> None:
    written = made(obs=size)
    fitted = fit_demos(demos_of(*written), TaskSizes())
    entries = [i for i in range(size) if size == 16 or i != 8]
    np.testing.assert_array_equal(fitted.trajectories[0].obs, written[0].obs[:, entries])


@pytest.mark.parametrize("size", [43, 45, 348, 376])
@pytest.mark.parametrize("id", ["HumanoidNonExploitable-v0", "m:HumanoidNonExploitable-v0"])
def test_upstreams_humanoids_lose_what_ours_hides(size: int, id: str) -> None:
    written = made(obs=size, action=17)
    fitted = fit_demos(demos_of(*written), TaskSizes(id, 43, 17))
    entries = list(range(43)) if size == 43 else [*range(22), *range(24, 45)]
    np.testing.assert_array_equal(fitted.trajectories[1].obs, written[1].obs[:, entries])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TaskSizes(), "x: obs has 15 numbers a step, .* expects 16, or upstream's 17"),
        (TaskSizes("Other-v0"), "x: obs has 15 numbers a step, Other-v0 expects 16$"),
        (TaskSizes(obs_dim=15, action_dim=5), "x: action has 6 numbers a step, .* expects 5$"),
    ],
)
def test_other_sizes_are_refused(task: TaskSizes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit_demos(demos_of(*made(obs=15)), task)
