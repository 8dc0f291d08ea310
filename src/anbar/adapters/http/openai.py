"""OpenAI's request bodies: read once, as far as routing needs, and judged before an engine sees them.

What is not typed here is checked to be JSON and forwarded untouched: the body that reaches the engine is the
client's, byte for byte. Types are strict, as OpenAI's are: `"5"` is not a number.
"""

import re
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import TypeVar, cast

import msgspec

from anbar.adapters.http.bodies import (
    Chat,
    Common,
    Completion,
    bad,
    judge_logprobs,
    judge_messages,
    judge_output_limit,
    judge_prompt,
    judge_sampling,
)
from anbar.core.errors import RequestError
from anbar.core.refusals import prompt_too_long
from anbar.core.request import MAX_CHARS_PER_TOKEN

_ENGINE_SIDE_FIELDS = ("kv_transfer_params", "ec_transfer_params")
_FIELD_IN_ERROR = re.compile(r"at `\$\.([A-Za-z0-9_]+)")
_MISSING_FIELD = re.compile(r"missing required field `([A-Za-z0-9_]+)`")
_SALT_FORBIDDEN = frozenset("@/\\\x00")
_SALT_MAX_CHARS = 128


class Endpoint(StrEnum):
    """The routed endpoints."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class ClientKv(Enum):
    """Whether a client may send fields that name KV: `cache_salt` and the transfer parameters."""

    REFUSE = "refuse"
    ALLOW = "allow"


class ApiRequest(msgspec.Struct, frozen=True):
    """A request as far as routing goes. `body` is the whole of it, as JSON values; nobody may change it."""

    endpoint: Endpoint
    model: str
    body: Mapping[str, object]
    num_bytes: int
    """Of the body as it came: at least the number of its characters."""
    stream: bool
    wants_usage: bool
    max_output_tokens: int | None
    max_output_param: str
    reads_cache: bool
    """False when the engine skips its prefix cache: log-probabilities of the prompt are asked for."""
    cache_salt: str | None
    wish: Mapping[str, object] | None = None
    """What the router itself asks of the shared tier (`kv_transfer_params.anbar`): where there are tenants,
    also in `body`."""


_decode_json = msgspec.json.Decoder().decode
_BodyT = TypeVar("_BodyT", bound=Common)


def parse(endpoint: Endpoint, body: bytes, client_kv: ClientKv) -> ApiRequest:
    """Read and judge a body. Raises RequestError, and nothing else whatever the bytes are."""
    value = _decode(body)
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    if endpoint is Endpoint.CHAT:
        return _judge_chat(_typed(value, Chat), value, len(body), client_kv)
    return _judge_completion(_typed(value, Completion), value, len(body), client_kv)


def _decode(body: bytes) -> object:
    try:
        return _decode_json(body)
    except msgspec.DecodeError as error:
        raise RequestError(f"The body is not valid JSON in UTF-8: {error}.") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None


def _typed(value: dict[str, object], kind: type[_BodyT]) -> _BodyT:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _wrong_value(str(error)) from None


def _wrong_value(text: str) -> RequestError:
    if missing := _MISSING_FIELD.search(text):
        name = missing[1]
        return RequestError(f"You must provide the parameter {name!r}.", param=name, code="missing_parameter")
    field = _FIELD_IN_ERROR.search(text)
    if field is None:
        return RequestError("The body must be a JSON object.")
    name = field[1]
    return RequestError(f"Invalid type for {name!r}: {text}.", param=name, code="invalid_type")


def _judge_chat(typed: Chat, body: dict[str, object], num_bytes: int, client_kv: ClientKv) -> ApiRequest:
    _judge_common(typed, body, client_kv)
    judge_messages(typed.messages)
    output, param = typed.max_tokens, "max_tokens"
    if typed.max_completion_tokens is not None:
        output, param = typed.max_completion_tokens, "max_completion_tokens"
    judge_output_limit(param, output, may_be_zero=False)
    top_logprobs = typed.top_logprobs
    if top_logprobs:
        judge_logprobs("top_logprobs", top_logprobs)
        if not typed.logprobs:
            raise bad("top_logprobs", "needs `logprobs: true`", "invalid_value")
    skips_cache = typed.prompt_logprobs is not None or bool(typed.echo and top_logprobs)
    return ApiRequest(
        Endpoint.CHAT,
        typed.model,
        body,
        num_bytes,
        stream=typed.stream is True,
        wants_usage=_wants_usage(typed),
        max_output_tokens=output,
        max_output_param=param,
        reads_cache=not skips_cache,
        cache_salt=typed.cache_salt,
    )


def _judge_completion(
    typed: Completion, body: dict[str, object], num_bytes: int, client_kv: ClientKv
) -> ApiRequest:
    _judge_common(typed, body, client_kv)
    if not typed.prompt_embeds or typed.prompt not in (None, "", []):
        judge_prompt(typed.prompt)
    judge_output_limit("max_tokens", typed.max_tokens, may_be_zero=bool(typed.echo))
    judge_logprobs("logprobs", typed.logprobs)
    skips_cache = typed.prompt_logprobs is not None or bool(typed.echo and typed.logprobs is not None)
    return ApiRequest(
        Endpoint.COMPLETIONS,
        typed.model,
        body,
        num_bytes,
        stream=typed.stream is True,
        wants_usage=_wants_usage(typed),
        # A missing max_tokens is 16 here: OpenAI's default, and vLLM's.
        max_output_tokens=16 if typed.max_tokens is None else typed.max_tokens,
        max_output_param="max_tokens",
        reads_cache=not skips_cache,
        cache_salt=typed.cache_salt,
    )


def _wants_usage(typed: Common) -> bool:
    options = typed.stream_options
    return typed.stream is not True or bool(options and options.include_usage)


def _judge_common(typed: Common, body: dict[str, object], client_kv: ClientKv) -> None:
    if not typed.model:
        raise bad("model", "must not be empty")
    judge_sampling(typed, body)
    if typed.cache_salt is not None:
        _judge_salt(typed.cache_salt, client_kv)
    for name in _ENGINE_SIDE_FIELDS:
        if getattr(typed, name) is not None and client_kv is ClientKv.REFUSE:
            raise _not_yours(name)
        if typed.vllm_xargs and name in typed.vllm_xargs:
            raise bad("vllm_xargs", f"must not contain {name!r}", "invalid_value")


def _judge_salt(salt: str, client_kv: ClientKv) -> None:
    if client_kv is ClientKv.REFUSE:
        raise _not_yours("cache_salt")
    if not salt or len(salt) > _SALT_MAX_CHARS or _SALT_FORBIDDEN & set(salt):
        limit = f"must have 1 to {_SALT_MAX_CHARS} characters, none of them `@`, `/`, `\\` or NUL"
        raise bad("cache_salt", limit, "invalid_value")


def _not_yours(name: str) -> RequestError:
    return RequestError(
        f"{name!r} is not accepted from clients here (router.client_kv_fields is refuse).",
        param=name,
        code="unsupported_parameter",
    )


def check_length(request: ApiRequest, num_tokens: int, max_model_len: int) -> None:
    """Refuse what the engine would refuse for its length, by its own rule.

    The answer's limit alone must fit the context; the prompt must leave room for one token; together they
    may be longer, the engine then shortens the answer. Source: vLLM 0.32 `renderers/params.py`
    (TokenizeParams), `v1/engine/input_processor.py` (`_validate_prompt_len`), `get_max_tokens`.
    """
    check_output_length(request, max_model_len)
    if num_tokens >= max_model_len:
        raise prompt_too_long(num_tokens, max_model_len, _prompt_param(request))


def is_beyond_context(request: ApiRequest, max_model_len: int) -> bool:
    """Whether the prompt has more text than the context could hold with the longest of tokens: then it need
    not be tokenized, which takes a second per megabyte."""
    most = MAX_CHARS_PER_TOKEN * max_model_len
    return request.num_bytes > most and _num_chars(request) > most


def beyond_context(request: ApiRequest, max_model_len: int) -> RequestError:
    """The error for such a prompt, unless the engine is asked to truncate it."""
    return RequestError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt has "
        f"{_num_chars(request)} characters, which is more than so many tokens can stand for.",
        param=_prompt_param(request),
        code="context_length_exceeded",
    )


def _prompt_param(request: ApiRequest) -> str:
    return "messages" if request.endpoint is Endpoint.CHAT else "prompt"


def truncates(request: ApiRequest) -> bool:
    """Whether the engine is asked to shorten the prompt."""
    return request.body.get("truncate_prompt_tokens") is not None


def _num_chars(request: ApiRequest) -> int:
    """Characters of text in the longest prompt, at least: what a template makes of tools and documents is
    not counted."""
    if request.endpoint is Endpoint.COMPLETIONS:
        prompt = request.body.get("prompt")
        prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str) else [prompt]
        return max(len(text) if isinstance(text, str) else 0 for text in prompts)
    messages = cast("list[dict[str, object]]", request.body["messages"])
    return sum(_num_content_chars(message.get("content")) for message in messages)


def _num_content_chars(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return sum(len(text) for text in texts if isinstance(text, str))


def check_output_length(request: ApiRequest, max_model_len: int) -> None:
    """Refuse an answer's limit that exceeds the whole context."""
    if request.max_output_tokens is not None and request.max_output_tokens > max_model_len:
        raise RequestError(
            f"{request.max_output_param} is {request.max_output_tokens}, but this model's maximum context "
            f"length is {max_model_len} tokens. Please request fewer tokens.",
            param=request.max_output_param,
            code="context_length_exceeded",
        )
