"""Going on with a stream on another engine, when the one that sent it was lost.

The prompt and what the client has read go to the next engine as token ids, as a completion; what it sends
becomes the rest of the same stream (`adapters/http/transcript.py`). Only where that is sound: one choice of
plain text, no log-probabilities, no tools, no guided decoding, nothing that looks back at the answer's own
tokens, and no field of a request whose meaning is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from anbar.adapters.http.openai import ApiRequest, Endpoint
from anbar.adapters.http.transcript import Splicer, Transcript
from anbar.apps.router.engine import Engine
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.split_bodies import PARAMS
from anbar.core.errors import RequestError

_KEPT = frozenset(
    (
        *("model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "user"),
        *("repetition_penalty", "logit_bias", "priority", "cache_salt"),
    )
)
"""Given to the next engine as they are."""
_KEPT_OF_TENANTS = _KEPT | {PARAMS}
_OF_THE_PROMPT = frozenset(
    (
        *("prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "metadata"),
        *("chat_template_kwargs", "add_special_tokens"),
    )
)
"""Spent, or not the engine's concern."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "stream_options": ({"include_usage": True}, {"include_usage": False}, {}),
}
"""Values that ask for nothing special; null never does."""


def is_continuable(api: ApiRequest) -> bool:
    """Whether a stream of this request may be gone on with by another engine."""
    body = api.body
    prompt = body.get("prompt")
    if not api.stream or (isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))):
        return False
    kept = _kept(api)
    return all(
        name in kept or name in _OF_THE_PROMPT or value is None or _is_neutral(name, value)
        for name, value in body.items()
    )


def _kept(api: ApiRequest) -> frozenset[str]:
    """Transfer parameters that the router has made itself are the next engine's too."""
    return _KEPT if api.wish is None else _KEPT_OF_TENANTS


def _is_neutral(name: str, value: object) -> bool:
    """False is not 0 here: `logprobs: 0` asks for one."""
    return any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL.get(name, ()))


@dataclass(frozen=True, slots=True)
class Rest:
    """What is asked of the next engine, and how its answer is spliced in."""

    body: bytes
    num_tokens: int
    num_before: int
    splicer: Splicer


async def rest_of(
    api: ApiRequest,
    transcript: Transcript,
    prompt: Sequence[int],
    prompts: Prompts,
    serving: Sequence[Engine],
) -> Rest | None:
    """The request for the rest of a stream; None when there is none that would be right. `prompt` are the
    tokens of the request's prompt, if they are known already."""
    text = transcript.text()
    room = min((engine.facts.max_model_len for engine in serving), default=0)
    if text is None or not room:
        return None
    if not text and api.endpoint is Endpoint.CHAT:
        return None  # what comes first may be reasoning, which only the engine's parser could tell
    as_text = {"model": api.model, "prompt": text, "add_special_tokens": False}
    try:
        ids = tuple(prompt) or (await prompts.whole(api, serving)).ids
        before = msgspec.structs.replace(api, endpoint=Endpoint.COMPLETIONS, body=as_text)
        so_far = (await prompts.whole(before, serving)).ids if text else ()
        splicer = Splicer(transcript.first, num_before=len(so_far), wants_usage=api.wants_usage)
    except (RequestError, msgspec.DecodeError):
        return None
    num_left = room - len(ids) - len(so_far)
    if api.max_output_tokens is not None:
        num_left = min(num_left, api.max_output_tokens - len(so_far))
    if not ids or (text and not so_far) or num_left < 1:
        return None
    kept = _kept(api)
    body = {name: value for name, value in api.body.items() if name in kept}
    body |= {"prompt": [*ids, *so_far], "max_tokens": num_left, "stream": True}
    body["stream_options"] = {"include_usage": True}
    return Rest(msgspec.json.encode(body), len(ids) + len(so_far), len(so_far), splicer)
