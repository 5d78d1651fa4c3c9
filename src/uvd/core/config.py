"""Settings as frozen dataclasses: checked when they are made, and one flat list of names for users.

A field's annotation says which values make sense. `validate`, called from `__post_init__`, refuses
all others by the field's name. Dataclasses may be nested; `flatten` and `override` go between the
nested form and the flat names of config.toml and the Python API.
"""

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple

from uvd.core.errors import UserError, nearest


class Range(NamedTuple):
    """What a number must lie in. The ends belong to it unless it is `exclusive`."""

    low: float
    high: float = math.inf
    exclusive: bool = False

    def check(self, name: str, value: float) -> None:
        """Refuses a value outside."""
        inside = self.low <= value <= self.high
        if self.exclusive:
            inside = self.low < value < self.high
        require(inside, f"{name} = {value} must {self}")

    def __str__(self) -> str:
        if self.high < math.inf:
            ends = f"{self.low:g} and {self.high:g}"
            return f"lie between {ends}" + (" (exclusive)" if self.exclusive else "")
        if self.exclusive:
            return f"be above {self.low:g}"
        return f"be at least {self.low:g}" if self.low else "not be negative"


Count = Annotated[int, Range(1)]
Size = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, exclusive=True)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Discount = Annotated[float, Range(0, 1, exclusive=True)]
Layers = Annotated[tuple[int, ...], Range(1)]


def require(ok: object, message: str) -> None:
    """Refuses what the user asked for unless it is `ok`."""
    if not ok:
        raise UserError(message)


def require_known(word: str, valid: Iterable[str], what: str) -> None:
    """Refuses a name that is none of the valid ones, and names the nearest of them."""
    if word not in valid:
        raise nearest(word, valid, what)


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _plain(hint: Any) -> tuple[Any, list[Range]]:
    """A field's type, and the ranges that its annotation names."""
    if typing.get_origin(hint) is not Annotated:
        return hint, []
    kind, *marks = typing.get_args(hint)
    return kind, [mark for mark in marks if isinstance(mark, Range)]


def validate(config: Any) -> None:
    """Refuses a value that its field's annotation does not allow; the error names the field."""
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        kind, ranges = _plain(hint)
        if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
            raise nearest(str(value), typing.get_args(kind), name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float):
                require(math.isfinite(number), f"{name} = {number} must be finite")
            for allowed in ranges:
                allowed.check(name, number)


def flatten(config: Any) -> dict[str, Any]:
    """Nested settings as one flat dictionary."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        flat.update(flatten(value) if dataclasses.is_dataclass(value) else {f.name: value})
    return flat


def override(config: Any, flat: Mapping[str, Any]) -> Any:
    """The settings with some of them replaced, at whichever level they live."""
    known = flatten(config)
    for name in flat:
        require_known(name, known, "setting")
    changes = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            inner = flatten(value).keys() & flat.keys()
            changes[f.name] = override(value, {name: flat[name] for name in inner})
        elif f.name in flat:
            changes[f.name] = _coerce(f.name, flat[f.name], _hints(type(config))[f.name])
    return dataclasses.replace(config, **changes)


_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """The value in the field's own type: `1e6`, `"64,64"` and `"true"` are understood."""
    kind, _ = _plain(hint)
    if isinstance(kind, UnionType):  # a type or None
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    try:
        if typing.get_origin(kind) is tuple:
            items = value.split(",") if isinstance(value, str) else value
            return tuple(_number(i, typing.get_args(kind)[0]) for i in items)
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        return str(value) if kind not in (int, float) else _number(value, kind)
    except (TypeError, ValueError, KeyError, OverflowError):
        wanted = _NAMES.get(kind, "list of whole numbers")
        raise UserError(f"setting '{name}' takes a {wanted}, not '{value}'") from None


def _number(value: Any, kind: type) -> float | int:
    number = float(value)
    if kind is int and number != int(number):
        raise ValueError(value)
    return kind(number)
