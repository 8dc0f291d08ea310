"""Text that fits a JSON schema, for requests that constrain their answer to one.

Every property is there, with the simplest value that its schema allows as far as that is easy to see: types,
enumerations, bounds of numbers and lengths, the first of alternatives, references within the schema.
Patterns, formats and conditions are not looked at.
"""

import json
from collections.abc import Mapping
from typing import cast

_MOST_VALUES = 1000
"""Schemas that refer to themselves would never end."""
_MOST_NESTED = 64
_MOST_CHARS = 1000
_WORD = "water"

Schema = Mapping[str, object]


def fitting(schema: object) -> object:
    """A value that fits `schema`; an object for one that says nothing."""
    return _Maker(_mapping(schema)).value(schema, 0) if schema else {}


def text_of(value: object) -> str:
    """As a model writes it."""
    return json.dumps(value, ensure_ascii=False)


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
                rest = {other: value for other, value in schema.items() if other != name}
                return self.value({**rest, **_mapping(branches[0])}, depth + 1)
        return self._of_kind(_kind(schema), schema, depth)

    def _of_kind(self, kind: object, schema: Schema, depth: int) -> object:
        if kind == "object":
            parts = _mapping(schema.get("properties"))
            return {name: self.value(part, depth + 1) for name, part in parts.items() if self._num_left > 0}
        if kind == "array":
            items: list[object] = []
            while len(items) < _number(schema, "minItems", 1) and self._num_left > 0:
                items.append(self.value(schema.get("items", {}), depth + 1))
            return items
        if kind == "boolean":
            return True
        if kind == "null":
            return None
        return _word(schema) if kind == "string" else _amount(schema, whole=kind == "integer")

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


def _amount(schema: Schema, *, whole: bool) -> float:
    least = _number(schema, "minimum", _number(schema, "exclusiveMinimum", 0) + 1)
    amount = min(least, _number(schema, "maximum", least))
    return int(amount) if whole else amount


def _number(schema: Schema, name: str, default: float) -> float:
    value = schema.get(name)
    return value if isinstance(value, int | float) and abs(value) < 2**53 else default


def _mapping(value: object) -> Schema:
    return cast(Schema, value) if isinstance(value, dict) else {}
