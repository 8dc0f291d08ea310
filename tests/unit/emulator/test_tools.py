"""Answers that a request forces: calls of tools, JSON of a schema, one of several texts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.json_answers import fitting, text_of

from .client import call

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time"}},
]
ARGUMENTS = '{"city": "water"}'
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[EmulatedEngine]:
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0, auto_tools=True)) as engine:
        yield engine


async def chat(engine: EmulatedEngine, **fields: object) -> dict[str, Any]:
    """The choice of an answer."""
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, "max_tokens": 200, **fields}
    status, text = await call(engine, CHAT, body)
    assert status == 200, text
    return dict(json.loads(text)["choices"][0])


async def chunks(engine: EmulatedEngine, **fields: object) -> list[dict[str, Any]]:
    """The choices of a stream's chunks."""
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, "max_tokens": 200, "stream": True}
    _, text = await call(engine, CHAT, {**body, **fields})
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line)["choices"][0] for line in lines]


async def test_a_named_tool_is_called(engine: EmulatedEngine) -> None:
    """Its arguments fit its parameters; the answer ended like any other, and has no text beside the call."""
    choice = await chat(engine, tool_choice=NAMED)
    (made,) = choice["message"]["tool_calls"]
    assert made["id"].startswith("chatcmpl-tool-")
    assert (made["type"], made["function"]) == ("function", {"name": "weather", "arguments": ARGUMENTS})
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


async def test_a_call_is_cut_off(engine: EmulatedEngine) -> None:
    """What the limit leaves of the arguments is shown of a named call, nothing of a required one."""
    choice = await chat(engine, tool_choice=NAMED, max_tokens=3)
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert ARGUMENTS.startswith(arguments)
    assert len(arguments) < len(ARGUMENTS)
    assert choice["finish_reason"] == "length"
    choice = await chat(engine, tool_choice="required", max_tokens=3)
    assert (choice["message"].get("tool_calls"), choice["finish_reason"]) == (None, "length")


async def test_a_named_call_is_streamed(engine: EmulatedEngine) -> None:
    """The first piece has the name, the others go on with the arguments."""
    first, *rest = (
        choice["delta"]["tool_calls"][0] for choice in (await chunks(engine, tool_choice=NAMED))[1:]
    )
    assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "weather")
    assert all(piece.keys() == {"index", "function"} for piece in rest)
    assert "".join(piece["function"]["arguments"] for piece in (first, *rest)) == ARGUMENTS


async def test_any_tool_is_called(engine: EmulatedEngine) -> None:
    """`required` calls the first one, and the call is why the answer ended, streamed or not."""
    choice = await chat(engine, tool_choice="required")
    wanted = {"name": "weather", "arguments": ARGUMENTS}
    assert [made["function"] for made in choice["message"]["tool_calls"]] == [wanted]
    assert choice["finish_reason"] == "tool_calls"
    streamed = await chunks(engine, tool_choice="required")
    calls = [made for choice in streamed for made in choice["delta"].get("tool_calls", [])]
    assert [made["function"] for made in calls] == [wanted]
    assert streamed[-1]["finish_reason"] == "tool_calls"


async def test_no_tool_is_called(engine: EmulatedEngine) -> None:
    """By itself the model calls none."""
    for fields in ({}, {"tool_choice": "none"}):
        choice = await chat(engine, **fields)
        assert "tool_calls" not in choice["message"]
        assert choice["message"]["content"]


async def test_constrained_answers(engine: EmulatedEngine) -> None:
    """JSON of a schema or of no schema, and the first of the texts that are allowed."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
    for fields, wanted in (
        ({"response_format": schema}, ARGUMENTS),
        ({"response_format": {"type": "json_object"}}, "{}"),
        ({"structured_outputs": {"json": json.dumps(CITY)}}, ARGUMENTS),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
    ):
        _, text = await call(engine, COMPLETION, {"prompt": "a", "max_tokens": 200, **fields})
        assert json.loads(text)["choices"][0]["text"] == wanted


def test_values_fit_their_schema() -> None:
    """Each kind of value, with its bounds; the first of alternatives; references."""
    schema = {
        "type": "object",
        "properties": {
            "least": {"type": "integer", "minimum": 5},
            "most": {"type": "number", "maximum": -2.5},
            "yes": {"type": "boolean"},
            "none": {"type": "null"},
            "one": {"enum": ["b", "c"]},
            "short": {"type": "string", "maxLength": 2},
            "long": {"type": "string", "minLength": 12},
            "many": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 2},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "maybe": {"type": ["string", "null"]},
        },
        "$defs": {"part": {"const": 7}},
    }
    assert fitting(schema) == {
        "least": 5,
        "most": -2.5,
        "yes": True,
        "none": None,
        "one": "b",
        "short": "wa",
        "long": "waterwaterwa",
        "many": [7, 7],
        "either": 1,
        "maybe": "water",
    }


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    """Wide and deep: the value stays small."""
    node = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefgh"}}
    assert len(text_of(fitting(node))) < 100_000
    assert len(text_of(fitting({"type": "array", "minItems": 10**9, "items": {"$ref": "#"}}))) < 100_000
    assert fitting({"$ref": "#"}) is None


KEYS = st.sampled_from(
    ["type", "properties", "items", "enum", "anyOf", "$ref", "minItems", "minLength", "maximum", "x"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just("object"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200)
@given(VALUES)
def test_whatever_a_schema_is_there_is_a_value(schema: object) -> None:
    """Also of what is no schema."""
    text_of(fitting(schema))
