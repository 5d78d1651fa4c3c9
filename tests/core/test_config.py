"""Settings: what a field's annotation allows, and the way between nested and flat."""

import math
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Annotated, Literal

import pytest

from uvd.core.config import (
    Count,
    Discount,
    Layers,
    NotNegative,
    Positive,
    Range,
    Share,
    Size,
    flatten,
    override,
    require,
    validate,
)
from uvd.core.errors import UserError


@dataclass(frozen=True)
class Inner:
    count: Count = 1
    layers: Layers = (2, 3)
    head: Literal["tanh", "linear"] = "tanh"

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    size: Size = 0
    rate: Positive = 0.5
    noise: NotNegative = 0.0
    share: Share = 0.0
    gamma: Discount = 0.9
    bound: Annotated[float, Range(1)] = 4.0
    offset: int | None = None
    free: float = 0.0
    name: str = "a"
    on: bool = False

    def __post_init__(self) -> None:
        validate(self)
        require(self.rate <= self.bound, f"rate = {self.rate} is above bound = {self.bound}")


FLAT = {
    "count": 1, "layers": (2, 3), "head": "tanh", "size": 0, "rate": 0.5, "noise": 0.0,
    "share": 0.0, "gamma": 0.9, "bound": 4.0, "offset": None, "free": 0.0, "name": "a", "on": False,
}  # fmt: skip


def test_nested_settings_become_one_flat_list() -> None:
    assert flatten(Outer()) == FLAT
    assert override(Outer(), FLAT) == Outer()


def test_override_reaches_every_level_and_keeps_the_rest() -> None:
    changed = override(Outer(), {"count": 7, "gamma": 0.5})
    assert changed == Outer(inner=Inner(count=7), gamma=0.5)
    assert flatten(changed) == {**FLAT, "count": 7, "gamma": 0.5}
    with pytest.raises(FrozenInstanceError):
        changed.gamma = 0.1


@pytest.mark.parametrize(
    ("flat", "expected"),
    [
        ({"count": "1e6"}, 1_000_000),
        ({"count": 3.0}, 3),
        ({"rate": "0.25"}, 0.25),
        ({"rate": 1}, 1.0),
        ({"layers": "64,32"}, (64, 32)),
        ({"layers": [8]}, (8,)),
        ({"on": "true"}, True),
        ({"on": False}, False),
        ({"offset": "4"}, 4),
        ({"offset": None}, None),
        ({"name": 3}, "3"),
        ({"head": "linear"}, "linear"),
    ],
)
def test_values_are_read_as_the_fields_own_type(flat, expected) -> None:
    (name,) = flat
    value = flatten(override(Outer(), flat))[name]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("flat", "says"),
    [
        ({"count": "many"}, "setting 'count' takes a whole number, not 'many'"),
        ({"count": 2.5}, "setting 'count' takes a whole number, not '2.5'"),
        ({"count": math.inf}, "setting 'count' takes a whole number, not 'inf'"),
        ({"gamma": "x"}, "setting 'gamma' takes a number, not 'x'"),
        ({"layers": "8,x"}, "setting 'layers' takes a list of whole numbers, not '8,x'"),
        ({"layers": 8}, "setting 'layers' takes a list of whole numbers, not '8'"),
        ({"on": "yes"}, "setting 'on' takes a true or false, not 'yes'"),
        ({"gama": 1}, "unknown setting 'gama'; nearest: gamma"),
        ({"head": "tanhh"}, "unknown head 'tanhh'; nearest: tanh"),
    ],
)
def test_what_cannot_be_read_is_named(flat, says) -> None:
    with pytest.raises(UserError, match=f"^{says}"):
        override(Outer(), flat)


@pytest.mark.parametrize(
    ("flat", "says"),
    [
        ({"count": 0}, "count = 0 must be at least 1"),
        ({"layers": (4, 0)}, "layers = 0 must be at least 1"),
        ({"size": -1}, "size = -1 must not be negative"),
        ({"rate": 0.0}, "rate = 0.0 must be above 0"),
        ({"noise": -0.1}, "noise = -0.1 must not be negative"),
        ({"share": 1.1}, "share = 1.1 must lie between 0 and 1"),
        ({"share": -0.1}, "share = -0.1 must lie between 0 and 1"),
        ({"gamma": 0.0}, "gamma = 0.0 must lie between 0 and 1 (exclusive)"),
        ({"gamma": 1.0}, "gamma = 1.0 must lie between 0 and 1 (exclusive)"),
        ({"bound": 0.5}, "bound = 0.5 must be at least 1"),
        ({"free": math.nan}, "free = nan must be finite"),
        ({"free": -math.inf}, "free = -inf must be finite"),
        ({"rate": 5}, "rate = 5.0 is above bound = 4.0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(flat, says) -> None:
    with pytest.raises(UserError) as error:
        override(Outer(), flat)
    assert str(error.value) == says


def test_the_ends_of_a_range_belong_to_it() -> None:
    ends = {"count": 1, "size": 0, "noise": 0, "share": 1, "bound": 1, "layers": (1,)}
    override(Outer(), ends)
    override(Outer(), {"share": 0, "gamma": 1e-9, "rate": 1e-9, "free": -1e9})
