"""Asking an engine for a request's token ids: the body of its `/tokenize`, and its answer. Pure.

For models whose tokenizer the router does not have. It costs a round trip and the engine's time, so the
caller bounds both and routes by load when it fails. Source: vLLM 0.32
`entrypoints/serve/tokenize/protocol.py`.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from anbar.adapters.vllm.chat_messages import Reason, Unreproducible, conversation
from anbar.adapters.vllm.chat_template import ContentFormat
from anbar.adapters.vllm.tokens import NotReproducible, single_prompt
from anbar.core.errors import UpstreamError

_SAME = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template", "tools")


def completion_request(body: Mapping[str, object]) -> dict[str, object] | list[int] | NotReproducible:
    """The `/tokenize` body for a completion; the ids themselves where the prompt is ids already."""
    try:
        prompt = single_prompt(body.get("prompt"))
    except Unreproducible as error:
        return NotReproducible(error.reason, error.detail)
    if body.get("truncate_prompt_tokens") is not None:
        return NotReproducible(Reason.TRUNCATION, "the engine's /tokenize does not truncate")
    if isinstance(prompt, list):
        return prompt
    return _without_nulls({"model": body.get("model"), "prompt": prompt}, body, ("add_special_tokens",))


def chat_request(body: Mapping[str, object]) -> dict[str, object] | NotReproducible:
    """The `/tokenize` body for a chat."""
    messages = body.get("messages")
    try:
        conversation(messages, ContentFormat.PARTS)  # refuses what no /tokenize could answer truly: media
    except Unreproducible as error:
        return NotReproducible(error.reason, error.detail)
    if body.get("truncate_prompt_tokens") is not None:
        return NotReproducible(Reason.TRUNCATION, "the engine's /tokenize does not truncate")
    asked = body.get("chat_template_kwargs")
    kwargs = dict(asked) if isinstance(asked, Mapping) else {}
    effort = body.get("reasoning_effort")
    if effort is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
    for key in ("documents", "reasoning_effort"):
        if body.get(key) is not None:
            kwargs[key] = body[key]
    request: dict[str, object] = {"model": body.get("model"), "messages": messages}
    if kwargs:
        request["chat_template_kwargs"] = kwargs
    return _without_nulls(request, body, _SAME)


def token_ids(answer: bytes) -> list[int]:
    """The ids in the engine's answer `{"count", "max_model_len", "tokens"}`; raises UpstreamError."""
    try:
        return msgspec.json.decode(answer, type=_Answer).tokens
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamError("/tokenize answered with something else than token ids") from error


class _Answer(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]


def _without_nulls(
    request: dict[str, object], body: Mapping[str, object], keys: tuple[str, ...]
) -> dict[str, object]:
    request.update({key: body[key] for key in keys if body.get(key) is not None})
    return {key: value for key, value in request.items() if value is not None}
