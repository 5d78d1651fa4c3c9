"""What is said of demonstrations that are unusual beside random play."""

import numpy as np
import pytest

from uvd.core.episode import DemoSteps
from uvd.demos.check import notices, phases_missed
from uvd.demos.memory import Trajectory

PLAYED = np.random.default_rng(0).uniform(-1, 1, (500, 3))
USUAL = np.random.default_rng(1).uniform(-0.5, 1.5, (20, 3))


def changed(columns, value):
    obs = USUAL.copy()
    obs[:, columns] = value
    return DemoSteps(obs, np.zeros((20, 1)), None)


def test_nothing_is_said_of_usual_demonstrations():
    assert notices(changed([], 0), PLAYED) == []


@pytest.mark.parametrize(
    ("demos", "what"),
    [
        (changed([0, 2], USUAL[:, [0, 2]] + 5), "nowhere near the demonstrations in columns 0, 2"),
        (changed([1], USUAL[:, [1]] - 5), "comes nowhere near the demonstrations in column 1 of"),
        (changed([1], 0.5), "do not vary in column 1 of"),
        (DemoSteps(USUAL[:1], None, None), "a single step: an agent can learn to come there"),
        (DemoSteps(USUAL[[3] * 7], np.ones((7, 2)), None), "the 7 demonstrated steps are all"),
    ],
)  # fmt: skip
def test_what_is_unusual_is_said_in_a_line(demos, what):
    assert any(what in line for line in notices(demos, PLAYED))


def test_other_actions_at_the_same_state_are_not_the_same_steps():
    demos = DemoSteps(USUAL[[3, 3]], np.array([[0.0], [1.0]]), None)
    assert not any("all the same" in line for line in notices(demos, PLAYED))


def test_columns_that_never_vary_are_not_named():
    played = np.concatenate([PLAYED[:, :2], np.zeros((500, 1))], 1)
    assert notices(changed([2], 0.0), played) == []


def walk(period, steps=600):
    """A trajectory of a movement that repeats."""
    phase = 2 * np.pi * np.arange(steps)[:, None] / period
    obs = np.concatenate([np.sin(phase), np.cos(phase), np.sin(2 * phase)], 1)
    return Trajectory(obs, np.cos(phase))


@pytest.mark.parametrize(("period", "every", "better"), [(60, 20, 19), (57, 19, 20), (40, 20, 21)])
def test_steps_that_meet_few_phases_of_a_movement_are_said(period, every, better):
    line = phases_missed(walk(period), every)
    assert f"every = {every} chooses few phases" in line
    assert f"with every = {better}" in line or f"with every = {2 * every - better}" in line


@pytest.mark.parametrize(("period", "every"), [(60, 19), (60, 1), (61.8, 20), (60, 80)])
def test_steps_that_meet_many_phases_are_not(period, every):
    assert phases_missed(walk(period), every) is None


def test_without_actions_states_alone_decide():
    trajectory = walk(60)
    assert phases_missed(Trajectory(trajectory.obs), 20)
    aperiodic = np.random.default_rng(0).normal(size=(600, 3)).cumsum(0)
    assert phases_missed(Trajectory(aperiodic), 20) is None
