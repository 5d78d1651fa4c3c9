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
    other["preset"] = "paper"
    assert curves.run_labels([one, other]) == ["UVD", "UVD (preset paper)"]  # its horizon is 4
    other["settings"] |= {"gamma": 0.9}
    assert curves.run_labels([one, other])[1] == "UVD (preset paper, gamma 0.9)"
    assert curves.run_labels([other]) == ["UVD"]
    one["algorithm"] = other["algorithm"] = "mine"
    assert curves.run_labels([one, other])[0].startswith("MINE (gamma 0.98, horizon 1")


def test_runs_shown_more_or_less_are_not_one_curve(runs):
    (base,) = configs(runs, "td3")
    shown = {"demos": "a.h5", "sha256": "1", "trajectories": 1}
    few, more = ({**base, "demos": {**shown, **d}} for d in ({"every": 20}, {}))
    assert curves.run_labels([few, more]) == ["TD3 (every 20)", "TD3 (every 1)"]
    assert curves.run_labels([few, few]) == ["TD3", "TD3"]
    paper = {**more, "preset": "paper", "settings": {**base["settings"], "gamma": 0, "tau": 0}}
    assert curves.run_labels([few, paper])[1] == "TD3 (preset paper, gamma 0, tau 0, every 1)"


def test_a_method_keeps_its_colour(runs):
    few, all_ = configs(runs, "paper"), configs(runs, "td3", "future", "paper", "uvd")
    alone = curves.run_styles(few, curves.run_labels(few))
    among = curves.run_styles(all_, curves.run_labels(all_))
    assert alone["HER"] == among["HER (paper)"]
    assert among["UVD"].color == curves.COLORS["uvd"][0]
    assert len({style.color for style in among.values()}) == 4
    calm = {**all_[1], "settings": {**all_[1]["settings"], "action_penalty": 1.0}}
    twins = curves.run_styles([all_[1], calm], curves.run_labels([all_[1], calm]))
    assert len(set(twins.values())) == 2
    ratio = {"algorithm": "vdi", "preset": "ratio"}
    alone = curves.run_styles([ratio], ["VDI-RATIO"])
    among = curves.run_styles([{**ratio, "preset": "cheetah"}, ratio], ["VDI", "VDI-RATIO"])
    assert alone["VDI-RATIO"] == among["VDI-RATIO"]
    assert among["VDI"].color != alone["VDI-RATIO"].color == curves.COLORS["vdi"][1]
    kernel = {"algorithm": "vdi", "preset": "kernel-humanoid"}
    assert curves.method_of(kernel) == "vdi-kernel"
    assert curves.run_styles([kernel], ["K"])["K"].color == curves.COLORS["vdi"][2]
    unknown = curves.run_styles([{"algorithm": "new"}], ["NEW"])
    assert unknown["NEW"].color in curves.OTHERS


def test_curves_have_a_panel_a_task(runs, tmp_path):
    names = [runs[name] for name in ("uvd", "future", "paper", "td3")]
    curves.draw_curves(names, tmp_path / "new" / "two.png")
    assert_picture(tmp_path / "new" / "two.png", (1200, 1600), (500, 750))
    curves.draw_curves(names[:1], tmp_path / "one.png", "eval/success_ever")  # with a NaN
    assert_picture(tmp_path / "one.png", (600, 850), (500, 750))


def test_steps_are_logarithms_where_runs_are_of_very_different_lengths(runs, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "save", lambda figure, out: drawn.append(figure))
    long = make_run(tmp_path / "long", "her", PUSH, steps=(1000, 3000))
    near = make_run(tmp_path / "near", "her", PUSH, steps=(1000, 2900))
    for other in (long, near):
        curves.draw_curves([runs["td3"], other], tmp_path / "x.png")
    assert [figure.axes[0].get_xscale() for figure in drawn] == ["log", "linear"]


def test_runs_that_differ_in_seeds_are_one_curve(runs, tmp_path):
    more = make_run(tmp_path / "more", "td3", PUSH, steps=(200, 300))
    steps, values = curves._pooled([Run.open(runs["td3"]), Run.open(more)], "eval/success_final")
    assert steps.tolist() == [200, 300]
    np.testing.assert_allclose(values, [[0.5, 0.5], [2 / 3, 1.0]] * 2)
    apart = make_run(tmp_path / "apart", "td3", PUSH, steps=(150,))
    with pytest.raises(UserError, match="no common step"):
        curves.draw_curves([more, apart], tmp_path / "x.png")


def test_what_nobody_reports_takes_no_room(runs, tmp_path):
    chosen, metric = [runs["uvd"], runs["future"]], "eval/success_final"
    for name, watched in (("one", [metric]), ("two", [metric, "nobody/this"]), ("none", ["no/x"])):
        curves.draw_watched(chosen, tmp_path / f"{name}.png", watched)
    assert imread(tmp_path / "one.png").shape == imread(tmp_path / "two.png").shape
    assert not (tmp_path / "none.png").exists()


def test_a_task_with_other_settings_is_another_panel(tmp_path):
    run = make_run(tmp_path / "r", "td3", CLIFF, task_settings={"noise": 0.2})
    assert curves.task_name(Run.open(run).config) == "PointCliff-v0 (noise 0.2)"


def test_goals_and_rewards_share_no_figure(runs, tmp_path):
    earns = make_run(tmp_path / "earns", "td3", "PointLoop-v0", steps=())
    run = Run.open(earns)
    run.report({"step": 100, "seconds": 1.0, "eval/return": [1.0, 2.0]})
    run.close()
    assert curves.main_metric([earns]) == "eval/return"
    assert curves.main_metric([runs["td3"], runs["uvd"]]) == "eval/success_final"
    with pytest.raises(UserError, match=r"has goals and .*earns has rewards: draw them apart"):
        curves.main_metric([runs["td3"], earns])


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
def test_what_cannot_be_drawn_is_said_in_one_line(runs, tmp_path, draw, message):
    with pytest.raises(UserError, match=message) as error:
        draw(runs, tmp_path / "folder")
    assert "\n" not in str(error.value)
