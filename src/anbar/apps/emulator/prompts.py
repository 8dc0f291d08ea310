"""From a body to the token ids of its prompts.

Source: vLLM 0.32 `renderers/online_renderer.py`, `renderers/hf.py`, `v1/engine/input_processor.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.tokens import SERVER_SIDE, NotReproducible
from anbar.apps.emulator.errors import ApiError, Json, LateError, refused
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
_NO_TEXT = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
_TEXTS = {
    Reason.NO_TEMPLATE: "As of transformers v4.44, default chat template is no longer allowed, so you must "
    "provide a chat template if the tokenizer does not define one.",
    Reason.TEMPLATE_FAILED: "The chat template refused the messages.",
    Reason.UNTRUSTED_TEMPLATE: _UNTRUSTED,
}


def chat_prompt(body: Json, text: ModelText, *, answers: bool = True) -> tuple[int, ...]:
    """The prompt of a typed chat; ApiError where vLLM refuses it. `answers`: by default the template adds the
    beginning of an answer."""
    body = {"add_generation_prompt": answers, **body}
    if body.get("continue_final_message") and body["add_generation_prompt"]:
        raise ApiError(_INCOMPATIBLE)
    if SERVER_SIDE & cast(Json, body.get("chat_template_kwargs") or {}).keys():
        raise ApiError(_UNTRUSTED)
    if not body["messages"]:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    for message in cast(Sequence[Json], body["messages"]):
        if isinstance(message.get("content"), list):
            _check_parts(cast(Sequence[object], message["content"]), cast(str, body.get("model") or "model"))
    return _ids(text.chat, body, text.max_model_len)


def _check_parts(parts: Sequence[object], model: str) -> None:
    for index, part in enumerate(parts):
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind in _MEDIA:
            raise ApiError(f"{model} is not a multimodal model")
        if kind not in _TEXT_PARTS or not isinstance(cast(Json, part).get(cast(str, kind)), str):
            kinds = "text, image_url, input_audio, refusal"
            raise ApiError(
                f"messages: content part {index} is none of {kinds}, or has not what these must have"
            )


_TEXT_PARTS = ("text", "refusal", "thinking")
_MEDIA = frozenset(
    ("image_url", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds", "video_url")
)


def reused_prompt(body: Json, text: ModelText) -> tuple[int, ...] | None:
    """The prompt that another engine computed for a chat; None when it must be computed here."""
    params = cast(Json | None, body.get("kv_transfer_params"))
    given = params.get("prompt_token_ids") if params else None
    if given is None or body.get("echo") or _has_media(cast(Sequence[Json], body["messages"])):
        return None
    name = "kv_transfer_params.prompt_token_ids"
    if (
        not isinstance(given, list)
        or not given
        or any(type(token) is not int or token < 0 for token in given)
    ):
        what = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
        raise refused(what, name)
    if max(given) >= text.num_tokens:
        raise refused(f"Token id {max(given)} is out of vocabulary", name)
    if len(given) > text.max_model_len:
        limit = f"model's maximum context length ({text.max_model_len})"
        raise ApiError(f"Input length ({len(given)}) exceeds {limit}.")
    return tuple(given)


def _has_media(messages: Sequence[Json]) -> bool:
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, dict) and part.get("type") in _MEDIA for part in parts)


def completion_prompts(body: Json, text: ModelText, *, field: str = "prompt") -> Prompts:
    """The prompts of a typed completion or embedding, whose `field` they are in."""
    prompt = body[field]
    items = cast(list[object], prompt) if isinstance(prompt, list) and not _is_ids(prompt) else [prompt]
    if not items:
        raise ApiError("You must pass at least one prompt")
    texts: list[str] = []
    prompts: list[tuple[int, ...]] = []
    for item in items:
        if item in ("", []):
            raise ApiError(_EMPTY)
        if isinstance(item, str):
            texts.append(item)
            if len(item) > text.max_model_len and body.get("truncate_prompt_tokens") is None:
                _check_chars(len(item), text)
        else:
            texts.append(_echo(cast(list[int], item), body, text))
        prompts.append(_ids(text.completion, {**body, "prompt": item}, text.max_model_len))
    if not all(prompts):
        raise ApiError(_EMPTY)
    return tuple(texts), tuple(prompts)


def _check_chars(num_chars: int, text: ModelText) -> None:
    """A text that is too long whatever its tokens are."""
    length, limit = text.max_model_len, text.max_model_len * text.max_chars_per_token
    if num_chars > limit:
        message = f"This model's maximum context length is {length} tokens. However, your prompt contains "
        message += f"{num_chars} characters (more than {limit} characters, which is the upper bound for "
        message += f"{length} input tokens). Please reduce the length of the input prompt."
        raise refused(message, "input_text", num_chars)


_EMPTY = "The decoder prompt cannot be empty"


def _echo(prompt: list[int], body: Json, text: ModelText) -> str:
    """The text of a prompt of ids, where it is shown; one with ids that are none is refused later."""
    is_shown = body.get("echo") and all(0 <= token < text.num_tokens for token in prompt)
    return text.decode(prompt) if is_shown else ""


def check_truncation(body: Json, max_model_len: int) -> None:
    """A prompt can be truncated to what fits."""
    wanted = cast(int | None, body.get("truncate_prompt_tokens"))
    if wanted is not None and wanted > max_model_len:
        text = f"truncate_prompt_tokens={wanted} cannot be greater than max_model_len = {max_model_len}. "
        raise refused(f"{text}Please request a smaller truncation size.", "truncate_prompt_tokens", wanted)


def check_vocabulary(prompts: Iterable[Sequence[int]], text: ModelText) -> None:
    """LateError for a prompt with a token that is none: vLLM finds it when the stream has begun."""
    for prompt in prompts:
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < text.num_tokens:
                raise LateError(f"Token id {token} is out of vocabulary")


def _ids(
    compute: Callable[[Json], list[int] | NotReproducible], body: Json, max_model_len: int
) -> tuple[int, ...]:
    try:
        found = compute(body)
    except TypeError as error:  # half a surrogate pair, which JSON allows, is no text to a tokenizer
        raise ApiError(_NO_TEXT) from error
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


def has_ids(prompts: object) -> bool:
    """Whether typed prompts, of which there is at least one, are made of token ids: all are, or none."""
    return isinstance(prompts, list) and isinstance((prompts or [""])[0], int | list)


def _is_ids(value: object) -> bool:
    """Of a typed prompt: a list of numbers, which one text or list in it would not be."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)
