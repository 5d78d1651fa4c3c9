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


def test_a_run_of_a_batch_is_named_after_its_method(tmp_path):
    config = {"task": "my/Push-v0", "algorithm": "her"}
    run = Run(tmp_path / "my-Push-v0-her-paper", config)
    assert curves.method_name(run) == "HER-PAPER"
    assert curves.task_name(run) == "my/Push-v0"
    assert curves.task_name(Run(tmp_path, {**config, "task_settings": {"noise": 0.2}})) == (
        "my/Push-v0 (noise 0.2)"
    )


def test_a_method_keeps_its_colour():
    alone = curves.label_styles({"HER-PAPER": "her", "KDI-CHANGES": "kdi"})
    methods = {"TD3": "td3", "UVD": "uvd", "KDI": "kdi", "KDI-CHANGES": "kdi"}
    methods |= {f"HER-{name}": "her" for name in ("CALM", "PAPER", "FUTURE")}
    among = curves.label_styles(methods)
    assert alone == {name: among[name] for name in alone}
    assert among["UVD"] == curves.Style(curves.COLORS["uvd"][0], "-")
    assert among["HER-FUTURE"] == curves.Style(curves.COLORS["her"][0], "-")
    assert len(set(among.values())) == len(methods)
    firsts = [colors[0] for colors in curves.COLORS.values()]
    assert len(set(firsts)) == len(firsts)
    labels = {"HER": "her", "HER strategy=paper": "her", "KDI match=changes": "kdi"}
    alike = curves.label_styles(labels)  # what `label_runs` calls them
    assert alike["HER"] == among["HER-FUTURE"]
    assert alike["HER strategy=paper"] == among["HER-PAPER"]
    assert alike["KDI match=changes"] == among["KDI-CHANGES"]
    many = curves.label_styles({str(i): "uvd" for i in range(4)})
    assert len({style.color for style in many.values()}) == 4
    assert curves.label_styles({"NEW": "new"})["NEW"].color in curves.OTHERS


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
        pair = {
            name: curves.Curve(np.array([100, n]), np.ones((2, 2)), np.zeros(2))
            for name, n in zip(style, (300, end))
        }
        curves.draw_panel(ax, "task", pair, style)
    assert [ax.get_xscale() for ax in axes] == ["linear", "log"]
    assert axes[0].get_title() == "task, 2 seeds"


def test_a_curve_has_a_row_a_seed(runs):
    steps, values, seconds = curves.read_curve(Run.open(runs["td3"]), "eval/success_final")
    assert steps.tolist() == [100, 200, 300]
    assert seconds.tolist() == [1.0] * 3
    np.testing.assert_allclose(values, [[0.5] * 3, [1 / 3, 2 / 3, 1.0]])
    _, values, _ = curves.read_curve(Run.open(runs["td3"]), "eval/success_ever")
    assert np.isnan(values[1]).all()


def test_a_metric_that_no_run_reports_has_no_row(runs, tmp_path):
    chosen, metric = [runs["uvd"], runs["future"]], "eval/success_final"
    curves.draw_curves(chosen, tmp_path / "one.png", metric)
    curves.draw_curves(chosen, tmp_path / "two.png", metric, "no/such")
    curves.draw_curves(chosen, tmp_path / "three.png", metric, "eval/success_ever", "no/such")
    heights = [imread(tmp_path / f"{name}.png").shape[0] for name in ("one", "two", "three")]
    assert heights[0] == heights[1] < 0.7 * heights[2]
    with pytest.raises(UserError, match="no runs to draw"):
        curves.draw_curves(chosen, tmp_path / "none.png", "no/such", "no/other")


def test_scores_over_a_setting_of_the_task(tmp_path):
    task = "PointSlideNoise-v0"
    at = {0.0: "-noise_scale0.0", 1.0: "", 4.0: "-noise_scale4.0"}
    paths = [
        make_run(
            tmp_path / f"{task}{name}-{method}",
            method,
            task,
            steps=(100, round(300 * final)),
            task_settings={"noise_scale": scale} if name else None,
        )
        for method, final in (("td3", 0.4), ("her", 0.8))
        for scale, name in at.items()
    ]
    alone = make_run(tmp_path / f"{task}-usher", "usher", task)  # it has one value only
    other = make_run(tmp_path / f"{CLIFF}-her", "her", CLIFF)
    runs = [Run.open(path) for path in (*paths, alone, other)]
    found = curves.scores_over(runs, "noise_scale", 1.0, "eval/success_final")
    assert {name: list(by) for name, by in found.items()} == {"TD3": [*at], "HER": [*at]}
    assert found["HER"][1.0] == [0.5, 0.8]
    curves.draw_over([*paths, alone, other], tmp_path / "over.png", "noise_scale", 1.0)
    assert_picture(tmp_path / "over.png", (1200, 1600), (500, 750))
    curves.draw_over([other], tmp_path / "none.png", "noise_scale", 1.0)
    assert not (tmp_path / "none.png").exists()


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
