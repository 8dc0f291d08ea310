"""What bodies may hold, as JSON Schema: the types of the structs by which they are read, and the ranges by
which they are judged. That these are the ranges of `bodies`, a test finds out at each bound.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from anbar.adapters.http.bodies import MAX_COUNT, UNTYPED_PARTS, Chat, Completion
from anbar.adapters.http.openai import Endpoint

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"

_ANYTHING: Schema = {"description": "Any JSON."}
_TEXT: Schema = {"type": "string", "minLength": 1}
_TOKENS: Schema = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
    "minItems": 1,
}
_PART: Schema = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]},
        *({"type": "object", "required": [kind]} for kind in sorted(UNTYPED_PARTS)),
    ]
}
_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"type": "string"},
        "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": _PART}]},
    },
    "required": ["role"],
}

RANGES: Mapping[str, Schema] = {
    "n": {"minimum": 1, "maximum": MAX_COUNT},
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "seed": {"minimum": -(2**63), "maximum": 2**63 - 1},
    "truncate_prompt_tokens": {"minimum": -1, "maximum": MAX_COUNT},
    "prompt_logprobs": {"minimum": -1},
    "max_completion_tokens": {"minimum": 1, "maximum": MAX_COUNT},
}
"""Numbers that have the same bounds in both bodies."""

_OWN: Mapping[Endpoint, Mapping[str, Schema]] = {
    Endpoint.CHAT: {
        "max_tokens": {"minimum": 1, "maximum": MAX_COUNT},
        "top_logprobs": {"minimum": -1},
        "messages": {"minItems": 1, "items": _MESSAGE},
    },
    Endpoint.COMPLETIONS: {
        "max_tokens": {"minimum": 0, "maximum": MAX_COUNT, "description": "0 only with `echo: true`."},
        "logprobs": {"minimum": -1},
        "prompt": {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1},
                _TOKENS,
                {"type": "array", "items": _TOKENS, "minItems": 1},
            ],
            "description": "Needed, unless there are `prompt_embeds`.",
        },
    },
}

_KV = "Refused with 400 unless `router.client_kv_fields: allow`."
_NOTES: Mapping[str, str] = {
    "model": "A model of `GET /v1/models`, or a name of `router.models`.",
    "cache_salt": _KV,
    "kv_transfer_params": _KV,
    "ec_transfer_params": _KV,
    "stream_options": "Only with `stream: true`.",
    "logit_bias": "Its keys are token ids.",
}
_BODIES = {Endpoint.CHAT: Chat, Endpoint.COMPLETIONS: Completion}


def components(types: tuple[type, ...]) -> dict[str, Schema]:
    """The schemas of types by their names; what is not typed may be anything."""
    return msgspec.json.schema_components(types, schema_hook=lambda kind: _ANYTHING, ref_template=REF)[1]


def body_schemas() -> dict[str, Schema]:
    """The schemas of both bodies, and of what is in them, by name. Fields that are not named go to the engine
    as they are."""
    schemas = components(tuple(_BODIES.values()))
    for endpoint, kind in _BODIES.items():
        fields = schemas[kind.__name__]["properties"]
        for name, range_ in {**RANGES, **_OWN[endpoint]}.items():
            if name in fields:
                _narrow(fields[name], range_)
        for name, text in _NOTES.items():
            fields[name]["description"] = text
    return schemas


def body_of(endpoint: Endpoint) -> str:
    """The name of an endpoint's body among `body_schemas`."""
    return _BODIES[endpoint].__name__


def _narrow(field: Schema, range_: Schema) -> None:
    """Put a range where the type is, which mostly is one of a type and null."""
    options = field.get("anyOf", [field])
    options[0].update(range_)
