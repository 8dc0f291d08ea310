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


@pytest.mark.parametrize(
    ("answer", "fields"), [(None, {"stop": ["city"]}), ("water", {}), ("", {}), (None, {"min_tokens": 150})]
)
async def test_a_required_call_that_is_none(
    engine: EmulatedEngine, answer: str | None, fields: dict[str, object]
) -> None:
    """A stop string ends it, another answer is fixed, or it is written more than once. No call is shown,
    streamed or not; as in vLLM, whose streams look at what they sent, only whole answers still name a call as
    their end."""
    engine.answer = answer
    choice = await chat(engine, tool_choice="required", **fields)
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    streamed = await chunks(engine, tool_choice="required", **fields)
    assert not any("tool_calls" in choice["delta"] for choice in streamed)
    assert streamed[-1]["finish_reason"] == "stop"


async def test_a_named_call_has_whatever_was_written(engine: EmulatedEngine) -> None:
    """The same arguments in a stream as in a whole answer, with the same end."""
    for answer, fields in ((None, {"stop": ["city"]}), ("water", {})):
        engine.answer = answer
        choice = await chat(engine, tool_choice=NAMED, **fields)
        (made,) = choice["message"]["tool_calls"]
        streamed = await chunks(engine, tool_choice=NAMED, **fields)
        pieces = [choice["delta"]["tool_calls"][0]["function"]["arguments"] for choice in streamed[1:]]
        assert "".join(pieces) == made["function"]["arguments"] == ("water" if answer else '{"')
        assert streamed[-1]["finish_reason"] == choice["finish_reason"] == "stop"


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


HALF = "\ud800"
"""Of a surrogate pair, which JSON can express."""


async def test_half_a_character(engine: EmulatedEngine) -> None:
    """In a schema that comes as text, or an answer that is set, it is replaced; in a body it is refused."""
    outputs = {"structured_outputs": {"json": '{"const": "a\\ud800"}'}}
    status, text = await call(engine, COMPLETION, {"prompt": "a", "max_tokens": 50, **outputs})
    assert (status, json.loads(text)["choices"][0]["text"]) == (200, '"a?"')
    outputs = {"structured_outputs": {"choice": [HALF]}}
    assert (await call(engine, COMPLETION, {"prompt": "a", **outputs}))[0] == 400
    engine.answer = HALF
    status, text = await call(engine, COMPLETION, {"prompt": "a", "max_tokens": 50})
    assert (status, json.loads(text)["choices"][0]["text"]) == (200, "?")
    engine.answer = None
    assert (await call(engine, "/emulator/answer", {"text": HALF}))[0] == 400
    assert engine.answer is None
    assert engine.num_defects == 0


@pytest.mark.parametrize("depth", [*range(800, 1000, 4), 100_000])
async def test_schemas_that_are_nested_too_deeply(engine: EmulatedEngine, depth: int) -> None:
    """Read, or refused where Python can read or write them no more."""
    schema = f'{{"const": {"[" * depth}{"]" * depth}}}'
    outputs = {"structured_outputs": {"json": schema}}
    status, text = await call(engine, COMPLETION, {"prompt": "a", "max_tokens": 1, **outputs})
    assert status == (200 if depth == 800 else 400 if depth == 100_000 else status)
    assert (status, engine.num_defects) in ((200, 0), (400, 0)), text


def whole(**bounds: object) -> object:
    return fitting({"type": "integer", **bounds})


def amount(**bounds: object) -> object:
    return fitting({"type": "number", **bounds})


def test_bounds_of_numbers() -> None:
    """Whole numbers are within bounds that are none; exclusive bounds are not reached; what is no number
    bounds nothing."""
    assert whole(minimum=1.5) == 2
    assert whole(maximum=0.5) == 0
    assert whole(maximum=-0.5) == -1
    assert whole(exclusiveMinimum=1) == whole(exclusiveMinimum=1.5) == 2
    assert whole(exclusiveMaximum=1) == whole(exclusiveMaximum=0.5) == 0
    assert whole(exclusiveMinimum=True, minimum=-3, exclusiveMaximum=True) == 1
    assert amount(exclusiveMaximum=-3) == -4
    assert amount(exclusiveMinimum=0, exclusiveMaximum=1) == amount(exclusiveMaximum=1, minimum=0) == 0.5
    assert amount(exclusiveMinimum=4, exclusiveMaximum=4.5) == 4.25
    assert fitting({"type": "array", "maxItems": 0}) == []
    assert fitting({"type": "array", "minItems": True}) == ["water"]


BOUND = st.none() | st.integers(-5, 5) | st.sampled_from([-1.5, -0.5, 0.5, 1.5])


@given(BOUND, BOUND, BOUND, BOUND, st.booleans())
def test_numbers_are_within_their_bounds(
    least: float | None, above: float | None, most: float | None, below: float | None, is_whole: bool
) -> None:
    """Wherever a number near is, one is found."""
    bounds = {"minimum": least, "exclusiveMinimum": above, "maximum": most, "exclusiveMaximum": below}

    def fits(number: float) -> bool:
        return not (
            (least is not None and number < least)
            or (above is not None and number <= above)
            or (most is not None and number > most)
            or (below is not None and number >= below)
        )

    found = fitting({"type": "integer" if is_whole else "number", **bounds})
    assert isinstance(found, int | float)
    candidates = range(-10, 11) if is_whole else [number / 4 for number in range(-40, 41)]
    assert fits(found) or not any(map(fits, candidates))
    assert isinstance(found, int) or not is_whole


def test_all_of_several_schemas() -> None:
    """The value has the properties of all of them, also of one that is referred to, within the tighter of
    their bounds, and what two say of one property holds."""
    schema = {
        "properties": {"a": {"type": "integer", "minimum": 2}},
        "allOf": [
            {"$ref": "#/$defs/b"},
            {"properties": {"a": {"minimum": 3}, "c": {"allOf": [{"minLength": 7}, {"minLength": 6}, {}]}}},
            True,
        ],
        "$defs": {"b": {"type": "object", "properties": {"b": {"const": 1}}}},
    }
    assert fitting(schema) == {"a": 3, "b": 1, "c": "waterwa"}
    many = {"properties": {"a": {"type": "string"}}, "allOf": [{"$ref": "#"}] * 10_000}
    assert len(text_of(fitting(many))) < 100_000


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    """Wide and deep: the value stays small."""
    node = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefgh"}}
    assert len(text_of(fitting(node))) < 100_000
    assert len(text_of(fitting({"type": "array", "minItems": 10**9, "items": {"$ref": "#"}}))) < 100_000
    assert fitting({"$ref": "#"}) is None


KEYS = st.sampled_from(
    [
        *("type", "properties", "items", "enum", "anyOf", "allOf", "$ref", "minItems", "maxItems"),
        *("minLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "x"),
    ]
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
