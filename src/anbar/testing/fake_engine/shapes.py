"""The JSON that the engine answers with: whole responses, stream chunks, usage (vLLM 0.32's field order)."""

from collections.abc import Sequence
from dataclasses import dataclass

from anbar.testing.fake_engine.answers import Token
from anbar.testing.fake_engine.api import Generate
from anbar.testing.fake_engine.errors import Json

_FINGERPRINT = "vllm-0.32.0-fake0000"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `cached` None leaves the details null (`--enable-prompt-tokens-details` off)."""

    prompt: int
    completion: int
    cached: int | None

    def full(self) -> Json:
        """As whole responses show it."""
        details = None
        if self.cached is not None:
            details = {"cached_tokens": self.cached, "created_cache_tokens": None, "multimodal_tokens": None}
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }

    def brief(self) -> Json:
        """As the usage chunk of a stream shows it: nothing null."""
        usage: dict[str, object] = {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return usage


@dataclass(frozen=True, slots=True)
class Finished:
    """One whole choice."""

    text: str
    ids: Sequence[int]
    finish_reason: str
    stop_reason: str | None


def whole(request: Generate, created: int, choices: Sequence[Finished], usage: Usage) -> Json:
    """A response that is not streamed."""
    if request.chat:
        rendered = [_chat_choice(request, index, choice) for index, choice in enumerate(choices)]
    else:
        rendered = [_completion_choice(request, index, choice) for index, choice in enumerate(choices)]
    tail: dict[str, object] = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    if request.chat:
        prompt_ids = list(request.prompts[0]) if request.return_token_ids else None
        tail = {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None, **tail}
    return {
        "id": request.id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": created,
        "model": request.model,
        "choices": rendered,
        "service_tier": None,
        "system_fingerprint": _FINGERPRINT,
        "usage": usage.full(),
        **tail,
    }


def _chat_choice(request: Generate, index: int, choice: Finished) -> Json:
    message = {
        "role": request.role,
        "content": choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": list(choice.ids) if request.return_token_ids else None,
        "routed_experts": None,
    }


def _completion_choice(request: Generate, index: int, choice: Finished) -> Json:
    prompt = request.prompts[index // request.n]
    echoed = request.prompt_texts[index // request.n] if request.echo else ""
    return {
        "index": index,
        "text": echoed + choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": list(choice.ids) if request.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(prompt) if request.return_token_ids else None,
        "routed_experts": None,
    }


def _chunk(request: Generate, created: int, choices: Sequence[Json], extra: Json | None = None) -> Json:
    kind = "chat.completion.chunk" if request.chat else "text_completion"
    head = {"id": request.id, "object": kind, "created": created, "model": request.model}
    return {**head, "choices": choices, **(extra or {})}


def role_chunk(request: Generate, created: int, index: int, usage: Usage | None) -> Json:
    """The first chunk of a chat's choice: its role and no text."""
    choice = {
        "index": index,
        "delta": {"role": request.role, "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    extra: dict[str, object] = {
        "prompt_token_ids": list(request.prompts[0]) if request.return_token_ids else None,
        "prompt_text": None,
    }
    if usage is not None:
        extra["usage"] = usage.brief()
    return _chunk(request, created, [choice], extra)


def token_chunk(request: Generate, created: int, index: int, token: Token, usage: Usage | None) -> Json:
    """One token of one choice; `usage` for `continuous_usage_stats`."""
    ids = [token.id] if request.return_token_ids else None
    choice: dict[str, object] = {"index": index}
    if request.chat:
        choice["delta"] = {"content": token.text}
    else:
        choice["text"] = token.text
    choice |= {"logprobs": None, "finish_reason": token.finish_reason}
    if not request.chat:
        choice |= {"stop_reason": token.stop_reason, "prompt_token_ids": None}
    elif token.finish_reason is not None:
        choice["stop_reason"] = token.stop_reason
    choice["token_ids"] = ids
    extra: dict[str, object] = {}
    if token.finish_reason is not None and not request.include_usage:
        extra["system_fingerprint"] = _FINGERPRINT
    if usage is not None:
        extra["usage"] = usage.brief()
    return _chunk(request, created, [choice], extra)


def usage_chunk(request: Generate, created: int, usage: Usage) -> Json:
    """The chunk before [DONE] that `include_usage` asks for."""
    return _chunk(request, created, [], {"usage": usage.brief(), "system_fingerprint": _FINGERPRINT})


def models(names: Sequence[str], loras: Sequence[str], root: str, max_model_len: int, created: int) -> Json:
    """`GET /v1/models`: the base model under its names, then adapters."""

    def card(name: str, parent: str | None, card_root: str, length: int | None) -> Json:
        permission = {
            "id": f"modelperm-{name}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": card_root,
            "parent": parent,
            "max_model_len": length,
            "permission": [permission],
        }

    cards = [card(name, None, root, max_model_len) for name in names]
    cards += [card(name, names[0], f"{root}/loras/{name}", None) for name in loras]
    return {"object": "list", "data": cards}
