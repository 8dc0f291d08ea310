"""What the engine accepts: bodies of /v1/chat/completions and /v1/completions, and vLLM's refusals.

Source of the rules and texts: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`,
`entrypoints/serve/engine/serving.py`, `renderers/params.py`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from anbar.adapters.http.message import Request
from anbar.apps.emulator.answers import AnswerRules
from anbar.apps.emulator.body_models import Chat, Completion, typed
from anbar.apps.emulator.constraints import check_typed, constrained_text
from anbar.apps.emulator.errors import ApiError, Json, refused
from anbar.apps.emulator.fields import MAX_N, MAX_PROMPTS, check_raw
from anbar.apps.emulator.prompts import (
    chat_prompt,
    check_truncation,
    check_vocabulary,
    completion_prompts,
    has_ids,
    reused_prompt,
    too_long,
)
from anbar.apps.emulator.sampling import check_for_engine, check_sampling
from anbar.apps.emulator.text import ModelText
from anbar.apps.emulator.tools import ForcedCall, check_tools, forced_call
from anbar.apps.emulator.transfer_params import TransferParams, parse


@dataclass(frozen=True, slots=True)
class Served:
    """What the engine serves, by the names that clients use."""

    models: tuple[str, ...]
    loras: Mapping[str, object]
    """Adapters, as they are at the moment."""
    force_include_usage: bool = False
    auto_tools: bool = False
    max_n: int = MAX_N
    max_prompts: int = MAX_PROMPTS
    """Of one completion."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request wants to see beside the text."""

    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    token_ids: bool
    prompt_text: bool
    """Of a chat (`return_prompt_text`)."""
    logprobs: int | None
    """Alternatives per token of the answer; None: no log-probabilities."""
    prompt_logprobs: int | None
    tokens_as_ids: bool
    stream_interval: int
    """Tokens per chunk, but for the first and the last one."""


@dataclass(frozen=True, slots=True)
class Generate:
    """A valid generation request."""

    chat: bool
    id: str
    model: str
    lora: str | None
    salt: str | None
    session: str | None
    prompts: tuple[tuple[int, ...], ...]
    is_text: bool
    """The prompts came as text, and have to be tokenized."""
    echoes: tuple[str, ...]
    """What is repeated before the answer to each prompt: the prompt, or a chat's last message."""
    n: int
    rules: AnswerRules
    """`max_tokens` is at most what the context leaves for the longest prompt, and at least 1."""
    max_tokens: int | None
    """As the request has it."""
    seed: int | None
    role: str
    shown: Shown
    transfer: TransferParams
    call: ForcedCall | None = None
    """The function that a chat must call."""

    @property
    def echo_only(self) -> bool:
        """The prompt is all that is shown; vLLM generates one token all the same."""
        return self.shown.echo and self.max_tokens == 0 and not self.chat

    @property
    def requires_call(self) -> bool:
        """Some function must be called, whichever it is."""
        return self.call is not None and not self.call.is_named

    @property
    def reads_cache(self) -> bool:
        """False: the prefix cache is not looked up, since the prompt's log-probabilities must be computed."""
        return self.shown.prompt_logprobs is None


def parse_generate(request: Request, body: Json, *, chat: bool, text: ModelText, served: Served) -> Generate:
    """Validate in vLLM's order: fields, model, prompt, length, sampling; ApiError for what it refuses."""
    check_raw(body, chat=chat, max_prompts=served.max_prompts)
    body = typed(body, Chat if chat else Completion)
    check_typed(body)
    wanted, wanted_name = _wanted_tokens(body, chat=chat)
    model = served_model(body, served)
    _check_lengths(body, wanted, wanted_name, text.max_model_len)
    role = "assistant" if body.get("add_generation_prompt", True) else _last_role(body)
    if chat:
        check_tools(body, auto_tools=served.auto_tools)
        reused = reused_prompt(body, text)
        prompts: tuple[tuple[int, ...], ...] = (reused or chat_prompt(body, text),)
        is_text = reused is None
        echoes: tuple[str, ...] = (_last_content(body, role),)
    else:
        echoes, prompts = completion_prompts(body, text)
        is_text = not has_ids(body["prompt"])
    longest = max(map(len, prompts))
    if longest == 0:
        raise ApiError("The decoder prompt cannot be empty")
    left = text.max_model_len - longest
    if left < 0:
        is_text = isinstance(body.get("prompt", ""), str)
        raise too_long(text.max_model_len + 1 if is_text else longest, text.max_model_len)
    max_tokens = left if wanted is None else min(wanted, left)
    if wanted == 0 and body.get("echo") and not chat:
        max_tokens = 1
    check_sampling(body, max_tokens, served.max_n)
    check_for_engine(body, text.num_logits, chat=chat)
    if not isinstance(body.get("prompt", ""), str):
        check_vocabulary(prompts, text)
    lora = model if model in served.loras else None
    call = forced_call(body) if chat else None
    return Generate(
        chat=chat,
        id=request_id(request, body, "chatcmpl" if chat else "cmpl"),
        model=model if lora else served.models[0],
        lora=lora,
        salt=cast(str | None, body.get("cache_salt")),
        session=cast(str | None, body.get("session_id")),
        prompts=prompts,
        is_text=is_text,
        echoes=echoes if body.get("echo") else ("",) * len(prompts),
        n=cast(int, body.get("n") or 1),
        rules=_rules(body, max_tokens, call),
        max_tokens=wanted,
        seed=cast(int | None, body.get("seed")),
        role=role,
        shown=_shown(body, chat=chat, force_usage=served.force_include_usage),
        transfer=parse(cast(Json | None, body.get("kv_transfer_params"))),
        call=call,
    )


def served_model(body: Json, served: Served) -> str:
    """The model that a request names, or the first one; ApiError when it is not served."""
    model = cast(str, body.get("model") or served.models[0])
    if model in served.models or model in served.loras:
        return model
    message = f"The model `{model}` does not exist. Valid aliases: {', '.join(served.models)}."
    raise ApiError(message, status=404, kind="NotFoundError", param="model")


def request_id(request: Request, body: Json, prefix: str) -> str:
    """The answer's id: the client's, or a new one, behind the API's prefix."""
    given = request.header(b"x-request-id")
    name = given.decode("latin-1") if given else cast(str | None, body.get("request_id"))
    return f"{prefix}-{name or os.urandom(8).hex()}"


def _rules(body: Json, max_tokens: int, call: ForcedCall | None) -> AnswerRules:
    stop = body.get("stop") or []
    return AnswerRules(
        max_tokens=max_tokens,
        min_tokens=cast(int, body.get("min_tokens") or 0),
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(cast(Sequence[str], stop)),
        include_stop=bool(body.get("include_stop_str_in_output")),
        stop_tokens=frozenset(cast(Sequence[int], body.get("stop_token_ids") or ())),
        script=call.text if call is not None else constrained_text(body),
    )


def _shown(body: Json, *, chat: bool, force_usage: bool) -> Shown:
    options = cast(Json, body.get("stream_options") or {})
    usage = force_usage or bool(options.get("include_usage"))
    top = cast(int | None, body.get("top_logprobs" if chat else "logprobs"))
    logprobs = (top or 0) if chat and body.get("logprobs") else None if chat else top
    of_prompt = cast(int | None, body.get("prompt_logprobs"))
    if of_prompt is None and body.get("echo"):
        of_prompt = (top or 0) if chat else top
    return Shown(
        stream=bool(body.get("stream")),
        include_usage=usage,
        continuous_usage=force_usage or (usage and bool(options.get("continuous_usage_stats"))),
        echo=bool(body.get("echo")),
        token_ids=bool(body.get("return_token_ids")),
        prompt_text=bool(body.get("return_prompt_text")),
        logprobs=logprobs,
        prompt_logprobs=of_prompt,
        tokens_as_ids=bool(body.get("return_tokens_as_token_ids")),
        stream_interval=cast(int, body.get("stream_interval") or 1),
    )


def _last_role(body: Json) -> str:
    messages = cast(Sequence[Json], body.get("messages") or [{}])
    return str(messages[-1].get("role", "assistant"))


def _last_content(body: Json, role: str) -> str:
    """What a chat's echo repeats: the last message, when it is of the answer's role."""
    last = cast(Sequence[Json], body["messages"])[-1:]
    content = last[0].get("content") if last and last[0].get("role") == role else ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _wanted_tokens(body: Json, *, chat: bool) -> tuple[int | None, str]:
    """The limit that the request sets on its answer, and the field that sets it."""
    if chat and body.get("max_completion_tokens") is not None:
        return cast(int, body["max_completion_tokens"]), "max_completion_tokens"
    given = cast(int | None, body.get("max_tokens"))
    return 16 if given is None and not chat else given, "max_tokens"


def _check_lengths(body: Json, wanted: int | None, wanted_name: str, max_model_len: int) -> None:
    """What needs no look at the prompt."""
    if body.get("suffix") is not None:
        text = "suffix is only supported for models with FIM completion rendering"
        raise ApiError(text, param="suffix")
    if body.get("prompt_embeds") is not None:
        text = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."
        raise refused(text, "prompt_embeds")
    if wanted is not None and wanted > max_model_len:
        text = f"{wanted_name}={wanted} cannot be greater than max_model_len={max_model_len}."
        raise refused(f"{text} Please request fewer output tokens.", wanted_name, wanted)
    check_truncation(body, max_model_len)
