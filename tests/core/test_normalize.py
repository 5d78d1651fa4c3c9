"""Feature ranges map data to [-1, 1], and what never moves neither blows up nor counts."""

import numpy as np

from uvd.core.normalize import (
    FAR_CLIP,
    FLOOR,
    find_achieved,
    fit_norm,
    ranges,
    spreads,
    varying_columns,
)
from uvd.core.policy import FEATURE_CLIP, normalised


def data():
    """Columns: wide, narrow but alive, constant, and a tremble far below the floor."""
    x = np.random.default_rng(0).uniform(-1, 1, (500, 4))
    x[:, 0] = 10 * x[:, 0] + 5
    x[:, 1] = 0.05 * x[:, 1] - 2
    x[:, 2] = 7.0
    x[:, 3] = 1e-4 * x[:, 3]
    return x


def test_live_columns_fill_the_unit_range():
    x = data()
    shift, scale = ranges(x)
    y = (x - shift) / scale
    np.testing.assert_allclose(y[:, :2].min(0), -1, atol=1e-9)
    np.testing.assert_allclose(y[:, :2].max(0), 1, atol=1e-9)


def test_dead_columns_take_the_widest_range():
    x = data()
    for measure in (ranges, spreads):
        shift, scale = measure(x)
        np.testing.assert_allclose(scale[2:], scale[0])
        y = (x - shift) / scale
        np.testing.assert_allclose(y[:, 2], 0, atol=1e-12)
        assert abs(y[:, 3]).max() < FLOOR


def test_floor_is_a_share_of_the_widest():
    x = np.array([[0.0, 0.0, 0.0], [1000.0, 1.01, 0.99]])
    assert ranges(x)[1].tolist() == [500.0, 0.505, 500.0]
    assert varying_columns(x) == (0, 1)
    assert varying_columns(data()) == (0, 1)


def test_all_dead_columns_do_not_divide_by_zero():
    shift, scale = ranges(np.full((5, 2), 3.0))
    assert shift.tolist() == [3, 3]
    assert (scale > 0).all()
    assert varying_columns(np.full((5, 2), 3.0)) == ()


def test_fit_norm_keeps_obs_and_goals_apart():
    norm = fit_norm(data(), np.array([[0.0, 1.0]] * 500), np.array([[2.0, 5.0]]))
    assert all(x.dtype == np.float32 for x in norm[:4])
    assert norm.achieved_columns is None
    np.testing.assert_allclose(norm.goal_shift, [1, 3])
    np.testing.assert_allclose(norm.goal_scale, [1, 2])
    assert norm.obs_shift.shape == norm.obs_scale.shape == (4,)
    np.testing.assert_allclose(norm.obs_scale[0], 10, rtol=0.02)


def test_the_achieved_goal_is_found_in_the_observation():
    obs = data()
    norm = fit_norm(obs, obs[:, [1, 0]], obs[:5, [1, 0]])
    np.testing.assert_array_equal(norm.achieved_columns, [1, 0])
    off = obs[:, [1, 0]]
    off[7, 1] += 1e-3
    assert fit_norm(obs, off, obs[:5, [1, 0]]).achieved_columns is None
    assert find_achieved(obs, np.zeros((500, 0))) is None


def test_without_goals_observations_go_by_their_standard_deviation():
    """They are clipped far out: a runner is faster than anything that random actions show."""
    x, none = data(), np.zeros((500, 0))
    norm = fit_norm(x, none, none)
    y = normalised(norm, x.astype(np.float32))
    np.testing.assert_allclose(y[:, :2].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(y[:, :2].std(0), 1, rtol=1e-4)
    fast = norm.obs_shift + 10 * norm.obs_scale
    np.testing.assert_allclose(normalised(norm, fast), 10, rtol=1e-4)
    assert FAR_CLIP > 10
    np.testing.assert_allclose(normalised(norm, norm.obs_shift + 99 * norm.obs_scale), FAR_CLIP)
    by_range = fit_norm(x, x[:, :1], x[:, :1])
    np.testing.assert_allclose(by_range.obs_scale, ranges(x)[1], rtol=1e-6)
    np.testing.assert_allclose(normalised(by_range, np.float32(x[:1] + 9e3)), FEATURE_CLIP)
