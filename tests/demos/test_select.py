"""The pairs that algorithms see: which steps, in which units, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randomdemos import TaskSizes, demos_of, made
from uvd.core.errors import UserError
from uvd.demos.files import load_demos
from uvd.demos.memory import Trajectory, digest
from uvd.demos.select import DemoSettings, demo_pairs, select
from uvd.demos.write import write_npz
from uvd.tasks import make_task


@given(
    lengths=st.lists(st.integers(20, 60), min_size=1, max_size=4),
    every=st.integers(1, 39),
    extra=st.integers(0, 1),
    data=st.data(),
)
def test_selected_rows_belong_together(lengths, every, extra, data) -> None:
    count = data.draw(st.none() | st.integers(1, len(lengths)))
    offset = data.draw(st.none() | st.integers(0, min(every, 20) - 1))
    written = made(lengths, obs=3, action=2, extra=extra)
    pairs = select(demos_of(*written), count, every, offset)
    rows = [
        (t.obs[step], t.action[step], t.obs[step + 1] if step + 1 < len(t.obs) else None)
        for t in written[:count]
        for step in range(every // 2 if offset is None else offset, t.steps, every)
    ]
    obs, action, next_obs = zip(*rows)
    np.testing.assert_array_equal(pairs.obs, obs)
    np.testing.assert_array_equal(pairs.action, action)
    if any(x is None for x in next_obs):
        assert pairs.next_obs is None
    else:
        np.testing.assert_array_equal(pairs.next_obs, next_obs)


def test_observations_alone_give_the_same_ones() -> None:
    written = made((40, 50))
    alone = demos_of(*(Trajectory(t.obs[: t.steps]) for t in written))
    pairs = select(alone, every=20)  # steps 10 and 30 of each, as in the authors' code
    np.testing.assert_array_equal(pairs.obs, select(demos_of(*written), every=20).obs)
    np.testing.assert_array_equal(pairs.obs[1], written[0].obs[30])
    assert pairs.action is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trajectories": 3}, "x has 2 trajectories, 3 were asked for"),
        ({"trajectories": 0}, "trajectories = 0 must be a whole number, at least 1"),
        ({"every": 2.5}, r"every = 2\.5 must be a whole number"),
        ({"every": 0}, "every = 0"),
        ({"every": 4, "offset": 4}, "offset = 4 must lie in 0 to every - 1 = 3"),
        ({"every": 4, "offset": -1}, "offset = -1 must lie in"),
        ({"every": 8}, "x: trajectory 1 has 4 steps, of which every = 8 takes none"),
    ],
)
def test_selections_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        select(demos_of(*made()), **settings)


@pytest.mark.parametrize("extra", [0, 1])
def test_pairs_are_in_the_tasks_units_with_the_previous_action(tmp_path: Path, extra: int) -> None:
    """Actions in [-1, 1]; before the first step the previous action is zero."""
    written = made(obs=17, extra=extra)
    folder = write_npz(written, tmp_path / "demos")
    settings = DemoSettings(str(folder), 1, 1, previous_action=True)
    pairs, sha256, _ = demo_pairs(settings, TaskSizes(), needs_actions_for="bc")
    assert sha256 == digest(load_demos(folder))
    t = written[0]
    action = np.clip(t.action / 2, -1, 1)
    previous = np.concatenate([np.zeros((1, 6)), action])
    obs = np.delete(t.obs, 8, 1)  # upstream's observations are accepted
    np.testing.assert_array_equal(pairs.obs, np.concatenate([obs[:7], previous[:7]], 1))
    np.testing.assert_array_equal(pairs.action, action)
    if extra:
        expected = np.concatenate([obs[1:], previous[1:]], 1)
        np.testing.assert_array_equal(pairs.next_obs, expected)
    else:
        assert pairs.next_obs is None
    with pytest.raises(UserError, match="demos: obs has 17 numbers a step, Other-v0 expects 16"):
        demo_pairs(settings, TaskSizes("Other-v0"))


def test_pairs_of_a_built_in_task_are_cut_to_its_bounds(tmp_path: Path) -> None:
    task = make_task("PointLoop-v0")
    written = made((30,), obs=task.obs_dim, action=task.action_dim)
    settings = DemoSettings(str(write_npz(written, tmp_path / "demos")))
    pairs, _, _ = demo_pairs(settings, task)
    np.testing.assert_array_equal(pairs.action, np.clip(written[0].action, -1, 1))
    np.testing.assert_array_equal(pairs.obs, written[0].obs[:-1])


def test_what_needs_actions_says_so(tmp_path: Path) -> None:
    folder = write_npz([Trajectory(t.obs) for t in made()], tmp_path / "demos")
    pairs, _, _ = demo_pairs(DemoSettings(str(folder)), TaskSizes())
    assert pairs.action is None
    with pytest.raises(UserError, match="demos has no actions: bc needs them"):
        demo_pairs(DemoSettings(str(folder)), TaskSizes(), "bc")
    with pytest.raises(UserError, match="has no actions: the previous action"):
        demo_pairs(DemoSettings(str(folder), previous_action=True), TaskSizes())
