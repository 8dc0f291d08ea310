"""What vLLM refuses of fields beyond their types.

Source: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py` and `sampling_params.py`; the
words were compared with a running engine's.
"""

from typing import cast

from anbar.apps.emulator.errors import ApiError, Json, refused

MAX_LOGPROBS = 20
"""vLLM's default of `--max-logprobs`."""
MAX_N = 16_384
"""vLLM's default of `VLLM_MAX_N_SEQUENCES`."""
MAX_PROMPTS = 1024
"""vLLM's default of `VLLM_MAX_COMPLETION_PROMPTS`."""
_MAX_SALT_CHARS = 128


def check_raw(body: Json, *, chat: bool) -> None:
    """What is refused before fields are converted."""
    if body.get("stream_options") and not body.get("stream"):
        raise refused("Stream options can only be defined when `stream=True`.", "stream_options")
    check_salt(body)
    _check_logprobs(body, "top_logprobs" if chat else "logprobs")
    if chat:
        top = body.get("top_logprobs")
        if top is not None and top != 0 and not body.get("logprobs"):
            raise refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        _check_tool_choice(body)
    elif body.get("prompt") in (None, ""):
        raise refused("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def check_num_prompts(prompt: object, most: int) -> None:
    """How many prompts a completion may have; a list of numbers is one."""
    if isinstance(prompt, list) and len(prompt) > most and not isinstance(prompt[0], int):
        text = f"prompt list length {len(prompt)} exceeds the maximum allowed count of {most}. To increase "
        raise refused(
            f"{text}this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.", "prompt"
        )


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


def _check_logprobs(body: Json, name: str) -> None:
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


def _check_tool_choice(body: Json) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        text = "`tools` must not be an empty array. Either provide at least one tool or omit the field "
        raise refused(f"{text}entirely.", "tools")
    if choice is None or choice == "none":
        return
    if tools is None:
        raise refused("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not any(_tool_name(tool) == name for tool in cast(list[object], tools)):
            text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise refused(text, "tool_choice")
    elif choice not in ("auto", "required"):
        text = f"Invalid value for `tool_choice`: {choice}! Only named tools, "
        raise refused(f'{text}"none", "auto" or "required" are supported.', "tool_choice")


def _tool_name(tool: object) -> object:
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


def check_sampling(body: Json, max_tokens: int, vocab_size: int, max_n: int, *, chat: bool) -> None:
    """What sampling parameters refuse, after the prompt was read; `max_tokens` is what the context leaves."""
    n = cast(int, 1 if body.get("n") is None else body["n"])
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    if n > max_n:
        text = f"n must be at most {max_n}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
        raise ApiError(f"{text}environment variable.")
    _check_ranges(body)
    if max_tokens < 1:
        raise refused(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    min_tokens = cast(int, body.get("min_tokens") or 0)
    if min_tokens < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > max_tokens:
        text = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}."
        raise ApiError(text)
    _check_stops(body, vocab_size)
    if body.get("temperature") == 0 and n > 1:
        raise ApiError(f"n must be 1 when using greedy sampling, got {n}.")
    _check_numbers_of_logprobs(body, chat=chat)


def _check_ranges(body: Json) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = cast(float | None, body.get(name))
        if penalty is not None and not -2.0 <= penalty <= 2.0:
            raise ApiError(f"{name} must be in [-2, 2], got {penalty}.")
    repetition = cast(float | None, body.get("repetition_penalty"))
    if repetition is not None and repetition <= 0:
        raise ApiError(f"repetition_penalty must be greater than zero, got {repetition}.")
    temperature = cast(float | None, body.get("temperature"))
    if temperature is not None and temperature < 0:
        raise refused(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature is not None and temperature > 2:
        raise refused(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    top_p = cast(float | None, body.get("top_p"))
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise refused(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    top_k = cast(int | None, body.get("top_k"))
    if top_k is not None and top_k < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    min_p = cast(float | None, body.get("min_p"))
    if min_p is not None and not 0.0 <= min_p <= 1.0:
        raise ApiError(f"min_p must be in [0, 1], got {min_p}.")


def _check_stops(body: Json, vocab_size: int) -> None:
    stop = body.get("stop")
    if stop == "" or (isinstance(stop, list) and "" in stop):
        raise ApiError("stop cannot contain an empty string.")
    ids = cast(list[int], body.get("stop_token_ids") or [])
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        text = f"token_id(s) {outside} in stop_token_ids contain out-of-vocab token ids. Vocabulary size: "
        raise refused(f"{text}{vocab_size}", "stop_token_ids", outside)
    bias = cast(dict[str, float], body.get("logit_bias") or {})
    odd = [key for key in bias if not key.lstrip("-").isdigit()]
    if odd:
        text = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {odd}"
        raise refused(text, "logit_bias", odd)
    if body.get("allowed_token_ids") == []:
        raise refused("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
    words = cast(list[str], body.get("bad_words") or [])
    if "" in words:
        raise ApiError(f"bad_words cannot contain an empty string. Got bad_words={words}")


def _check_numbers_of_logprobs(body: Json, *, chat: bool) -> None:
    for name in ("top_logprobs" if chat else "logprobs", "prompt_logprobs"):
        number = cast(int | None, body.get(name))
        if number is not None and number > MAX_LOGPROBS:
            what = "prompt logprobs" if name == "prompt_logprobs" else "sample logprobs"
            text = f"Requested {what} of {number}, which is greater than max allowed: {MAX_LOGPROBS}"
            raise refused(text, name.removeprefix("top_"), number)
