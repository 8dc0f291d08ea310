"""From a body to the token ids of its prompts.

Source: vLLM 0.32 `renderers/online_renderer.py`, `renderers/hf.py`, `v1/engine/input_processor.py`.
"""

from typing import cast

from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.tokens import NotReproducible
from anbar.apps.emulator.errors import ApiError, Json, invalid, refused
from anbar.apps.emulator.text import ModelText

Prompts = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
"""Texts (of completions only) and token ids, one per prompt."""

_TEXTS = {
    Reason.MEDIA: "At most 0 image(s) may be provided in one prompt: the model takes text alone.",
    Reason.NO_TEMPLATE: "As of transformers v4.44, default chat template is no longer allowed, so you must "
    "provide a chat template if the tokenizer does not define one.",
    Reason.TEMPLATE_FAILED: "The chat template refused the messages.",
    Reason.UNTRUSTED_TEMPLATE: "Chat template is passed with request, but --trust-request-chat-template is "
    "not set. Refused request with untrusted chat template.",
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
    if body.get("continue_final_message") and body.get("add_generation_prompt", True):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    return _ids(text.chat(body), text.max_model_len)


def completion_prompts(body: Json, text: ModelText, *, field: str = "prompt") -> Prompts:
    """The prompts of a completion or an embedding, whose `field` they are in."""
    prompt = body.get(field)
    if prompt is None or prompt in ("", []):
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", field)
    single = isinstance(prompt, str) or _is_ids(prompt)
    items = [prompt] if single else cast(list[object], prompt)
    texts: list[str] = []
    prompts: list[tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
        elif _is_ids(item):
            texts.append(_checked(cast(list[int], item), body, text))
        else:
            raise invalid(f"{{'type': 'string_type', 'loc': 'body.{field}'}}", f"body.{field}")
        found = text.completion({**body, "prompt": item})
        prompts.append(_ids(found, text.max_model_len))
    if not all(prompts):
        raise ApiError("The decoder prompt cannot be empty")
    return tuple(texts), tuple(prompts)


def _checked(ids: list[int], body: Json, text: ModelText) -> str:
    """Token ids' text, where it is wanted."""
    if min(ids) < 0 or max(ids) >= text.vocab_size:
        outside = next(token for token in ids if token < 0 or token >= text.vocab_size)
        raise ApiError(f"Token id {outside} is out of vocabulary", param="prompt")
    return text.decode(ids) if body.get("echo") else ""


def _ids(found: list[int] | NotReproducible, max_model_len: int) -> tuple[int, ...]:
    if not isinstance(found, NotReproducible):
        return tuple(found)
    if found.reason is Reason.TOO_LONG:
        raise too_long(max_model_len)
    raise ApiError(_TEXTS.get(found.reason, f"{found.reason.value}: {found.detail}"))


def too_long(max_model_len: int) -> ApiError:
    """vLLM's refusal of a prompt that does not fit at all; it stops counting there."""
    text = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"at least {max_model_len + 1} input tokens, which exceeds this limit even without any output "
        "tokens. Please reduce the length of the input prompt."
    )
    return refused(text, "input_tokens", max_model_len + 1)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
