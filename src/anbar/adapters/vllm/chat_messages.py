"""A chat request's messages as a chat template sees them: what vLLM makes of them before it renders.

Source: vLLM 0.32 `renderers/chat_utils.py` (`parse_chat_messages`), `renderers/hf.py` (the developer role),
`entrypoints/openai/chat_completion/protocol.py` (what validation does to messages and tools).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from anbar.adapters.vllm.chat_template import ContentFormat

Message = dict[str, object]


class Reason(Enum):
    """Why a request's tokens cannot be computed here."""

    MEDIA = "media"
    """Images, audio, video or embeddings: the model's processor decides how many tokens they are."""
    SEVERAL_PROMPTS = "several_prompts"
    MALFORMED = "malformed"
    """The engine will refuse it."""
    NO_TEMPLATE = "no_chat_template"
    TEMPLATE_FAILED = "chat_template_failed"
    """The template refused the request, as the engine's will."""
    UNTRUSTED_TEMPLATE = "untrusted_chat_template"
    OWN_RENDERER = "own_renderer"
    """vLLM renders this family of models by code of its own, not by a template."""
    TRUNCATION = "truncation"
    """It asks for truncation relative to a context length that is not known here."""
    TOO_LONG = "prompt_too_long"
    """More text than the context could hold with the longest of tokens."""


class Unreproducible(Exception):
    """Raised inside the tokenizer; what its callers get is `tokens.NotReproducible`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


_TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of text parts → the key of their text."""

_TEXT_PART_KEYS = frozenset(("type", "text", "refusal", "thinking", "closed", "name", "file", "data", "uuid"))
_MEDIA_PART_KEYS = {"image_pil", "input_audio"} | {
    f"{medium}_{kind}" for medium in ("image", "audio", "video") for kind in ("url", "embeds")
}
_PART_KEYS = _TEXT_PART_KEYS | _MEDIA_PART_KEYS | {"prompt_cache_breakpoint"}
"""Keys that vLLM knows in parts; others are passed on to the template."""

_FUNCTION_KEYS = ("name", "description", "parameters", "strict")

_PLAIN_ROLES = ("user", "assistant", "system")

_BILLING_HEADER = "x-anthropic-billing-header"
"""A line that some clients put first into the system prompt, different in each request; vLLM drops it."""


def conversation(messages: object, form: ContentFormat) -> list[Message]:
    """The messages for the template; raises Unreproducible. The request's own objects are not changed."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise Unreproducible(Reason.MALFORMED, "messages is not a list of messages")
    return [_plain(entry, form) or _any_message(entry, form) for entry in messages]


def without_developer(messages: Sequence[Message], template: str) -> Sequence[Message]:
    """Developer messages turned into system ones for a template that does not know the role, and all system
    messages merged into one at the front if any stands elsewhere."""
    developer = "developer" in [message["role"] for message in messages]
    if not developer or '"developer"' in template or "'developer'" in template:
        return messages
    renamed = [_as_system(message) if message["role"] == "developer" else message for message in messages]
    system = [message for message in renamed if message["role"] == "system"]
    if len(system) == 1 and renamed[0] is system[0]:
        return renamed
    texts = [text for text in (_joined(message.get("content")) for message in system) if text]
    merged: Message = {"role": "system", "content": "\n\n".join(texts)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def tool_dicts(tools: object) -> list[dict[str, object]] | None:
    """The tools as vLLM's validated models print them: known keys, in order, with a default of null."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Unreproducible(Reason.MALFORMED, "tools is not a list")
    return [_tool(tool) for tool in tools]


def _plain(raw: object, form: ContentFormat) -> Message | None:
    """Most messages, at a fifth of the cost: a role that is treated like no other, and a text."""
    if not isinstance(raw, dict) or len(raw) != 2:
        return None
    role, content = raw.get("role"), raw.get("content")
    if role not in _PLAIN_ROLES or not isinstance(content, str) or content.startswith(_BILLING_HEADER):
        return None
    return {"role": role, "content": content if form is ContentFormat.STRING else [_text(content)]}


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _any_message(raw: object, form: ContentFormat) -> Message:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("role"), str):
        raise Unreproducible(Reason.MALFORMED, "a message has no role")
    role = raw["role"]
    parts = _parts(raw.get("content"))
    if role == "system":
        parts = list(_without_billing_header(parts))
    content = [part for part in (_part(part, form) for part in parts) if part]
    message: Message = {"role": role}
    message["content"] = content if form is ContentFormat.PARTS else "\n".join(str(text) for text in content)
    if role == "assistant":
        _add_assistant(message, raw)
    elif role == "tool":
        _add_tool(message, raw)
    for key in ("name", "task"):
        if isinstance(raw.get(key), str):
            message[key] = raw[key]
    if role == "developer":
        message["tools"] = _developer_tools(raw.get("tools"))
    return message


def _parts(content: object) -> list[object]:
    if content is None:
        return []
    if isinstance(content, str):
        return [_text(content)]
    if isinstance(content, list):
        return content
    raise Unreproducible(Reason.MALFORMED, "a message's content is neither text nor a list of parts")


def _part(part: object, form: ContentFormat) -> object:
    """One part for the template; None where vLLM leaves it out."""
    if isinstance(part, str):
        return _text(part) if form is ContentFormat.PARTS else part
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise Unreproducible(Reason.MALFORMED, "a content part has no type")
    kind = part["type"]
    if kind == "tool_reference":
        name = part.get("name")
        return {"type": kind, "name": name} if form is ContentFormat.PARTS else name
    if kind not in _TEXT_PARTS or part.get("uuid") is not None:
        raise Unreproducible(Reason.MEDIA, f"a content part of type {kind[:32]}")
    text = part.get(_TEXT_PARTS[kind])
    if text is None and kind in ("text", "refusal"):
        return None
    if not isinstance(text, str):
        raise Unreproducible(Reason.MALFORMED, f"a {kind} part without text")
    if form is ContentFormat.STRING:
        return text
    extra = {key: value for key, value in part.items() if key not in _PART_KEYS}
    return {"type": "text", "text": text, **extra}


def _without_billing_header(parts: Iterable[object]) -> Iterable[object]:
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
        if not isinstance(text, str) or not text.startswith(_BILLING_HEADER):
            yield part
            continue
        rest = text.partition("\n")[2]
        if rest:
            yield {**part, "text": rest} if isinstance(part, Mapping) else rest


def _add_assistant(message: Message, raw: Mapping[str, object]) -> None:
    calls = raw.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise Unreproducible(Reason.MALFORMED, "tool_calls is not a list")
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = raw.get("reasoning")
    if reasoning is None:
        reasoning = raw.get("reasoning_content")
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning


def _tool_call(call: object) -> dict[str, object]:
    """A call with its arguments as an object: templates expect no JSON text there."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise Unreproducible(Reason.MALFORMED, "a tool call without a function")
    if call.get("type", "function") != "function":
        raise Unreproducible(Reason.MALFORMED, "a tool call of another type than function")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
        except RecursionError as error:
            raise Unreproducible(Reason.MALFORMED, "a tool call's arguments are nested too deeply") from error
    known = arguments if isinstance(arguments, dict) else {}
    shown = _ordered({**function, "arguments": known}, ("arguments", "name"))
    return _ordered({**call, "function": shown}, ("id", "function", "type"))


def _add_tool(message: Message, raw: Mapping[str, object]) -> None:
    if "tool_call_id" in raw:
        message["tool_call_id"] = raw["tool_call_id"]
    content = message["content"]
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        message["content"] = "\n".join(str(part.get("text", "")) for part in content)


def _developer_tools(tools: object) -> object:
    if not isinstance(tools, list):
        return None
    return [
        _ordered({**tool, "function": _ordered(tool["function"], _FUNCTION_KEYS)}, ("function", "type"))
        for tool in tools
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
    ]


def _ordered(values: Mapping[str, object], first: Sequence[str]) -> dict[str, object]:
    """Validation puts the keys it knows first, in its own order, which `tojson` in a template shows."""
    known = {key: values[key] for key in first if key in values}
    return {**known, **{key: value for key, value in values.items() if key not in known}}


def _as_system(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _joined(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _tool(tool: object) -> dict[str, object]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping) or "name" not in function:
        raise Unreproducible(Reason.MALFORMED, "a tool without a named function")
    shown: dict[str, object] = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    deferred = function.get("defer_loading")
    deferred = tool.get("defer_loading") if deferred is None else deferred
    optional = {"strict": function.get("strict"), "defer_loading": deferred}
    shown.update({key: value for key, value in optional.items() if value is not None})
    result: dict[str, object] = {"type": "function", "function": shown}
    if tool.get("defer_loading") is not None:
        result["defer_loading"] = tool["defer_loading"]
    return result
