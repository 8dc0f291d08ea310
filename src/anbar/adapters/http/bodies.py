"""The fields of OpenAI's request bodies whose types are checked, and the judgement of their values.

The ranges are vLLM's, and only those that no setting of an engine changes: what an engine would take is never
refused. Source: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`, `sampling_params.py`
(`_verify_args`), `renderers/chat_utils.py` (content parts).
"""

from collections.abc import Mapping
from typing import cast

import msgspec

from anbar.core.errors import RequestError

MAX_COUNT = 2**31 - 1
_INT64 = (-(2**63), 2**63 - 1)
UNTYPED_PARTS = frozenset(
    (
        "image_url",
        "image_pil",
        "image_embeds",
        "audio_embeds",
        "video_embeds",
        "prompt_embeds",
        "audio_url",
        "input_audio",
        "video_url",
        "tool_reference",
    )
)
"""A content part with one of these needs no `type`."""


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Common(msgspec.Struct, kw_only=True):
    """What both endpoints take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, object] | None = None
    ec_transfer_params: dict[str, object] | None = None
    vllm_xargs: dict[str, object] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None


class Chat(Common, kw_only=True):
    """A body of `/v1/chat/completions`."""

    messages: list[dict[str, object]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    top_logprobs: int | None = None
    logprobs: bool | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, object]] | None = None
    reasoning_effort: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, object] | None = None


class Completion(Common, kw_only=True):
    """A body of `/v1/completions`."""

    prompt: object = None
    prompt_embeds: object = None
    echo: bool | None = None
    logprobs: int | None = None


def bad(param: str, what: str, code: str | None = None) -> RequestError:
    """The error for a field with a wrong value."""
    return RequestError(f"Invalid value for {param!r}: {what}.", param=param, code=code)


def judge_messages(messages: list[dict[str, object]]) -> None:
    """Each has a role, and a content that is text or parts."""
    if not messages:
        raise bad("messages", "must not be empty", "empty_array")
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise bad("messages", f"message {place} needs a `role`, a string", "missing_parameter")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            what = f"the `content` of message {place} must be a string or a list of parts"
            raise bad("messages", what, "invalid_type")
        if not all(map(_is_part, content)):
            what = f"each part of message {place} must be an object with a `type`, a string"
            raise bad("messages", what, "invalid_type")


def _is_part(part: object) -> bool:
    if isinstance(part, str):  # vLLM takes plain text for a part
        return True
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    return isinstance(kind, str) or (kind is None and not UNTYPED_PARTS.isdisjoint(part))


def judge_prompt(prompt: object) -> None:
    """A string, strings, token ids or lists of token ids; none of them empty."""
    if prompt is None:
        raise RequestError(
            "You must provide the parameter 'prompt'.", param="prompt", code="missing_parameter"
        )
    if isinstance(prompt, str):
        if not prompt:
            raise bad("prompt", "must not be empty", "invalid_value")
        return
    if not isinstance(prompt, list):
        raise _no_prompt()
    if not prompt:
        raise bad("prompt", "must not be empty", "empty_array")
    if _are_tokens(prompt):
        return
    kinds = set(map(type, prompt))
    if kinds not in ({str}, {list}):
        raise _no_prompt()
    if not all(prompt):
        raise bad("prompt", "none of the prompts may be empty", "invalid_value")
    if kinds == {list} and not all(map(_are_tokens, prompt)):
        raise _no_prompt()


def _no_prompt() -> RequestError:
    what = f"must be a string, a list of strings, of token ids (0 to {MAX_COUNT}), or of lists of token ids"
    return bad("prompt", what)


def _are_tokens(items: list[object]) -> bool:
    if set(map(type, items)) != {int}:  # bool is a type of its own here
        return False
    numbers = cast("list[int]", items)
    return min(numbers) >= 0 and max(numbers) <= MAX_COUNT


def judge_output_limit(param: str, value: int | None, *, may_be_zero: bool) -> None:
    """`max_tokens` and its like; 0 is for those who want nothing but their prompt back."""
    if value is None:
        return
    if value < 1 and not (value == 0 and may_be_zero):
        raise bad(param, f"must be at least 1, got {value}", "invalid_value")
    if value > MAX_COUNT:
        raise bad(param, f"must be at most {MAX_COUNT}", "invalid_value")


def judge_sampling(typed: Common, body: Mapping[str, object]) -> None:
    """The ranges of what steers sampling. A beam search reads none of it but its width, `n`."""
    n = typed.n
    if n is not None and not 1 <= n <= MAX_COUNT:
        raise bad("n", f"must be at least 1 and at most {MAX_COUNT}", "invalid_value")
    if typed.stream is not True and body.get("stream_options"):
        raise bad("stream_options", "is only for `stream: true`", "invalid_value")
    if typed.seed is not None and not _INT64[0] <= typed.seed <= _INT64[1]:
        raise bad("seed", "must be an integer of 64 bits", "invalid_value")
    truncated = typed.truncate_prompt_tokens
    if truncated is not None and not -1 <= truncated <= MAX_COUNT:
        raise bad("truncate_prompt_tokens", f"must be at least -1 and at most {MAX_COUNT}", "invalid_value")
    if typed.prompt_logprobs is not None:
        _judge_prompt_logprobs(typed.prompt_logprobs, typed.stream is True)
    if typed.logit_bias:
        _judge_logit_bias(typed.logit_bias)
    if not body.get("use_beam_search"):
        _judge_randomness(typed)


def _judge_randomness(typed: Common) -> None:
    temperature = typed.temperature
    if temperature is not None:
        if not 0 <= temperature <= 2:
            raise bad("temperature", "must be between 0 and 2", "invalid_value")
        if temperature == 0 and typed.n is not None and typed.n > 1:
            raise bad("n", "must be 1 when `temperature` is 0: all answers would be alike", "invalid_value")
    if typed.top_p is not None and not 0 < typed.top_p <= 1:
        raise bad("top_p", "must be above 0 and at most 1", "invalid_value")
    if typed.presence_penalty is not None and not -2 <= typed.presence_penalty <= 2:
        raise bad("presence_penalty", "must be between -2 and 2", "invalid_value")
    if typed.frequency_penalty is not None and not -2 <= typed.frequency_penalty <= 2:
        raise bad("frequency_penalty", "must be between -2 and 2", "invalid_value")
    if typed.stop == "" or (isinstance(typed.stop, list) and "" in typed.stop):
        raise bad("stop", "must not contain an empty string", "invalid_value")


def _judge_logit_bias(bias: Mapping[str, float]) -> None:
    try:
        for token in bias:
            int(token)
    except ValueError:
        raise bad("logit_bias", "its keys must be token ids", "invalid_value") from None


def _judge_prompt_logprobs(number: int, stream: bool) -> None:
    judge_logprobs("prompt_logprobs", number)
    if stream and number:
        raise bad("prompt_logprobs", "is not available with `stream: true`", "invalid_value")


def judge_logprobs(param: str, number: int | None) -> None:
    """How many log-probabilities; -1 is for all of them."""
    if number is not None and number < -1:
        raise bad(param, "must be at least 0, or -1 for all", "invalid_value")
