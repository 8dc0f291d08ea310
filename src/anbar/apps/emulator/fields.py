"""What vLLM refuses before the fields are converted to their types.

Source: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`, in the order in which
pydantic calls those validators; the words were compared with a running engine's.
"""

from collections.abc import Mapping
from typing import cast

from anbar.apps.emulator.errors import ApiError, Json, refused
from anbar.apps.emulator.tools import check_tool_choice

MAX_N = 16_384
"""vLLM's default of `VLLM_MAX_N_SEQUENCES`."""
MAX_PROMPTS = 1024
"""vLLM's default of `VLLM_MAX_COMPLETION_PROMPTS`."""
_MAX_SALT_CHARS = 128
_RARE = frozenset(
    (
        *("stream_options", "cache_salt", "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
        *("tools", "tool_choice", "structured_outputs", "response_format", "thinking_token_budget"),
        *("continue_final_message", "use_beam_search"),
    )
)
"""Most requests have none of these."""


def check_raw(body: Json, *, chat: bool, max_prompts: int = MAX_PROMPTS) -> None:
    """ApiError for what is refused."""
    if chat:
        _check_messages(body)
    else:
        _check_prompt(body, max_prompts)
    if body.keys().isdisjoint(_RARE):
        return
    if chat:
        check_generation_prompt(body)
        check_tool_choice(body)
        _check_constraints(body)
        _check_logprobs(body, "top_logprobs")
        _check_stream_options(body)
        _check_response_format(body)
    else:
        _check_stream_options(body)
        _check_logprobs(body, "logprobs")
        _check_constraints(body)
        _check_response_format(body)
    check_salt(body)
    _check_thinking(body)


def check_generation_prompt(body: Json) -> None:
    """A message can be continued or answered."""
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def check_salt(body: Json) -> None:
    """A salt's length and characters."""
    salt = body.get("cache_salt")
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise refused("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > _MAX_SALT_CHARS or set(salt) & set("@/\\\x00"):
        text = "Parameter 'cache_salt' must be at most 128 characters and must not contain "
        text += "'@', '/', '\\\\', or NUL."
        raise refused(text, "cache_salt")


def _check_messages(body: Json) -> None:
    """vLLM goes through them before it knows that they are a list."""
    messages = body.get("messages", [])
    if not isinstance(messages, list | str | Mapping):
        raise ApiError(f"'{type(messages).__name__}' object is not iterable")
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if calls is not None and not isinstance(calls, list | str | Mapping):
            raise ApiError(f"'{type(calls).__name__}' object is not iterable")


def _check_prompt(body: Json, max_prompts: int) -> None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > max_prompts and not isinstance(prompt[0], int):
        text = f"prompt list length {len(prompt)} exceeds the maximum allowed count of {max_prompts}. To "
        text += "increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable."
        raise refused(text, "prompt")
    if prompt in (None, "") and body.get("prompt_embeds") in (None, []):
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def _check_constraints(body: Json) -> None:
    outputs = body.get("structured_outputs")
    if outputs is None:
        return
    if not isinstance(outputs, dict):
        text = f"'{type(outputs).__name__}' object has no attribute 'get'"
        raise ApiError(text, status=500, kind="InternalServerError")
    kinds = sum(outputs.get(kind) is not None for kind in ("json", "regex", "choice"))
    if kinds > 1:
        text = (
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        )
        raise ApiError(text) if "messages" in body else refused(text, "structured_outputs")
    if kinds and isinstance(body.get("tool_choice"), dict):
        raise ApiError("You can only either use constraints for structured outputs or tools, not both.")
    tag = outputs.get("structural_tag")
    if tag is not None and not (isinstance(tag, str) and tag.lstrip().startswith("{")):
        text = "Invalid structured_outputs structural_tag specification."
        raise refused(text, "structured_outputs")


def _check_logprobs(body: Json, name: str) -> None:
    ids, shown = body.get("logprob_token_ids"), body.get("logprobs")
    if ids and not (shown if name == "top_logprobs" else shown is not None):
        text = "must be set to true." if name == "top_logprobs" else "must be set."
        raise refused(f"when using `logprob_token_ids`, `logprobs` {text}", "logprob_token_ids")
    for field in ("prompt_logprobs", name):
        value = body.get(field)
        if value is not None and not isinstance(value, int | float):
            raise refused(f"`{field}` must be an integer.", field, value)
    of_prompt = cast(float | None, body.get("prompt_logprobs"))
    if of_prompt is not None and body.get("stream") and (of_prompt > 0 or of_prompt == -1):
        raise refused("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    for field in ("prompt_logprobs", name):
        value = cast(float | None, body.get(field))
        if value is not None and value < 0 and value != -1:
            raise refused(f"`{field}` must be a positive value or -1.", field, value)
    if name == "top_logprobs" and body.get(name) and not shown:
        raise refused("when using `top_logprobs`, `logprobs` must be set to true.", name)


def _check_stream_options(body: Json) -> None:
    if body.get("stream_options") and not body.get("stream"):
        raise refused("Stream options can only be defined when `stream=True`.", "stream_options")


def _check_response_format(body: Json) -> None:
    wanted = body.get("response_format")
    if not isinstance(wanted, dict):
        return
    if wanted.get("type") == "json_schema" and wanted.get("json_schema") is None:
        text = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise refused(text, "response_format")
    if wanted.get("type") == "structural_tag" and not (wanted.get("format") or wanted.get("structures")):
        raise refused("Invalid response_format structural_tag specification.", "response_format")


def _check_thinking(body: Json) -> None:
    budget = body.get("thinking_token_budget")
    if budget is not None and (type(budget) is not int or budget < -1):
        text = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
        raise refused(text, "thinking_token_budget", budget)
