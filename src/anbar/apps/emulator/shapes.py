"""The JSON that the engine answers generation with: whole responses, stream chunks, usage (vLLM's order)."""

from collections.abc import Sequence
from dataclasses import dataclass

from anbar.apps.emulator.answers import Finish, Token
from anbar.apps.emulator.errors import Json
from anbar.apps.emulator.generate_request import Generate
from anbar.apps.emulator.tools import call_delta, tool_calls

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-emulated"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `cached` None leaves the details null (`--enable-prompt-tokens-details` off)."""

    prompt: int
    completion: int
    cached: int | None
    created: int | None = None
    """Tokens of the prompt that were put into the cache: chats show it."""

    def full(self) -> Json:
        """As whole responses show it."""
        details = None
        if self.cached is not None:
            details = {
                "cached_tokens": self.cached,
                "created_cache_tokens": self.created,
                "multimodal_tokens": None,
            }
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }

    def brief(self) -> Json:
        """As chunks of a stream show it: nothing null."""
        usage: dict[str, object] = {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }
        if self.cached is not None:
            details = {"cached_tokens": self.cached}
            if self.created is not None:
                details["created_cache_tokens"] = self.created
            usage["prompt_tokens_details"] = details
        return usage

    def so_far(self, *, chat: bool) -> Json:
        """As each chunk of a stream shows it (`continuous_usage_stats`)."""
        return {**self.brief(), "completion_tokens_details": None} if chat else self.brief()


@dataclass(frozen=True, slots=True)
class Finished:
    """One whole choice."""

    text: str
    ids: Sequence[int]
    finish: Finish
    stop_reason: str | int | None
    logprobs: Json | None
    prompt_logprobs: Sequence[Json | None] | None


def whole(
    request: Generate,
    created: int,
    choices: Sequence[Finished],
    usage: Usage,
    prompt_text: str | None,
    metrics: Json | None,
) -> Json:
    """A response that is not streamed; `prompt_text` is a chat's, where it is asked for."""
    if request.chat:
        rendered = [_chat_choice(request, index, choice) for index, choice in enumerate(choices)]
    else:
        rendered = [_completion_choice(request, index, choice) for index, choice in enumerate(choices)]
    tail: dict[str, object] = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": metrics}
    if request.chat:
        prompt_ids = request.prompts[0] if request.shown.token_ids else None
        tail = {
            "prompt_logprobs": choices[0].prompt_logprobs,
            "prompt_token_ids": prompt_ids,
            "prompt_text": prompt_text,
            **tail,
        }
    return {
        "id": request.id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": created,
        "model": request.lora or request.model,
        "choices": rendered,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage.full(),
        **tail,
    }


def _chat_choice(request: Generate, index: int, choice: Finished) -> Json:
    calls = tool_calls(request.call, choice.text) if request.call is not None else []
    # As in vLLM, an answer that was to be a call and is none says so too: its streams do not.
    ended_by_call = request.requires_call and choice.finish is Finish.STOP
    message = {
        "role": request.role,
        "content": request.echoes[0] + ("" if request.call is not None else choice.text),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": calls} if calls else {}),
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": choice.logprobs,
        "finish_reason": "tool_calls" if ended_by_call else choice.finish.value,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.ids if request.shown.token_ids else None,
        "routed_experts": None,
    }


def _completion_choice(request: Generate, index: int, choice: Finished) -> Json:
    return {
        "index": index,
        "text": echoed(request, index) + choice.text,
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish.value,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.ids if request.shown.token_ids else None,
        "prompt_logprobs": choice.prompt_logprobs,
        "prompt_token_ids": request.prompts[index // request.n] if request.shown.token_ids else None,
        "routed_experts": None,
    }


def echoed(request: Generate, index: int) -> str:
    """The prompt before a completion's text, where it is asked for; with token ids it is left out."""
    return "" if request.shown.token_ids else request.echoes[index // request.n]


def _chunk(request: Generate, created: int, choices: Sequence[Json], extra: Json) -> Json:
    kind = "chat.completion.chunk" if request.chat else "text_completion"
    model = request.lora or request.model
    return {
        "id": request.id, "object": kind, "created": created, "model": model, "choices": choices, **extra
    }  # fmt: skip


def role_chunk(
    request: Generate, created: int, index: int, usage: Usage | None, prompt_text: str | None
) -> Json:
    """The first chunk of a chat's choice: its role and no text."""
    choice = {
        "index": index,
        "delta": {"role": request.role, "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    extra: dict[str, object] = {
        "prompt_token_ids": request.prompts[0] if request.shown.token_ids else None,
        "prompt_text": prompt_text,
    }
    if usage is not None:
        extra["usage"] = usage.so_far(chat=True)
    return _chunk(request, created, [choice], extra)


def echo_chunk(request: Generate, created: int, index: int, usage: Usage | None) -> Json:
    """The chunk of a chat's choice that repeats the last message."""
    delta = {"content": request.echoes[0]}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return _chunk(request, created, [choice], {} if usage is None else {"usage": usage.so_far(chat=True)})


@dataclass(frozen=True, slots=True)
class Piece:
    """What one stream chunk shows of a choice."""

    index: int
    token: Token
    ids: Sequence[int]
    logprobs: Json | None
    is_first: bool
    completes_call: bool = False
    """The text so far is the call that the request forces, and ends here."""


def token_chunk(request: Generate, created: int, piece: Piece, usage: Usage | None) -> Json:
    """One token of one choice; `usage` for `continuous_usage_stats`."""
    token = piece.token
    finish = token.finish.value if token.finish is not None else None
    if request.requires_call and piece.completes_call:
        finish = "tool_calls"
    choice: dict[str, object] = {"index": piece.index}
    if request.call is not None:
        completes = piece.completes_call
        choice["delta"] = call_delta(request.call, token.text, is_first=piece.is_first, completes=completes)
    elif request.chat:
        choice["delta"] = {"content": token.text}
    else:
        choice["text"] = token.text
    choice |= {"logprobs": piece.logprobs, "finish_reason": finish}
    if not request.chat:
        shows_prompt = piece.is_first and request.shown.token_ids
        prompt = request.prompts[piece.index // request.n] if shows_prompt else None
        choice |= {"stop_reason": token.stop_reason, "prompt_token_ids": prompt}
    elif finish is not None:
        choice["stop_reason"] = token.stop_reason
    choice["token_ids"] = piece.ids if request.shown.token_ids else None
    extra: dict[str, object] = {}
    if finish is not None and not request.shown.include_usage:
        extra["system_fingerprint"] = FINGERPRINT
    if usage is not None:
        extra["usage"] = usage.so_far(chat=request.chat)
    return _chunk(request, created, [choice], extra)


def usage_chunk(request: Generate, created: int, usage: Usage, metrics: Json | None) -> Json:
    """The chunk before [DONE] that `include_usage` asks for; it has no nulls."""
    tail: dict[str, object] = {"usage": usage.brief(), "system_fingerprint": FINGERPRINT}
    if metrics is not None:
        tail["metrics"] = {name: value for name, value in metrics.items() if value is not None}
    return _chunk(request, created, [], tail)
