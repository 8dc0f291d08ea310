"""Tools: what vLLM refuses of them, and which calls a request forces.

Source: vLLM 0.32 `entrypoints/openai/chat_completion/protocol.py`, `parser/abstract_parser.py`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from anbar.apps.emulator.errors import ApiError, Json, refused
from anbar.apps.emulator.json_answers import fitting, text_of

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
        raise ApiError(f'tool_choice=function "{_forced(choice)}" requires --tool-call-parser to be set')


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """A call that a chat must answer with."""

    name: str
    is_named: bool
    """The request names the function; else any one is required, and the answer says which."""
    arguments: str

    @property
    def text(self) -> str:
        """What the model writes for it."""
        if self.is_named:
            return self.arguments
        return f'[{{"name": {text_of(self.name)}, "parameters": {self.arguments}}}]'


def forced_call(body: Json) -> ForcedCall | None:
    """Of a typed chat; None when the model may decide for itself."""
    choice, tools = body.get("tool_choice"), cast(Sequence[Json] | None, body.get("tools"))
    if not tools or not (isinstance(choice, dict) or choice == "required"):
        return None
    functions = [cast(Json, tool["function"]) for tool in tools]
    name = _forced(choice) if isinstance(choice, dict) else str(functions[0]["name"])
    function = next(function for function in functions if function["name"] == name)
    return ForcedCall(name, isinstance(choice, dict), text_of(fitting(function.get("parameters"))))


def _forced(choice: Json) -> str:
    return str(cast(Json, choice["function"])["name"])


def tool_calls(call: ForcedCall, text: str) -> list[Json]:
    """The calls that a whole answer is read as; a text that was cut off may be none."""
    if call.is_named:
        return [_call(call.name, text)] if text.strip() else []
    return [_call(call.name, call.arguments)] if text == call.text else []


def _call(name: str, arguments: str, index: int | None = None) -> Json:
    head = {"id": f"chatcmpl-tool-{os.urandom(8).hex()}", "type": "function"}
    place = {} if index is None else {"index": index}
    return {**head, **place, "function": {"name": name, "arguments": arguments}}


def call_delta(call: ForcedCall, text: str, *, is_first: bool, completes: bool) -> Json:
    """The `delta` of a chunk with a piece of a call's text. A required call comes whole in the chunk that
    completes it, if one does."""
    if not call.is_named:
        return {"tool_calls": [_call(call.name, call.arguments, 0)]} if completes else {}
    if is_first:
        return {"tool_calls": [_call(call.name, text, 0)]}
    return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
