"""Text that fits a JSON schema, for requests that constrain their answer to one.

Every property is there, with the simplest value that its schema allows as far as that is easy to see: types,
enumerations, bounds of numbers and lengths, the first of alternatives, references within the schema.
Patterns, formats and conditions are not looked at.
"""

import json
import math
from collections.abc import Mapping
from typing import cast

from anbar.apps.emulator.errors import ApiError
from anbar.apps.emulator.text import whole_characters

_MOST_VALUES = 1000
"""Schemas that refer to themselves would never end."""
_MOST_NESTED = 64
_MOST_CHARS = 1000
_WORD = "water"
_FAR = 2**53
"""No bound of a number is as far away."""
_LEAST, _MOST = (
    ("minimum", "exclusiveMinimum", "minLength", "minItems"),
    ("maximum", "exclusiveMaximum", "maxLength", "maxItems"),
)

Schema = Mapping[str, object]


def fitting(schema: object) -> object:
    """A value that fits `schema`; an object for one that says nothing."""
    return _Maker(_mapping(schema)).value(schema, 0) if schema else {}


def text_of(value: object) -> str:
    """As a model writes it. ApiError for a value that is nested too deeply to be written."""
    try:
        return whole_characters(json.dumps(value, ensure_ascii=False))
    except RecursionError as error:
        raise ApiError("The schema is nested too deeply.") from error


class _Maker:
    """Makes a value for one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._num_left = _MOST_VALUES

    def value(self, schema: object, depth: int) -> object:
        """A value for a part of the schema, `depth` parts below its root."""
        self._num_left -= 1
        if not isinstance(schema, dict) or self._num_left < 0 or depth > _MOST_NESTED:
            return None
        for name in ("const", "default"):
            if name in schema:
                return schema[name]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return schema["enum"][0]
        if "$ref" in schema:
            return self.value(self._referred(str(schema["$ref"])), depth + 1)
        for name in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(name)
            if isinstance(branches, list) and branches:
                whole: Schema = {other: value for other, value in schema.items() if other != name}
                for branch in branches[: self._num_left if name == "allOf" else 1]:
                    whole = self._with(whole, branch)
                return self.value(whole, depth + 1)
        return self._of_kind(_kind(schema), schema, depth)

    def _with(self, schema: Schema, branch: object) -> Schema:
        """A schema that asks for what both do: all properties, and the tighter bounds."""
        part = _mapping(branch)
        self._num_left -= 1
        if "$ref" in part and self._num_left > 0:
            part = _mapping(self._referred(str(part["$ref"])))
        both = {**schema, **part}
        one, other = _mapping(schema.get("properties")), _mapping(part.get("properties"))
        if one and other:
            shared = {name: {"allOf": [one[name], other[name]]} for name in one if name in other}
            both["properties"] = {**one, **other, **shared}
        for names, tighter in ((_LEAST, max), (_MOST, min)):
            for name in names:
                bounds = [_number(of, name, math.inf) for of in (schema, part)]
                if math.inf not in bounds:
                    both[name] = tighter(bounds)
        return both

    def _of_kind(self, kind: object, schema: Schema, depth: int) -> object:
        if kind == "object":
            parts = _mapping(schema.get("properties"))
            return {name: self.value(part, depth + 1) for name, part in parts.items() if self._num_left > 0}
        if kind == "array":
            items: list[object] = []
            least = min(_number(schema, "minItems", 1), _number(schema, "maxItems", _FAR))
            while len(items) < least and self._num_left > 0:
                items.append(self.value(schema.get("items", {}), depth + 1))
            return items
        if kind == "boolean":
            return True
        if kind == "null":
            return None
        if kind == "string":
            return _word(schema)
        return _whole(schema) if kind == "integer" else _amount(schema)

    def _referred(self, pointer: str) -> object:
        found: object = self._root
        for part in pointer.removeprefix("#").split("/")[1:]:
            found = _mapping(found).get(part.replace("~1", "/").replace("~0", "~"))
        return found


def _kind(schema: Schema) -> object:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return kind[0] if isinstance(kind, list) and kind else kind


def _word(schema: Schema) -> str:
    least = min(int(_number(schema, "minLength", 0)), _MOST_CHARS)
    most = int(_number(schema, "maxLength", max(least, len(_WORD))))
    return (_WORD * (least // len(_WORD) + 1))[: max(0, least, min(most, len(_WORD)))]


def _whole(schema: Schema) -> int:
    """One, or the number that is next to it within the bounds."""
    least = math.ceil(_number(schema, "minimum", -_FAR))
    above = math.floor(_number(schema, "exclusiveMinimum", -_FAR))
    most = math.floor(_number(schema, "maximum", _FAR))
    below = math.ceil(_number(schema, "exclusiveMaximum", _FAR))
    return min(max(1, least, above + 1), most, below - 1)


def _amount(schema: Schema) -> float:
    """One, or a number near it within the bounds."""
    above, below = _number(schema, "exclusiveMinimum", -_FAR), _number(schema, "exclusiveMaximum", _FAR)
    least = max(_number(schema, "minimum", -_FAR), above)
    most = min(_number(schema, "maximum", _FAR), below)
    amount = min(max(1, least), most)
    step = min(1, (most - least) / 2)
    if amount == above:
        return amount + step
    return amount - step if amount == below else amount


def _number(schema: Schema, name: str, default: float) -> float:
    value = schema.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return cast(float, value) if is_number and abs(cast(float, value)) < _FAR else default


def _mapping(value: object) -> Schema:
    return cast(Schema, value) if isinstance(value, dict) else {}
