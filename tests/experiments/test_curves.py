import numpy as np
import pytest
from matplotlib.image import imread

from fakeruns import CLIFF, PUSH, assert_picture, make_run
from uvd.core.errors import UserError
from uvd.experiments import curves
from uvd.runs import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "uvd": make_run(folder / "uvd", "uvd", CLIFF),
        "future": make_run(folder / "future", "her", CLIFF),
        "paper": make_run(folder / "paper", "her", CLIFF, strategy="paper"),
        "td3": make_run(folder / "td3", "td3", PUSH),
        "fresh": make_run(folder / "fresh", "td3", PUSH, steps=()),
    }


def configs(runs, *names):
    return [Run.open(runs[name]).config for name in names]


def test_a_label_names_what_sets_a_run_apart(runs):
    assert curves.run_labels(configs(runs, "future", "uvd")) == ["HER", "UVD"]
    assert curves.run_labels(configs(runs, "future", "paper", "uvd")) == [
        "HER (future)",
        "HER (paper)",
        "UVD",
    ]
    one, other = configs(runs, "uvd", "uvd")
    other["settings"] |= {"horizon": 4}
    assert curves.run_labels([one, other]) == ["UVD", "UVD (horizon 4)"]
    elsewhere = {**other, "task": PUSH}
    assert curves.run_labels([one, elsewhere]) == ["UVD", "UVD"]
    other["preset"] = "paper"
    assert curves.run_labels([one, other]) == ["UVD", "UVD (preset paper)"]  # its horizon is 4
    other["settings"] |= {"gamma": 0.9}
    assert curves.run_labels([one, other])[1] == "UVD (preset paper, gamma 0.9)"
    assert curves.run_labels([other]) == ["UVD"]
    one["algorithm"] = other["algorithm"] = "mine"
    assert "gamma 0.98" in curves.run_labels([one, other])[0]


def test_runs_from_more_or_fewer_demonstrations_are_not_one_curve(runs):
    (base,) = configs(runs, "td3")
    demos = {"demos": "a.h5", "sha256": "1", "trajectories": 1}
    few, more = ({**base, "demos": {**demos, **d}} for d in ({"every": 20}, {}))
    assert curves.run_labels([few, more]) == ["TD3 (every 20)", "TD3 (every 1)"]
    assert curves.run_labels([few, few]) == ["TD3", "TD3"]


def test_kdi_by_changes_is_a_method_of_its_own():
    pairs, changes = (
        {"algorithm": "kdi", "task": "T", "preset": "default", "settings": {"match": match}}
        for match in ("pairs", "changes")
    )
    assert curves.method_labels([pairs, changes]) == ["KDI", "KDI-CHANGES"]
    assert curves.run_labels([pairs, changes]) == ["KDI (pairs)", "KDI (changes)"]
    styles = curves.run_styles([pairs, changes], ["KDI", "KDI-CHANGES"])
    assert [styles[name].color for name in styles] == list(curves.COLORS["kdi"][:2])


def test_a_method_keeps_its_colour(runs):
    few, all_ = configs(runs, "paper"), configs(runs, "td3", "future", "paper", "uvd")
    alone = curves.run_styles(few, curves.run_labels(few))
    among = curves.run_styles(all_, curves.run_labels(all_))
    assert alone["HER"] == among["HER (paper)"]
    assert among["UVD"].color == curves.COLORS["uvd"][0]
    assert len({style.color for style in among.values()}) == 4
    firsts = [colors[0] for colors in curves.COLORS.values()]
    assert len(set(firsts)) == len(firsts)
    calm = {**all_[1], "settings": {**all_[1]["settings"], "action_penalty": 1.0}}
    twins = curves.run_styles([all_[1], calm], curves.run_labels([all_[1], calm]))
    assert len(set(twins.values())) == 2
    unknown = curves.run_styles([{"algorithm": "new", "settings": {}}], ["NEW"])
    assert unknown["NEW"].color in curves.OTHERS


def test_curves_have_a_panel_a_task(runs, tmp_path):
    names = [runs[name] for name in ("uvd", "future", "paper", "td3")]
    curves.draw_curves(names, tmp_path / "new" / "two.png")
    assert_picture(tmp_path / "new" / "two.png", (1200, 1600), (500, 750))
    curves.draw_curves(names[:1], tmp_path / "one.png", "eval/success_ever")  # with a NaN
    assert_picture(tmp_path / "one.png", (600, 850), (500, 750))


def test_steps_are_logarithms_where_runs_are_of_very_different_lengths():
    figure = curves.Figure()
    axes = figure.subplots(2)
    style = {name: curves.Style("black", "-") for name in ("short", "long")}
    for ax, end in zip(axes, (2900, 3000)):
        pair = {name: (np.array([100, n]), np.ones((2, 2))) for name, n in zip(style, (300, end))}
        curves.draw_panel(ax, "task", pair, style)
    assert [ax.get_xscale() for ax in axes] == ["linear", "log"]
    assert axes[0].get_title() == "task, 2 seeds"


def test_runs_that_differ_in_seeds_are_one_curve(runs, tmp_path):
    more = make_run(tmp_path / "more", "td3", PUSH, steps=(200, 300))
    steps, values = curves.pooled([Run.open(runs["td3"]), Run.open(more)], "eval/success_final")
    assert steps.tolist() == [200, 300]
    np.testing.assert_allclose(values, [[0.5, 0.5], [2 / 3, 1.0]] * 2)
    apart = make_run(tmp_path / "apart", "td3", PUSH, steps=(150,))
    with pytest.raises(UserError, match="no common step"):
        curves.draw_curves([more, apart], tmp_path / "x.png")


def test_a_metric_that_no_run_reports_has_no_row(runs, tmp_path):
    chosen, metric = [runs["uvd"], runs["future"]], "eval/success_final"
    curves.draw_curves(chosen, tmp_path / "one.png", metric)
    curves.draw_curves(chosen, tmp_path / "two.png", metric, "no/such")
    curves.draw_curves(chosen, tmp_path / "three.png", metric, "eval/success_ever", "no/such")
    heights = [imread(tmp_path / f"{name}.png").shape[0] for name in ("one", "two", "three")]
    assert heights[0] == heights[1] < 0.7 * heights[2]
    with pytest.raises(UserError, match="no runs to draw"):
        curves.draw_curves(chosen, tmp_path / "none.png", "no/such", "no/other")


def test_a_task_with_other_settings_is_another_panel():
    config = {"task": CLIFF, "task_settings": {"noise": 0.2}}
    assert curves.task_name(config) == "PointCliff-v0 (noise 0.2)"


def test_goals_and_rewards_share_no_figure(runs, tmp_path):
    rewarded = make_run(tmp_path / "rewarded", "td3", "PointLoop-v0", steps=())
    Run.open(rewarded).report({"step": 100, "seconds": 1.0, "eval/return": [1.0, 2.0]})
    assert curves.main_metric([rewarded]) == "eval/return"
    assert curves.main_metric([runs["td3"], runs["uvd"]]) == "eval/success_final"
    with pytest.raises(UserError, match=r"has goals and .*rewarded has rewards: draw them apart"):
        curves.main_metric([runs["td3"], rewarded])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda r, out: curves.draw_curves([], out), "no runs"),
        (lambda r, out: curves.draw_curves([out], out), "not a run folder"),
        (lambda r, out: curves.draw_curves([r["fresh"]], out), "no reports yet"),
        (lambda r, out: curves.draw_curves([r["td3"]], out, "success"), "eval/success_ever"),
        (lambda r, out: curves.draw_curves([r["td3"]], out, "seconds"), "unknown metric"),
        (lambda r, out: curves.draw_curves([r["td3"]], out / "a.nonsense"), "cannot write"),
        (lambda r, out: curves.draw_curves([r["td3"]], r["td3"] / "config.toml/a"), "cannot"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(runs, tmp_path, draw, message):
    with pytest.raises(UserError, match=message) as error:
        draw(runs, tmp_path / "folder")
    assert "\n" not in str(error.value)
