"""What the engine accepts: bodies of /v1/chat/completions and /v1/completions, and vLLM's refusals.

Source of the rules and texts: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`,
`entrypoints/serve/exception_handling/`, `entrypoints/serve/engine/serving.py`, `renderers/params.py`.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from anbar.testing.fake_engine.http import HttpRequest
from anbar.testing.fake_engine.tokenizer import FakeTokenizer, TemplateError

Json = Mapping[str, object]

_decode = msgspec.json.Decoder().decode

_NUMBER = (int, float)
_CHAT: dict[str, tuple[type, ...]] = {
    "messages": (list,),
    "max_completion_tokens": (int,),
    "tools": (list,),
    "chat_template_kwargs": (dict,),
    "add_generation_prompt": (bool,),
    "continue_final_message": (bool,),
    "top_logprobs": (int,),
}
_COMPLETION: dict[str, tuple[type, ...]] = {"prompt": (str, list), "suffix": (str,), "logprobs": (int,)}
_BOTH: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "max_tokens": (int,),
    "n": (int,),
    "stream": (bool,),
    "stream_options": (dict,),
    "stop": (str, list),
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": (int,),
    "user": (str,),
    "min_tokens": (int,),
    "ignore_eos": (bool,),
    "echo": (bool,),
    "cache_salt": (str,),
    "kv_transfer_params": (dict,),
    "request_id": (str,),
    "session_id": (str,),
    "priority": (int,),
}
_RANGES = {"temperature": (0.0, 2.0), "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0)}


class ApiError(Exception):
    """A refusal: status, `error.type`, `error.message`, `error.param`."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> Json:
        """vLLM's `ErrorResponse`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


class Unauthorized(ApiError):
    """The key is wrong: vLLM's middleware answers without its usual shape."""

    def body(self) -> Json:
        return {"error": self.message}


def invalid(message: str, param: str) -> ApiError:
    """A body that does not validate (FastAPI's RequestValidationError as vLLM shows it)."""
    return ApiError(f"1 validation error:\n  {message}", kind="Bad Request", param=param)


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
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed", "body")
    try:
        body = _decode(request.body)
    except UnicodeDecodeError as error:
        raise ApiError("There was an error parsing the body", kind="Bad Request") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(
            "{'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error'}", "body.0"
        ) from error
    if not isinstance(body, dict):
        raise invalid(
            "{'type': 'model_attributes_type', 'msg': 'Input should be a valid dictionary'}", "body"
        )
    return cast(dict[str, object], body)


def parse_generate(
    request: HttpRequest, body: Json, *, chat: bool, tokenizer: FakeTokenizer, limits: Limits
) -> Generate:
    """Validate in vLLM's order: fields, model, prompt, length, sampling; ApiError for what it refuses."""
    _check_types(body, _BOTH | (_CHAT if chat else _COMPLETION))
    _check_fields(body, chat=chat)
    wanted, wanted_name = _wanted_tokens(body, chat=chat)
    model = cast(str, body.get("model") or limits.models[0])
    if model not in limits.models and model not in limits.loras:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(limits.models)}."
        raise ApiError(message, status=404, kind="NotFoundError", param="model")
    texts, prompts = _chat_prompt(body, tokenizer) if chat else _completion_prompts(body, tokenizer)
    longest = max(len(prompt) for prompt in prompts)
    _check_length(longest, wanted, wanted_name, limits.max_model_len)
    left = limits.max_model_len - longest
    max_tokens = left if wanted is None else min(wanted, left)
    if max_tokens < 1 and not body.get("echo"):
        raise ApiError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
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
        raise ApiError(f"{text} Please request fewer output tokens.", param=wanted_name)
    if longest > max_model_len:
        raise ApiError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"at least {max_model_len + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    if longest == max_model_len:
        raise ApiError(
            f"The decoder prompt (length {longest}) plus the number of requested output tokens (at least 1) "
            f"is longer than the maximum model length of {max_model_len}."
        )


def _check_types(body: Json, types: Mapping[str, tuple[type, ...]]) -> None:
    for name, allowed in types.items():
        value = body.get(name)
        if value is None:
            continue
        is_flag = isinstance(value, bool)
        if not isinstance(value, allowed) or (is_flag and bool not in allowed):
            expected = " or ".join(kind.__name__ for kind in allowed)
            raise invalid(
                f"{{'type': '{allowed[0].__name__}_type', 'loc': 'body.{name}', "
                f"'msg': 'Input should be a valid {expected}'}}",
                f"body.{name}",
            )


def _check_fields(body: Json, *, chat: bool) -> None:
    if chat and "messages" not in body:
        raise invalid("{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}", "body.messages")
    if body.get("stream_options") and not body.get("stream"):
        raise invalid("Value error, Stream options can only be defined when `stream=True`.", "stream_options")
    salt = body.get("cache_salt")
    if salt is not None and (
        salt == "" or len(cast(str, salt)) > 128 or set(cast(str, salt)) & set("@/\\\x00")
    ):
        raise invalid("Value error, Parameter 'cache_salt' must be a non-empty string", "cache_salt")
    n = cast(int, body.get("n") or 1)
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    for name, (low, high) in _RANGES.items():
        value = cast(float | None, body.get(name))
        if value is not None and not low <= value <= high:
            raise ApiError(f"{name} must be in [{low:g}, {high:g}], got {value}.", param=name)
    top_p = cast(float | None, body.get("top_p"))
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ApiError(f"top_p must be in (0, 1], got {top_p}.", param="top_p")


def _chat_prompt(body: Json, tokenizer: FakeTokenizer) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
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
        text = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise invalid(f"Value error, {text}", "body")
    try:
        text = tokenizer.chat_text(
            cast(list[Json], messages),
            add_generation_prompt=bool(body.get("add_generation_prompt", True)),
            continue_final_message=bool(body.get("continue_final_message")),
            variables=_template_variables(body),
        )
    except TemplateError as error:
        raise ApiError(str(error)) from error
    special = bool(body.get("add_special_tokens", False))
    return (text,), (tuple(tokenizer.encode(text, special=special)),)


def _template_variables(body: Json) -> dict[str, object]:
    """What a request gives the template beside its messages (`build_chat_params`)."""
    asked = cast(Json, body.get("chat_template_kwargs") or {})
    own: dict[str, object] = {
        "documents": body.get("documents"),
        "reasoning_effort": body.get("reasoning_effort"),
    }
    if own["reasoning_effort"] is not None and "enable_thinking" not in asked:
        own["enable_thinking"] = own["reasoning_effort"] != "none"
    if body.get("tools") is not None:
        own["tools"] = [_tool(cast(Json, tool)) for tool in cast(list[object], body["tools"])]
    return {**asked, **{name: value for name, value in own.items() if value is not None}}


def _tool(tool: Json) -> Json:
    """A tool as vLLM's model of it prints: known keys in order, null where not given."""
    function = cast(Json, tool.get("function") or {})
    shown = {name: function.get(name) for name in ("name", "description", "parameters")}
    rare = {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": {**shown, **rare}}


def _completion_prompts(
    body: Json, tokenizer: FakeTokenizer
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    prompt = body.get("prompt")
    if prompt is None or prompt in ("", []):
        text = "Either prompt or prompt_embeds must be provided and non-empty."
        raise invalid(f"Value error, {text}", "prompt")
    special = bool(body.get("add_special_tokens", True))
    items = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else cast(list[object], prompt)
    texts: list[str] = []
    prompts: list[tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            prompts.append(tuple(tokenizer.encode(item, special=special)))
        elif _is_ids(item):
            ids = tuple(cast(list[int], item))
            outside = [token for token in ids if token < 0 or token >= tokenizer.vocab_size]
            if outside:
                raise ApiError(f"Token id {outside[0]} is out of vocabulary", param="prompt")
            texts.append(tokenizer.decode(ids))
            prompts.append(ids)
        else:
            raise invalid("{'type': 'string_type', 'loc': 'body.prompt'}", "body.prompt")
    if any(not ids for ids in prompts):
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    return tuple(texts), tuple(prompts)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


dump = msgspec.json.Encoder().encode
"""JSON as the engine writes it: compact, text as UTF-8."""
