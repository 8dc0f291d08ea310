"""What the values of flags may be. Each of these reads one, or says what is allowed."""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn, TypeVar

from anbar.apps.emulator.settings import Runner

MAX_PORT = 65_535
_FASTEST = 1e6
"""Beyond that (or its inverse) the clock's own precision would show."""

Choice = TypeVar("Choice", bound=Enum)


def whole(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or (least is not None and value < least) or (most is not None and value > most):
            below, above = "" if least is None else f" from {least}", "" if most is None else f" to {most}"
            _refuse(text, f"whole numbers{below}{above}")
        return value

    return number


def speed(text: str) -> float:
    """How much faster time passes."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 / _FASTEST <= value <= _FASTEST:
        _refuse(text, f"numbers from {1 / _FASTEST:f} to {_FASTEST:.0f}")
    return value


_THOUSANDS = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def amount(text: str) -> int:
    """vLLM's human-readable numbers: 1k is a thousand, 1K is 1,024; thousands may have decimals."""
    found = re.fullmatch(r"(\d{1,18})(\.\d{1,18})?([kmgtKMGT]?)", text.strip())
    value = 0
    if found is not None:
        number, decimals, unit = found.groups()
        if decimals is None:
            value = int(number) * {**_THOUSANDS, **_BINARY, "": 1}[unit]
        elif unit in _THOUSANDS:
            value = int(float(number + decimals) * _THOUSANDS[unit])
    if value < 1:
        _refuse(text, "whole numbers from 1, also as 2k, 1.5m, 4g, 1t (of 1000) or 2K, 64M, 4G, 1T (of 1024)")
    return value


def length(text: str) -> int:
    """An amount; `auto` and -1 are vLLM's -1."""
    return -1 if text.strip().lower() in ("auto", "-1") else amount(text)


def json_object(text: str) -> Mapping[str, Any]:
    """An object of JSON."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        _refuse(text, "a JSON object")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and infinities, which are not JSON


def lora(text: str) -> tuple[str, str]:
    """Name and path of an adapter."""
    if text.startswith("{"):
        entry = json_object(text)
        name, path = str(entry.get("name") or ""), str(entry.get("path") or "")
    else:
        name, _, path = text.partition("=")
    if not name or not path:
        _refuse(text, "NAME=PATH")
    return name, path


def member(kind: type[Choice]) -> Callable[[str], Choice]:
    """One of an enum's words."""

    def read(text: str) -> Choice:
        try:
            return kind(text)
        except ValueError:
            _refuse(text, ", ".join(str(choice.value) for choice in kind))

    return read


def runner(text: str) -> Runner:
    """vLLM's `--runner`; `auto` is generation."""
    if text == "auto":
        return Runner.GENERATE
    try:
        return Runner(text)
    except ValueError:
        _refuse(text, ", ".join(("auto", *(choice.value for choice in Runner))))


def _refuse(text: str, allowed: str) -> NoReturn:
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    raise argparse.ArgumentTypeError(f"{shown!r}; allowed: {allowed}")
