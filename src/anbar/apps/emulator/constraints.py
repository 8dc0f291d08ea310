"""Structured outputs and other fields that vLLM checks as a whole.

Source: vLLM 0.32 `sampling_params.py`, `entrypoints/generate/base/protocol.py`. Schemas, expressions and
grammars themselves are not looked at.
"""

import json
from collections.abc import Mapping
from typing import cast

from anbar.apps.emulator.errors import ApiError, Json, LateError
from anbar.apps.emulator.json_answers import fitting, text_of

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_DEFAULTS: Mapping[str, object] = {
    "json": None,
    "regex": None,
    "choice": None,
    "grammar": None,
    "json_object": None,
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
    "whitespace_pattern": None,
    "structural_tag": None,
    "_backend": None,
    "_backend_was_auto": False,
}


def check_typed(body: Json) -> None:
    """ApiError for a typed body that vLLM refuses at once."""
    outputs = cast(Json | None, body.get("structured_outputs"))
    if outputs is not None:
        _check_kinds(outputs)
    repetition = cast(Json | None, body.get("repetition_detection"))
    if repetition is not None:
        _check_repetition(repetition)


def check_constraint(body: Json) -> None:
    """What is refused when the constraint is made out: `response_format` and `structured_outputs` together;
    LateError for what the engine's client finds."""
    outputs = cast(Json | None, body.get("structured_outputs"))
    wanted = cast(Json | None, body.get("response_format"))
    if wanted is not None and wanted["type"] != "text":
        outputs = {**(outputs or {}), **_override(wanted)}
        _check_kinds(outputs)
    if outputs is None:
        return
    if outputs.get("choice") == []:
        raise LateError("Choice '[]' cannot be an empty list")
    if outputs.get("json_object") is False:
        text = "structured_outputs.json_object must be True if set; omit structured_outputs to disable "
        raise LateError(f"{text}structured outputs")
    schema = outputs.get("json")
    if isinstance(schema, str) and not _is_json(schema):
        raise LateError("Invalid JSON grammar specification.")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # also what is nested more deeply than it can be read
        return False
    return True


def constrained_text(body: Json) -> str | None:
    """What a checked body constrains its answer to; None: to nothing that is understood here."""
    outputs = cast(Json, body.get("structured_outputs") or {})
    wanted = cast(Json | None, body.get("response_format"))
    if wanted is not None and wanted["type"] != "text":
        outputs = {**outputs, **_override(wanted)}
    if outputs.get("choice"):
        return cast(list[str], outputs["choice"])[0]
    schema = outputs.get("json")
    if schema is not None:
        return text_of(fitting(json.loads(schema) if isinstance(schema, str) else schema))
    return text_of({}) if outputs.get("json_object") else None


def _override(wanted: Json) -> Json:
    if wanted["type"] == "json_object":
        return {"json_object": True}
    if wanted["type"] == "json_schema":
        return {"json": cast(Json, wanted["json_schema"]).get("schema")}
    return {"structural_tag": "{}"}


def _check_kinds(outputs: Json) -> None:
    number = sum(outputs.get(kind) is not None for kind in _KINDS)
    if number == 1:
        return
    shown = {**_DEFAULTS, **{name: value for name, value in outputs.items() if name in _DEFAULTS}}
    start = "You can only use" if number else "You must use"
    what = "multiple" if number else "none"
    text = f"{start} one kind of structured outputs constraint but {what} are specified: {shown}"
    raise ApiError(text)


def _check_repetition(detection: Json) -> None:
    most, least = cast(int, detection["max_pattern_size"]), cast(int, detection["min_pattern_size"])
    if least < 0 or most < least:
        text = "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
        raise ApiError(f"{text}Set both to 0 to disable repetitive pattern detection.")
    if most > 0 and cast(int, detection["min_count"]) < 2:
        text = "min_count must be >= 2 to detect repetitive patterns in engine output. If you do not wish to "
        raise ApiError(f"{text}detect repetitive patterns, set max_pattern_size to 0.")
