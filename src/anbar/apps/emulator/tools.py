"""Tools: what vLLM refuses of them, and which calls a request forces.

Source: vLLM 0.32 `entrypoints/openai/chat_completion/protocol.py`, `parser/abstract_parser.py`.
"""

from collections.abc import Sequence
from typing import cast

from anbar.apps.emulator.errors import ApiError, Json, refused

_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


def check_tool_choice(body: Json) -> None:
    """What is refused before fields are converted."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        text = "`tools` must not be an empty array. Either provide at least one tool or omit the field "
        raise refused(f"{text}entirely.", "tools")
    if choice is None or choice == "none":
        return
    if tools is None:
        raise refused("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        _check_named(choice, tools)
    elif choice not in ("auto", "required"):
        text = f"Invalid value for `tool_choice`: {choice}! Only named tools, "
        raise refused(f'{text}"none", "auto" or "required" are supported.', "tool_choice")


def _check_named(choice: Json, tools: object) -> None:
    function = choice.get("function")
    if not isinstance(function, dict):
        text = f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}"
        raise refused(text, "tool_choice.function")
    if "name" not in function:
        text = f"Expected field `name` in `function` in `tool_choice`! {_USAGE}"
        raise refused(text, "tool_choice.function.name")
    name = function["name"]
    if not isinstance(name, str) or not name:
        text = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}"
        raise refused(text, "tool_choice.function.name")
    if not isinstance(tools, list) or not all(_name(tool) for tool in tools):
        return  # their types will be refused
    if name not in map(_name, tools):
        text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise refused(text, "tool_choice")


def _name(tool: object) -> object:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def check_tools(body: Json, *, auto_tools: bool) -> None:
    """What the server must have been started with for a request's tools."""
    if auto_tools or not body.get("tools"):
        return
    choice = body.get("tool_choice", "auto")
    if choice == "auto":
        text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        raise ApiError(text)
    if choice == "required":
        raise ApiError('tool_choice="required" requires --tool-call-parser to be set')
    if isinstance(choice, dict):
        name = forced_tool(body)
        raise ApiError(f'tool_choice=function "{name}" requires --tool-call-parser to be set')


def forced_tool(body: Json) -> str | None:
    """The function that a request names as the one to be called."""
    choice = body.get("tool_choice")
    return str(cast(Json, choice["function"])["name"]) if isinstance(choice, dict) else None


def parameters_of(name: str, tools: Sequence[Json]) -> Json:
    """The JSON schema of a function's parameters."""
    for tool in tools:
        function = cast(Json, tool["function"])
        if function["name"] == name:
            return cast(Json, function.get("parameters") or {})
    return {}
