"""From JSON to a dataclass, or a refusal that names field, value and what is allowed."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType
from typing import Any, TypeVar, get_args

import msgspec

from anbar.apps.emulator.body_models import summary
from anbar.apps.emulator.bounds import OutOfBounds

Settings = TypeVar("Settings")

_WORDS = {int: "a whole number", float: "a number", bool: "true, false", str: "a text", NoneType: "null"}


class WrongField(ValueError):
    """A field is unknown, missing or wrong; `field` names it."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def convert(values: Mapping[str, Any], kind: type[Settings]) -> Settings:
    """`values` as a `kind`, a dataclass; WrongField when they do not fit."""
    types: dict[str, Any] = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    converted = {}
    for name, value in values.items():
        if name not in types:
            raise WrongField(name, f"unknown field {name!r}; allowed: {', '.join(types) or 'none'}")
        try:
            converted[name] = msgspec.convert(value, types[name])
            if isinstance(value, str):
                value.encode()  # fails for half a surrogate pair
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise WrongField(name, f"{name} is {_shown(value)}, allowed: {_allowed(types[name])}") from error
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is MISSING and field.name not in converted:
            raise WrongField(field.name, f"{field.name} is missing, allowed: {_allowed(field.type)}")
    try:
        return kind(**converted)
    except OutOfBounds as error:
        raise WrongField(error.field, str(error)) from error


def describe(kind: type) -> dict[str, object]:
    """The fields and their defaults; of words those that are allowed."""
    shown: dict[str, object] = {}
    for field in fields(kind):
        words = next((kind for kind in get_args(field.type) or (field.type,) if _is_enum(kind)), None)
        if words is not None:
            shown[field.name] = [member.value for member in words]
        else:
            shown[field.name] = "required" if field.default is MISSING else field.default
    return shown


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _allowed(kind: Any) -> str:
    return " or ".join(map(_words, get_args(kind) or (kind,)))


def _words(kind: type) -> str:
    if issubclass(kind, Enum):
        return ", ".join(str(member.value) for member in kind)
    return _WORDS[kind]


def _shown(value: object) -> str:
    return summary(value) if isinstance(value, list | dict) else summary(repr(value))
