import numpy as np
import pytest

from uvd.experiments import cliffwalk as study
from uvd.tasks import cliffwalk
from uvd.tasks.cliffwalk import Grid

HINDSIGHT = [name for name in study.LEARNERS if name.startswith("her")]
BLIND = [name for name in study.LEARNERS if name not in HINDSIGHT]


@pytest.fixture
def few_episodes(monkeypatch):
    monkeypatch.setattr(study, "ROUNDS", 2)
    monkeypatch.setattr(study, "EPISODES", 300)


@pytest.fixture(scope="module")
def played():
    """One set of roll-outs for all: what differs is only which goals are learned from them."""
    grid = Grid(slip=0.3)
    rng = np.random.default_rng(0)
    goals = np.where(rng.random(20_000) < 0.5, rng.choice(grid.safe, 20_000), grid.goal)
    policy = cliffwalk.greedy(cliffwalk.optimal_values(grid))
    return grid, cliffwalk.simulate(grid, policy, goals, 0.5, rng)


def misfit(grid, seen):
    """Chi-square of the counted transitions against the true dynamics, in standard deviations."""
    expected = seen.sum(2, keepdims=True) * cliffwalk.transitions(grid)[..., None]
    usable = ((expected >= 5) | (expected == 0)).all(2, keepdims=True) & (expected > 0)
    terms = np.where(usable, (seen - expected) ** 2 / np.where(usable, expected, 1), 0)
    freedom = (usable.sum(2) - usable.any(2)).sum()
    assert freedom > 80
    return (terms.sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("strategy", BLIND)
def test_goals_blind_to_the_next_state_show_the_true_dynamics(played, strategy):
    grid, episodes = played
    seen = study.LEARNERS[strategy].see(grid, episodes, np.random.default_rng(1))
    assert abs(misfit(grid, seen)) < 4


@pytest.mark.parametrize("strategy", HINDSIGHT)
def test_hindsight_goals_show_other_dynamics(played, strategy):
    grid, episodes = played
    seen = study.LEARNERS[strategy].see(grid, episodes, np.random.default_rng(1))
    assert misfit(grid, seen) > 40
    # And in the direction that the paper says: falls are seen too rarely with the true goal.
    fall = study.believed_fall(grid, study.Belief(seen, seen))
    assert fall < 0.85 * grid.slip / 2


def test_future_goals_come_later_in_the_same_episode(played):
    _, episodes = played
    few = cliffwalk.Episodes(*(part[:200] for part in episodes))
    goals = study.future(few, np.random.default_rng(2))
    for e, t in np.ndindex(goals.shape):
        assert goals[e, t] in few.states[e, t + 1 :]
    assert (goals[:, -1] == few.states[:, -1]).all()


def test_one_goal_in_five_is_the_intended_one(played):
    _, episodes = played
    goals = study.mixed(lambda e, rng: np.full(e.actions.shape, -1))(
        episodes, np.random.default_rng(3)
    )
    assert (goals >= 0).mean() == pytest.approx(0.2, abs=0.003)


def test_the_paper_alters_goals_of_unsuccessful_roll_outs_only(played):
    _, episodes = played
    goals = study.as_worded(episodes, np.random.default_rng(4))
    reached = (episodes.states[:, 1:] == episodes.goals[:, None]).any(1)
    assert 0.2 < reached.mean() < 0.8
    assert (goals[reached] == episodes.goals[reached, None]).all()
    assert (goals[~reached] != episodes.goals[~reached, None]).all()


@pytest.mark.parametrize("slip", [0.1, 0.2, 0.3])
def test_uvd_is_exact(slip):
    for row in study.measure(range(2), (slip,), ("uvd",)):
        assert row["max_error"] <= 0.02
        assert abs(row["bias_optimal"]) < 0.01
        assert abs(row["loss_final"]) <= 0.01


@pytest.mark.parametrize("slip", [0.1, 0.2, 0.3])
def test_her_as_worded_overestimates_and_falls(slip):
    for row in study.measure(range(2), (slip,), ("her-paper",)):
        assert row["bias_optimal"] > 0.1
        assert row["bias_own"] > 0.2
        assert row["fall"] < 0.2 * slip / 2
        assert row["loss_final"] >= 0.1


def test_usual_her_is_biased_little():
    for row in study.measure(range(2), (0.2,), ("her-future", "her-final", "her-episode")):
        assert 0.01 < row["bias_optimal"] < 0.1
        assert row["loss_final"] < 0.05


def test_without_slips_hindsight_is_right(monkeypatch):
    monkeypatch.setattr(study, "EPISODES", 4_000)
    for row in study.measure((0,), (0.0,)):
        assert row["bias_optimal"] == pytest.approx(0, abs=1e-9)
        assert row["loss_final"] == pytest.approx(0, abs=1e-9)


def test_no_data_is_worth_nothing(few_episodes):
    belief = study.learn(Grid(), "td", 0)
    assert (belief.q[~belief.seen.any(2)] == 0).all()
    never = Grid().cliff[0]  # no one intends to fall
    assert (belief.q[..., never] == 0).all()


def test_interval():
    rows = [{"strategy": "uvd", "slip": 0.1, "x": x / 100} for x in (1.0, 2.0, 3.0, 4.0, 5.0)]
    mean, width = study.interval(rows, "uvd", 0.1, "x")
    assert (mean, width) == pytest.approx((3.0, 2.7764 * np.sqrt(0.5)), rel=1e-4)
    assert study.interval(rows[1:2], "uvd", 0.1, "x") == (2.0, 0.0)


def test_table_and_figures(few_episodes, tmp_path):
    rows = study.measure(range(2), (0.1, 0.3))
    assert rows == study.measure(range(2), (0.1, 0.3))
    table = study.tabulate(rows)
    assert len(table.rows) == 2 * len(study.LEARNERS)
    assert {len(row) for row in table.rows} == {len(table.header)}
    uvd = dict(zip(table.header, table.rows[list(study.LEARNERS).index("uvd")]))
    assert uvd["slip"] == "0.1"
    assert uvd["strategy"] == "UVD"
    assert uvd["believed fall on the edge (true), %"].endswith("(5)")
    study.draw_bias(rows, tmp_path / "bias.png")
    study.draw_figure1(tmp_path / "figure1.png")
    for name in ("bias", "figure1"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
