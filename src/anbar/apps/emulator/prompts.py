"""From a body to the token ids of its prompts.

Source: vLLM 0.32 `renderers/online_renderer.py`, `renderers/hf.py`, `v1/engine/input_processor.py`.
"""

from collections.abc import Iterable, Sequence
from typing import cast

from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.tokens import SERVER_SIDE, NotReproducible
from anbar.apps.emulator.errors import ApiError, Json, LateError, invalid, refused
from anbar.apps.emulator.text import ModelText

Prompts = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
"""Texts (of completions only) and token ids, one per prompt."""

_UNTRUSTED = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)
_INCOMPATIBLE = (
    "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when "
    "you want the model to continue the final message, and add_generation_prompt when you want to add a "
    "header that will prompt it to start a new assistant message instead."
)
_TEXTS = {
    Reason.MEDIA: "At most 0 image(s) may be provided in one prompt: the model takes text alone.",
    Reason.NO_TEMPLATE: "As of transformers v4.44, default chat template is no longer allowed, so you must "
    "provide a chat template if the tokenizer does not define one.",
    Reason.TEMPLATE_FAILED: "The chat template refused the messages.",
    Reason.UNTRUSTED_TEMPLATE: _UNTRUSTED,
}


def chat_prompt(body: Json, text: ModelText) -> tuple[int, ...]:
    """The prompt of a chat; ApiError where vLLM refuses it."""
    messages = cast(list[object], body["messages"])
    for index, message in enumerate(messages):
        where = f"body.messages.{index}"
        if not isinstance(message, dict):
            raise invalid(f"{{'type': 'dict_type', 'loc': '{where}'}}", where)
        if not isinstance(message.get("role"), str):
            raise invalid(f"{{'type': 'missing', 'loc': '{where}.role'}}", f"{where}.role")
        if not isinstance(message.get("content"), str | list | None):
            raise invalid(f"{{'type': 'string_type', 'loc': '{where}.content'}}", f"{where}.content")
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    if body.get("continue_final_message") and "add_generation_prompt" not in body:
        raise ApiError(_INCOMPATIBLE)
    if SERVER_SIDE & cast(Json, body.get("chat_template_kwargs") or {}).keys():
        raise ApiError(_UNTRUSTED)
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    given = cast(Json, body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if _is_ids(given):
        return tuple(cast(list[int], given))
    return _ids(text.chat(body), text.max_model_len)


def completion_prompts(body: Json, text: ModelText, *, field: str = "prompt") -> Prompts:
    """The prompts of a completion or an embedding, whose `field` they are in."""
    prompt = body.get(field)
    if prompt is None or prompt == "":
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", field)
    single = isinstance(prompt, str) or _is_ids(prompt)
    items = [prompt] if single else cast(list[object], prompt)
    if not items:
        raise ApiError("You must pass at least one prompt")
    texts: list[str] = []
    prompts: list[tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
        elif item == []:
            raise ApiError("The decoder prompt cannot be empty")
        elif _is_ids(item):
            texts.append(text.decode(cast(list[int], item)) if body.get("echo") else "")
        else:
            raise invalid(f"{{'type': 'string_type', 'loc': 'body.{field}'}}", f"body.{field}")
        prompts.append(_ids(text.completion({**body, "prompt": item}), text.max_model_len))
    if not all(prompts):
        raise ApiError("The decoder prompt cannot be empty")
    return tuple(texts), tuple(prompts)


def check_vocabulary(prompts: Iterable[Sequence[int]], text: ModelText) -> None:
    """LateError for a prompt with a token that is none: vLLM finds it when the stream has begun."""
    for prompt in prompts:
        if max(prompt) >= text.vocab_size:
            outside = next(token for token in prompt if token >= text.vocab_size)
            raise LateError(f"Token id {outside} is out of vocabulary")


def _ids(found: list[int] | NotReproducible, max_model_len: int) -> tuple[int, ...]:
    if not isinstance(found, NotReproducible):
        return tuple(found)
    if found.reason is Reason.TOO_LONG:
        raise too_long(max_model_len + 1, max_model_len)
    raise ApiError(_TEXTS.get(found.reason, f"{found.reason.value}: {found.detail}"))


def too_long(num_tokens: int, max_model_len: int) -> ApiError:
    """vLLM's refusal of a prompt that does not fit at all. Of text it reads one token more than fits."""
    least = "at least " if num_tokens == max_model_len + 1 else ""
    text = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{least}{num_tokens} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    return refused(text, "input_tokens", num_tokens)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
