"""Exploration in worker processes: the same statistics as on the device (test_device.py)."""

import numpy as np
import pytest

from uvd.collect.exploration import RANDOM_ACTIONS, CollectConfig, Exploration, explore
from uvd.core.errors import UserError

STEPS = 30_000


@pytest.mark.parametrize(("share", "hold"), [(0.3, 3), (0.1, 10), (1.0, 5)])
def test_random_stretches_have_their_share_and_length(share, hold):
    how, rng = Exploration(0.2, share, hold), np.random.default_rng(0)
    action = np.float32([0.1, -0.2])
    taken, random = [np.zeros(2, np.float32)], [False]
    for _ in range(STEPS):
        step = explore(how, rng, action, taken[-1], random[-1])
        taken.append(step[0])
        random.append(step[1])
    taken, random = np.stack(taken[1:]), np.array(random[1:])
    assert taken.dtype == np.float32
    fresh = random & np.r_[True, (taken[1:] != taken[:-1]).any(-1)]
    assert random.mean() == pytest.approx(share, abs=5 * (hold / STEPS) ** 0.5)
    assert random.sum() / fresh.sum() == pytest.approx(hold, rel=5 / fresh.sum() ** 0.5)
    assert taken[fresh].std(0) == pytest.approx(1 / 3**0.5, rel=5 / fresh.sum() ** 0.5)
    if share < 1:
        others = taken[~random]
        assert others.std(0) == pytest.approx(0.2, rel=0.03)
        assert others.mean(0) == pytest.approx(action, abs=0.01)


def test_noise_is_clipped_unless_actions_are_stored_unclipped():
    rng = np.random.default_rng(0)
    action = np.float32([0.9, -1.0])

    def actions(how):
        return np.stack([explore(how, rng, action, action, False)[0] for _ in range(5000)])

    clipped = actions(Exploration(0.5))
    assert abs(clipped).max() == 1
    assert (clipped[:, 1] == -1).mean() == pytest.approx(0.5, abs=0.03)
    unclipped = actions(Exploration(0.5, store_unclipped=True))
    assert unclipped.std(0) == pytest.approx(0.5, rel=0.05)
    assert unclipped.mean(0) == pytest.approx(action, abs=0.03)
    np.testing.assert_array_equal(explore(Exploration(), rng, action, action, False)[0], action)


def test_settings_say_how_actions_are_explored():
    config = CollectConfig(noise=0.4, random=0.1, hold=2, store_unclipped=True)
    assert config.exploration == Exploration(0.4, 0.1, 2, True)
    assert config.probe_exploration == RANDOM_ACTIONS
    assert CollectConfig(probe_noise=0.3).probe_exploration == Exploration(0.3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"noise": -0.1}, "noise = -0.1 must not be negative"),
        ({"random": 1.5}, "random = 1.5 must lie between 0 and 1"),
        ({"hold": 0}, "hold = 0 must be at least 1"),
        ({"capacity": -1}, "capacity = -1 must not be negative"),
        ({"updates_per_step": 0.0}, "updates_per_step = 0.0 must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, says):
    with pytest.raises(UserError, match=says):
        CollectConfig(**settings)
