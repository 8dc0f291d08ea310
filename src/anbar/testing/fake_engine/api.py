"""What the engine accepts: bodies of /v1/chat/completions and /v1/completions, and vLLM's refusals.

Source of the rules and texts: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`,
`entrypoints/serve/exception_handling/`, `entrypoints/serve/engine/serving.py`, `renderers/params.py`.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from anbar.testing.fake_engine.errors import ApiError, FrameworkError, Json, invalid, refused
from anbar.testing.fake_engine.fields import check_fields, check_sampling, typed
from anbar.testing.fake_engine.http import HttpRequest
from anbar.testing.fake_engine.prompts import chat_prompt, completion_prompts
from anbar.testing.fake_engine.tokenizer import FakeTokenizer

_decode = msgspec.json.Decoder().decode
dump = msgspec.json.Encoder().encode
"""JSON as the engine writes it: compact, text as UTF-8."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model allows."""

    models: tuple[str, ...]
    loras: tuple[str, ...]
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Generate:
    """A valid generation request."""

    chat: bool
    id: str
    model: str
    lora: str | None
    salt: str | None
    prompts: tuple[tuple[int, ...], ...]
    prompt_texts: tuple[str, ...]
    reads_cache: bool
    """False: the prefix cache is not looked up, since prompt log-probabilities must be computed."""
    n: int
    max_tokens: int
    """Already at most what the context leaves for the longest prompt."""
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    return_token_ids: bool
    role: str
    kv_transfer_params: Json | None


def parse_json(request: HttpRequest) -> dict[str, object]:
    """The body as an object; ApiError as FastAPI and vLLM word it."""
    kind = (request.header("content-type") or "").lower().partition(";")[0].strip()
    if kind != "application/json":
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    if not request.body:
        raise invalid("{'type': 'missing', 'loc': 'body', 'msg': 'Field required'}", "body")
    try:
        request.body.decode()
        body = _decode(request.body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise FrameworkError("There was an error parsing the body") from error
    except msgspec.DecodeError as error:
        text = "{'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error'}"
        raise invalid(text, "body.0") from error
    if not isinstance(body, dict):
        raise invalid(
            "{'type': 'model_attributes_type', 'msg': 'Input should be a valid dictionary'}", "body"
        )
    return cast(dict[str, object], body)


def parse_generate(
    request: HttpRequest, body: Json, *, chat: bool, tokenizer: FakeTokenizer, limits: Limits
) -> Generate:
    """Validate in vLLM's order: fields, model, prompt, length, sampling; ApiError for what it refuses."""
    body = typed(body, chat=chat)
    check_fields(body, chat=chat)
    wanted, wanted_name = _wanted_tokens(body, chat=chat)
    model = cast(str, body.get("model") or limits.models[0])
    if model not in limits.models and model not in limits.loras:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(limits.models)}."
        raise ApiError(message, status=404, kind="NotFoundError", param="model")
    texts, prompts = chat_prompt(body, tokenizer) if chat else completion_prompts(body, tokenizer)
    longest = max(len(prompt) for prompt in prompts)
    _check_length(longest, wanted, wanted_name, limits.max_model_len)
    check_sampling(body)
    left = limits.max_model_len - longest
    max_tokens = left if wanted is None else min(wanted, left)
    if max_tokens < 1 and not body.get("echo"):
        raise refused(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    options = cast(Json, body.get("stream_options") or {})
    usage = bool(options.get("include_usage"))
    stop = body.get("stop") or []
    return Generate(
        chat=chat,
        id=_request_id(request, body, "chatcmpl" if chat else "cmpl"),
        model=model if model in limits.loras else limits.models[0],
        lora=model if model in limits.loras else None,
        salt=cast(str | None, body.get("cache_salt")),
        prompts=prompts,
        reads_cache=not _wants_prompt_logprobs(body, chat=chat),
        prompt_texts=texts,
        n=cast(int, body.get("n") or 1),
        max_tokens=max_tokens,
        min_tokens=cast(int, body.get("min_tokens") or 0),
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(cast(Sequence[str], stop)),
        seed=cast(int | None, body.get("seed")),
        stream=bool(body.get("stream")),
        include_usage=usage,
        continuous_usage=usage and bool(options.get("continuous_usage_stats")),
        echo=bool(body.get("echo")),
        return_token_ids=bool(body.get("return_token_ids")),
        role="assistant" if body.get("add_generation_prompt", True) else _last_role(body),
        kv_transfer_params=cast(Json | None, body.get("kv_transfer_params")),
    )


def _request_id(request: HttpRequest, body: Json, prefix: str) -> str:
    given = request.header("x-request-id") or cast(str | None, body.get("request_id"))
    return f"{prefix}-{given or uuid.uuid4().hex}"


def _last_role(body: Json) -> str:
    messages = cast(Sequence[Json], body.get("messages") or [{}])
    return str(messages[-1].get("role", "assistant"))


def _wanted_tokens(body: Json, *, chat: bool) -> tuple[int | None, str]:
    """The limit that the request sets on its answer, and the field that sets it."""
    if chat and body.get("max_completion_tokens") is not None:
        return cast(int, body["max_completion_tokens"]), "max_completion_tokens"
    given = cast(int | None, body.get("max_tokens"))
    return 16 if given is None and not chat else given, "max_tokens"


def _wants_prompt_logprobs(body: Json, *, chat: bool) -> bool:
    if body.get("prompt_logprobs") is not None:
        return True
    return bool(body.get("echo")) and body.get("top_logprobs" if chat else "logprobs") not in (None, False)


def _check_length(longest: int, wanted: int | None, wanted_name: str, max_model_len: int) -> None:
    if wanted is not None and wanted > max_model_len:
        text = f"{wanted_name}={wanted} cannot be greater than max_model_len={max_model_len}."
        raise refused(f"{text} Please request fewer output tokens.", wanted_name, wanted)
    if longest > max_model_len:
        text = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"at least {max_model_len + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt."
        )
        raise refused(text, "input_tokens", max_model_len + 1)
    if longest == max_model_len:
        raise ApiError(
            f"The decoder prompt (length {longest}) plus the number of requested output tokens (at least 1) "
            f"is longer than the maximum model length of {max_model_len}."
        )
