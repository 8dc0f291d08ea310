"""What vLLM refuses of sampling parameters, once the prompt has been read.

Source: vLLM 0.32 `sampling_params.py`; the words were compared with a running engine's. What is found by the
front end refuses a request at once, what is found by the engine's client only when a stream has begun.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from anbar.apps.emulator.constraints import check_constraint
from anbar.apps.emulator.errors import ApiError, Json, LateError, refused, refused_late

MAX_LOGPROBS = 20
"""vLLM's default of `--max-logprobs`."""
_MAX_LOGPROB_TOKEN_IDS = 128
_LEAST_INT, _LIMIT_OF_INTS = -(2**63), 2**64
"""What the engine's messages can carry."""


def check_sampling(body: Json, max_tokens: int, max_n: int) -> None:
    """`max_tokens` is what the request asks for and the context leaves."""
    if body.get("logit_bias"):
        _check_bias(cast(Mapping[str, float], body["logit_bias"]))
    n = cast(int, 1 if body.get("n") is None else body["n"])
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    if n > max_n:
        text = f"n must be at most {max_n}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
        raise ApiError(f"{text}environment variable.")
    if not body.keys().isdisjoint(_EXTRA):
        for name in _EXTRA:
            _check_integers(body.get(name))
    if not body.keys().isdisjoint(_RANGES):
        for name, check in _RANGES.items():
            if body.get(name) is not None:
                check(name, cast(Any, body[name]))
    if max_tokens < 1:
        raise refused(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    min_tokens = cast(int, body.get("min_tokens") or 0)
    if min_tokens < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > max_tokens:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")
    _check_words(body)
    check_constraint(body)
    temperature = cast(float | None, body.get("temperature"))
    if n > 1 and temperature is not None and temperature < _GREEDY:
        raise ApiError(f"n must be 1 when using greedy sampling, got {n}.")


_EXTRA = ("kv_transfer_params", "ec_transfer_params", "vllm_xargs")
_GREEDY = 1e-5
"""Temperatures below are 0 to vLLM."""


def _check_bias(bias: Mapping[str, float]) -> None:
    odd = [key for key in bias if not _is_int(key)]
    if odd:
        text = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {odd}"
        raise refused(text, "logit_bias", odd)


def _is_int(text: str) -> bool:
    """As Python reads numbers: with blanks around, a sign, digits of any script."""
    try:
        int(text)
    except ValueError:
        return False
    return True


def _check_integers(value: object) -> None:
    if isinstance(value, int):
        if not _LEAST_INT <= value < _LIMIT_OF_INTS:
            raise refused("extra_args integers must be between -2**63 and 2**64 - 1.", "extra_args")
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_integers(part)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            _check_integers(part)


def _check_penalty(name: str, value: float) -> None:
    if not -2.0 <= value <= 2.0:
        raise ApiError(f"{name} must be in [-2, 2], got {value}.")


def _check_repetition(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ApiError(f"{name} must be a finite number, got {value}.")
    if value <= 0:
        raise ApiError(f"{name} must be greater than zero, got {value}.")


def _check_temperature(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise refused(f"{name} must be a finite number, got {value}.", name, value)
    if value < 0:
        raise refused(f"{name} must be non-negative, got {value}.", name, value)
    if value > 2:
        raise refused(f"{name} must be in [0, 2], got {value}.", name, value)


def _check_top_p(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise refused(f"{name} must be in (0, 1], got {value}.", name, value)


def _check_top_k(name: str, value: int) -> None:
    if value < -1:
        raise ApiError(f"{name} must be 0 (disable), or at least 1, got {value}.")


def _check_min_p(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ApiError(f"{name} must be in [0, 1], got {value}.")


_RANGES: Mapping[str, Callable[[str, Any], None]] = {
    "presence_penalty": _check_penalty,
    "frequency_penalty": _check_penalty,
    "repetition_penalty": _check_repetition,
    "temperature": _check_temperature,
    "top_p": _check_top_p,
    "top_k": _check_top_k,
    "min_p": _check_min_p,
}


def _check_words(body: Json) -> None:
    stop = body.get("stop")
    if stop == "" or (isinstance(stop, list) and "" in stop):
        raise ApiError("stop cannot contain an empty string.")
    words = cast(Sequence[str], body.get("bad_words") or ())
    if "" in words:
        raise ApiError(f"bad_words cannot contain an empty string. Got bad_words={words}")


_OF_ENGINE = frozenset(
    (
        *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "logit_bias", "stop_token_ids"),
        *("allowed_token_ids", "thinking_token_budget"),
    )
)


def check_for_engine(body: Json, vocab_size: int, *, chat: bool) -> None:
    """LateError for what the engine's client refuses; `vocab_size` is the model's."""
    if body.keys().isdisjoint(_OF_ENGINE):
        return
    ids = cast(Sequence[int] | None, body.get("logprob_token_ids")) or None
    sampled = cast(int | None, body.get("top_logprobs" if chat else "logprobs"))
    _check_number(None if ids else sampled, "logprobs", "sample logprobs", vocab_size)
    if ids is not None:
        _check_logprob_ids(ids, vocab_size)
    of_prompt = body.get("prompt_logprobs")
    if of_prompt is None and body.get("echo"):
        of_prompt = sampled
    _check_number(cast(int | None, of_prompt), "prompt_logprobs", "prompt logprobs", vocab_size)
    if body.get("logit_bias"):
        _check_ids(
            "logit_bias", [int(key) for key in cast(Mapping[str, float], body["logit_bias"])], vocab_size
        )
    if body.get("stop_token_ids"):
        unique = dict.fromkeys(cast(Sequence[int], body["stop_token_ids"]))
        _check_ids("stop_token_ids", list(unique), vocab_size)
    allowed = cast(Sequence[int] | None, body.get("allowed_token_ids"))
    if allowed is not None:
        _check_allowed(allowed, vocab_size)
    if body.get("thinking_token_budget") not in (None, -1):
        text = "thinking_token_budget is set but reasoning_config is not configured. Please set "
        raise LateError(f"{text}--reasoning-parser and/or --reasoning-config to use thinking_token_budget.")


def _check_number(number: int | None, name: str, what: str, vocab_size: int) -> None:
    if not number:
        return
    number = vocab_size if number == -1 else number
    if number > MAX_LOGPROBS:
        text = f"Requested {what} of {number}, which is greater than max allowed: {MAX_LOGPROBS}"
        raise refused_late(text, name, number)


def _check_logprob_ids(ids: Sequence[int], vocab_size: int) -> None:
    name = "logprob_token_ids"
    if len(ids) > _MAX_LOGPROB_TOKEN_IDS:
        text = f"Requested {name} of length {len(ids)}, which is greater than max allowed: "
        raise refused_late(f"{text}{_MAX_LOGPROB_TOKEN_IDS}", name, len(ids))
    _check_ids(name, ids, vocab_size)


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        text = f"token_id(s) {outside} in {name} contain out-of-vocab token ids. Vocabulary size: "
        raise refused_late(f"{text}{vocab_size}", name, outside)


def _check_allowed(ids: Sequence[int], vocab_size: int) -> None:
    name = "allowed_token_ids"
    if not ids:
        raise refused_late(f"{name} is not None and empty!", name, [])
    outside = [token for token in ids if not 0 <= token < vocab_size]
    if outside:
        raise refused_late(f"{name} contains out-of-vocab token id!", name, outside)
