"""The bodies of the emulator's own calls: from JSON to a dataclass, or a refusal that names field, value and
what is allowed."""

from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType
from typing import Any, TypeVar, get_args

import msgspec

from anbar.apps.emulator.body_models import summary
from anbar.apps.emulator.bounds import OutOfBounds
from anbar.apps.emulator.errors import ApiError, Json, invalid

Settings = TypeVar("Settings")

_WORDS = {int: "a whole number", float: "a number", bool: "true, false", str: "a text", NoneType: "null"}


def convert(body: Json, kind: type[Settings]) -> Settings:
    """`body` as a `kind`, a dataclass; ApiError when it does not fit."""
    types: dict[str, Any] = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for name, value in body.items():
        if name not in types:
            known = ", ".join(types) or "none"
            raise invalid(f"unknown field {name!r}; allowed: {known}", f"body.{name}")
        try:
            values[name] = msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise _refusal(name, f"is {_shown(value)}", types[name]) from error
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is MISSING and field.name not in values:
            raise _refusal(field.name, "is missing", types[field.name])
    try:
        return kind(**values)
    except OutOfBounds as error:
        raise invalid(str(error), f"body.{error.field}") from error


def describe(kind: type) -> Json:
    """The fields and their defaults; of words those that are allowed."""
    shown: dict[str, object] = {}
    for field in fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, Enum):
            shown[field.name] = [member.value for member in field.type]
        else:
            shown[field.name] = "required" if field.default is MISSING else field.default
    return shown


def _refusal(name: str, what: str, kind: Any) -> ApiError:
    return invalid(f"{name} {what}, allowed: {_allowed(kind)}", f"body.{name}")


def _allowed(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(member.value) for member in kind)
    return " or ".join(_WORDS[part] for part in get_args(kind) or (kind,))


def _shown(value: object) -> str:
    return summary(value) if isinstance(value, list | dict) else summary(repr(value))
