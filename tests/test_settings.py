"""Settings: presets, overrides, and the checks before a run."""

import dataclasses

import pytest

from uvd.agents import ALGORITHMS
from uvd.agents.uvd import COMBINE
from uvd.errors import UserError
from uvd.settings import PRESETS, RunSettings, build, check, flatten, override


def test_every_preset_builds_and_passes_its_checks() -> None:
    assert PRESETS.keys() == ALGORITHMS.keys()
    for algorithm, presets in PRESETS.items():
        assert {"default", "paper"} <= presets.keys()
        for preset in presets:
            check(build(algorithm, preset, {}), RunSettings(), 50)


def test_paper_preset_is_table_1() -> None:
    table = {
        "gamma": 0.98, "batch": 512, "capacity": 1_500_000, "short": 50_000, "horizon": 4,
        "hidden": (400, 400), "noise": 0.1, "target_noise": 0.0, "actor_lr": 8e-4,
        "critic_lr": 8e-4, "critic_head": "linear", "flow_hidden": (300, 300), "bijectors": 6,
        "flow_lr": 2e-4, "updates_per_step": 1.0,
    }  # fmt: skip
    settings = flatten(build("uvd", "paper", {}))
    assert {k: settings[k] for k in table} == table
    for baseline in ("td3", "her"):
        settings = flatten(build(baseline, "paper", {}))
        assert settings["actor_lr"] == settings["critic_lr"] == 2e-4
        assert settings["critic_head"] == "tanh"


def test_paper_preset_leaves_nothing_to_the_default() -> None:
    for algorithm in ALGORITHMS:
        named = PRESETS[algorithm]["paper"].keys()
        missing = flatten(build(algorithm, "default", {})).keys() - named
        assert missing <= {"smoothing_end"}  # without smoothing it has no meaning


def test_override_reaches_both_levels_and_keeps_the_rest() -> None:
    config = build("uvd", "default", {"gamma": "0.9", "combine": "max", "hidden": "32,32"})
    assert config.td3.gamma == 0.9
    assert config.combine == "max"
    assert config.td3.hidden == (32, 32)
    assert override(config, flatten(config)) == config


@pytest.mark.parametrize(
    ("flat", "says"),
    [
        ({"gamm": 1}, "unknown setting 'gamm'; nearest: gamma"),
        ({"batch": "many"}, "'batch' takes a whole number"),
        ({"batch": 2.5}, "'batch' takes a whole number"),
        ({"gamma": "x"}, "'gamma' takes a float"),
    ],
)
def test_bad_values_are_named(flat: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        build("uvd", "default", flat)


@pytest.mark.parametrize("combine", COMBINE)
def test_the_sum_looks_one_step_ahead(combine: str) -> None:
    config = build("uvd", "default", {"combine": combine, "horizon": 4})
    if combine == "sum":
        with pytest.raises(UserError, match=r"^[^\n]*horizon = 4: take horizon = 1, or a max$"):
            check(config, RunSettings(), 50)
    else:
        check(config, RunSettings(), 50)  # a max may look further, and the reward reads no density


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert override(RunSettings(), {"steps": "1e6"}).steps == 1_000_000


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        build("uvd", "default", {}).combine = "max"  # type: ignore[misc]
