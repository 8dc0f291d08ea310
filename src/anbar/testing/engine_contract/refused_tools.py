"""Checks of what vLLM refuses of tools and of formats for answers.

Source: vLLM 0.32 `entrypoints/openai/chat_completion/protocol.py`, `entrypoints/openai/engine/protocol.py`.
"""

from anbar.testing.engine_contract.refusals import (
    CHATS,
    COMPLETIONS,
    NO_OBJECT,
    TOKENIZE,
    TYPE,
    Refusal,
    checked,
    typed,
    value,
)
from anbar.testing.engine_contract.target import Json, Target, needs

_TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "f"}}]}
_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_NO_TOOLS = "When using `tool_choice`, `tools` must be set."


def check_refused_tools(target: Target) -> None:
    """Tools that are none."""
    rows = (
        value(
            "tools",
            [],
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
        ),
        typed("tools.0", [1], "model_attributes_type", NO_OBJECT, "1"),
        typed("tools.0.function", [{}], "missing", "Field required", "<dict of 0 items>"),
        typed("tools.0.function.name", [{"function": {}}], "missing", "Field required", "<dict of 0 items>"),
        typed(
            "tools.0.function.parameters",
            [{"function": {"name": "f", "parameters": 5}}],
            "dict_type",
            "Input should be a valid dictionary",
            "5",
        ),
        typed(
            "tools.0.type",
            [{"type": "x", "function": {"name": "f"}}],
            "literal_error",
            "Input should be 'function'",
            "x",
            ctx=", 'ctx': {'expected': \"'function'\"}",
        ),
    )
    checked(target, CHATS, rows)
    messages = [{"role": "user", "content": "a"}]
    both = "2 validation errors:\n  {'type': 'missing', 'loc': 'body.prompt', …'loc': 'body.tools.0', …"
    checked(target, TOKENIZE, [Refusal({"messages": messages, "tools": [1]}, both, "body.prompt", TYPE)])


def check_refused_tool_choices(target: Target) -> None:
    """Choices of a tool that name none, or another than the given ones."""
    rows: list[Refusal] = [
        value("tool_choice", "auto", _NO_TOOLS),
        value("tool_choice", {"type": "function"}, _NO_TOOLS),
    ]
    for other in ("maybe", 5):
        text = f"Invalid value for `tool_choice`: {other}! "
        text += 'Only named tools, "none", "auto" or "required" are supported.'
        rows.append(_choice(other, text, "tool_choice"))
    for choice, shown in (({}, None), ({"type": "function"}, None), ({"function": "f"}, "f")):
        text = f"Invalid value for `function`: `{shown}` in `tool_choice`! {_USAGE}"
        rows.append(_choice(choice, text, "tool_choice.function"))
    nameless = {"type": "function", "function": {}}
    text = f"Expected field `name` in `function` in `tool_choice`! {_USAGE}"
    rows.append(_choice(nameless, text, "tool_choice.function.name"))
    absent = {"type": "function", "function": {"name": "g"}}
    text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
    rows.append(_choice(absent, text, "tool_choice"))
    checked(target, CHATS, rows)


def check_tools_need_a_parser(target: Target) -> None:
    """Without a parser for calls only the choice `none` is taken."""
    needs(not target.auto_tools, "it finds calls of tools in answers")
    named = {"type": "function", "function": {"name": "f"}}
    rows = (
        Refusal(
            _TOOLS, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        ),
        Refusal(
            {**_TOOLS, "tool_choice": "required"},
            'tool_choice="required" requires --tool-call-parser to be set',
        ),
        Refusal(
            {**_TOOLS, "tool_choice": named}, 'tool_choice=function "f" requires --tool-call-parser to be set'
        ),
    )
    checked(target, CHATS, rows)


def check_refused_formats(target: Target) -> None:
    """`response_format`: kinds that there are not, a schema without its name, none at all."""
    where = "body.response_format"
    schema = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
    rows = (
        _format({"type": "yaml"}, "6 validation errors:\n  {'type': 'literal_error', …", f"{where}.type"),
        _format({}, "6 validation errors:\n  {'type': 'missing', …", f"{where}.type"),
        _format("json", "3 validation errors:\n  {'type': 'model_attributes_type', …", where),
        _format(
            {"type": "json_schema", "json_schema": {}},
            f"6 validation errors:\n  {{'type': 'missing', 'loc': '{where}.json_schema.name', …",
            f"{where}.json_schema.name",
        ),
        value("response_format", {"type": "json_schema"}, schema),
    )
    for path in (COMPLETIONS, CHATS):
        checked(target, path, rows)


def _choice(choice: object, message: str, param: str) -> Refusal:
    return Refusal({**_TOOLS, "tool_choice": choice}, f"{message} (parameter={param})", param)


def _format(given: object, message: str, param: str) -> Refusal:
    return Refusal({"response_format": given}, message, param, TYPE)
