"""The types of a chat's messages, by which vLLM says what is wrong with one.

Source: the `openai` package's `types/chat` and vLLM 0.32 `renderers/chat_utils.py`. The names are part of
errors' locations. Of content in parts only that it is a list is checked here, as the parts are read later.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ValidatorFunctionWrapHandler, WrapValidator
from typing_extensions import TypedDict

Parts = str | Iterable[Any]


class ChatCompletionDeveloperMessageParam(TypedDict):
    content: Parts
    role: Literal["developer"]
    name: NotRequired[str]


class ChatCompletionSystemMessageParam(TypedDict):
    content: Parts
    role: Literal["system"]
    name: NotRequired[str]


class ChatCompletionUserMessageParam(TypedDict):
    content: Parts
    role: Literal["user"]
    name: NotRequired[str]


class ChatCompletionAssistantMessageParam(TypedDict):
    role: Literal["assistant"]
    audio: NotRequired[dict[str, Any] | None]
    content: NotRequired[str | Iterable[Any] | None]
    function_call: NotRequired[dict[str, Any] | None]
    name: NotRequired[str]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[Iterable[Any]]


class ChatCompletionToolMessageParam(TypedDict):
    content: Parts
    role: Literal["tool"]
    tool_call_id: str


class ChatCompletionFunctionMessageParam(TypedDict):
    content: str | None
    name: str
    role: Literal["function"]


class CustomChatCompletionMessageParam(TypedDict):
    role: str
    content: NotRequired[str | list[Any]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str | None]
    tool_calls: NotRequired[list[Any] | None]
    reasoning: NotRequired[str | None]
    tools: NotRequired[list[Any] | None]
    task: NotRequired[str | None]


class Message(BaseModel):
    """Of the `openai_harmony` package."""

    author: Any
    content: list[Any] = []


_PLAIN = frozenset(("role", "content"))


def _unless_plain(message: object, check: ValidatorFunctionWrapHandler) -> object:
    """Most messages have a role and a text, of which nothing can be wrong. The message stays as it is."""
    if not (
        isinstance(message, Mapping)
        and message.keys() == _PLAIN
        and type(message["role"]) is str
        and type(message["content"]) is str
    ):
        check(message)
    return message


ChatMessage = Annotated[
    ChatCompletionDeveloperMessageParam
    | ChatCompletionSystemMessageParam
    | ChatCompletionUserMessageParam
    | ChatCompletionAssistantMessageParam
    | ChatCompletionToolMessageParam
    | ChatCompletionFunctionMessageParam
    | CustomChatCompletionMessageParam
    | Message,
    WrapValidator(_unless_plain),
]
