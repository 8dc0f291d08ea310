"""The fields of a request: their types, what is converted, what is out of range.

Source: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py` and `sampling_params.py`. Its
models convert as pydantic does by default: "4" is a number, "yes" is true.
"""

from collections.abc import Mapping
from typing import cast

from anbar.apps.emulator.errors import ApiError, Json, invalid, refused

Types = Mapping[str, tuple[type, ...]]

_NUMBER = (int, float)
_BOTH: Types = {
    "model": (str,),
    "max_tokens": (int,),
    "n": (int,),
    "stream": (bool,),
    "stream_options": (dict,),
    "stop": (str, list),
    "stop_token_ids": (list,),
    "include_stop_str_in_output": (bool,),
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": (int,),
    "min_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": (int,),
    "user": (str,),
    "min_tokens": (int,),
    "ignore_eos": (bool,),
    "echo": (bool,),
    "prompt_logprobs": (int,),
    "return_token_ids": (bool,),
    "return_tokens_as_token_ids": (bool,),
    "cache_salt": (str,),
    "kv_transfer_params": (dict,),
    "request_id": (str,),
    "session_id": (str,),
    "priority": (int,),
}
_CHAT: Types = {
    **_BOTH,
    "messages": (list,),
    "max_completion_tokens": (int,),
    "tools": (list,),
    "chat_template_kwargs": (dict,),
    "add_generation_prompt": (bool,),
    "continue_final_message": (bool,),
    "logprobs": (bool,),
    "top_logprobs": (int,),
}
_COMPLETION: Types = {**_BOTH, "prompt": (str, list), "suffix": (str,), "logprobs": (int,)}

_WORDS = {"true": True, "yes": True, "on": True, "1": True}
_WORDS |= {"false": False, "no": False, "off": False, "0": False}


def typed(body: Json, *, chat: bool) -> dict[str, object]:
    """The body with its known fields in their types; ApiError for one that does not fit."""
    types = _CHAT if chat else _COMPLETION
    typed_body = dict(body)
    for name, value in body.items():
        allowed = types.get(name)
        if allowed is not None and value is not None:
            typed_body[name] = _converted(name, value, allowed)
    return typed_body


def _converted(name: str, value: object, allowed: tuple[type, ...]) -> object:
    if isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool)):
        return value
    if isinstance(value, str | bool) and str not in allowed:
        try:
            if bool in allowed:
                return _WORDS[str(value).lower()]
            if float in allowed:
                return float(value)
            if int in allowed:
                return int(value)
        except (KeyError, ValueError):
            pass
    expected = " or ".join(kind.__name__ for kind in allowed)
    where = f"body.{name}"
    kind = f"{allowed[0].__name__}_type"
    text = f"{{'type': '{kind}', 'loc': '{where}', 'msg': 'Input should be a valid {expected}'}}"
    raise invalid(text, where)


def check_fields(body: Json, *, chat: bool) -> None:
    """What vLLM refuses of fields that have the right type."""
    if chat and "messages" not in body:
        raise invalid("{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}", "body.messages")
    if body.get("stream_options") and not body.get("stream"):
        raise refused("Stream options can only be defined when `stream=True`.", "stream_options")
    check_salt(body)
    _check_logprobs(body, chat=chat)


def check_salt(body: Json) -> None:
    """A salt's length and characters."""
    salt = cast(str | None, body.get("cache_salt"))
    if salt == "":
        raise refused("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if salt is not None and (len(salt) > 128 or set(salt) & set("@/\\\x00")):
        text = "Parameter 'cache_salt' must be at most 128 characters and must not contain "
        text += "'@', '/', '\\\\', or NUL."
        raise refused(text, "cache_salt")


def _check_logprobs(body: Json, *, chat: bool) -> None:
    of_prompt = cast(int | None, body.get("prompt_logprobs"))
    if of_prompt is not None:
        if body.get("stream") and (of_prompt > 0 or of_prompt == -1):
            raise refused("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if of_prompt < -1:
            raise refused("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", of_prompt)
    name = "top_logprobs" if chat else "logprobs"
    top = cast(int | None, body.get(name))
    if top is None:
        return
    if top < -1:
        raise refused(f"`{name}` must be a positive value or -1.", name, top)
    if chat and top != 0 and not body.get("logprobs"):
        raise refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")


MAX_LOGPROBS = 20
"""vLLM's default of `--max-logprobs`."""


def check_sampling(body: Json, *, chat: bool) -> None:
    """What vLLM's sampling parameters refuse, after the prompt was read."""
    n = cast(int, 1 if body.get("n") is None else body["n"])
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    if n > 1 and body.get("temperature") == 0:
        raise ApiError(f"n must be 1 when using greedy sampling, got {n}.")
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = cast(float | None, body.get(name))
        if penalty is not None and not -2.0 <= penalty <= 2.0:
            raise ApiError(f"{name} must be in [-2, 2], got {penalty}.")
    temperature = cast(float | None, body.get("temperature"))
    if temperature is not None and temperature < 0:
        raise refused(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature is not None and temperature > 2:
        raise refused(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    top_p = cast(float | None, body.get("top_p"))
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise refused(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    _check_numbers_of_logprobs(body, chat=chat)


def _check_numbers_of_logprobs(body: Json, *, chat: bool) -> None:
    for name in ("top_logprobs" if chat else "logprobs", "prompt_logprobs"):
        number = cast(int | None, body.get(name))
        if number is not None and number > MAX_LOGPROBS:
            what = "prompt logprobs" if name == "prompt_logprobs" else "sample logprobs"
            text = f"Requested {what} of {number}, which is greater than max allowed: {MAX_LOGPROBS}"
            raise refused(text, name.removeprefix("top_"), number)
