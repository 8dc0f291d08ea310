"""Checks of completions and chats, whole and streamed."""

import json
from typing import cast

from anbar.testing.engine_contract.target import Json, Target, call, chat, complete, long_prompt, nonce, ok


def check_completion(target: Target) -> None:
    """A whole completion: ids, choice, usage; the request id is the client's."""
    name = nonce()
    body = {"model": target.model, "prompt": f"{name} once", "max_tokens": 4, "ignore_eos": True}
    reply = call(target, "POST", "/v1/completions", body, {"x-request-id": name})
    page = ok(reply)
    assert reply.headers["content-type"] == "application/json"
    assert page["id"] == f"cmpl-{name}"
    assert page["object"] == "text_completion"
    assert page["model"] == target.model
    assert isinstance(page["created"], int)
    (choice,) = page["choices"]
    assert choice["index"] == 0
    assert isinstance(choice["text"], str)
    assert choice["finish_reason"] == "length"
    assert {"logprobs", "stop_reason", "prompt_logprobs"} <= set(choice)
    _check_usage(page["usage"], completion=4)


def check_chat(target: Target) -> None:
    """A whole chat answer: message, finish reason, usage."""
    page = ok(chat(target, f"{nonce()} hello", max_tokens=4, ignore_eos=True))
    assert page["id"].startswith("chatcmpl-")
    assert page["object"] == "chat.completion"
    (choice,) = page["choices"]
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] == "length"
    _check_usage(page["usage"], completion=4)


def _check_usage(usage: Json, completion: int) -> None:
    assert usage["completion_tokens"] == completion, usage
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + completion
    assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int), usage


def check_streams(target: Target) -> None:
    """Streams: SSE events of JSON, [DONE] last, one finish reason, the same text as the whole answer."""
    prompt = f"{nonce()} آب و अंबार"
    for stream, text_of in ((complete, _completion_text), (chat, _chat_text)):
        whole = ok(stream(target, prompt, max_tokens=12))
        reply = stream(target, prompt, max_tokens=12, stream=True)
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        *events, done = reply.events
        assert done == b"[DONE]"
        chunks = [json.loads(event) for event in events]
        assert all("usage" not in chunk or chunk["usage"] is None for chunk in chunks)
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == text_of(whole["choices"][0])
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons[-1] in ("stop", "length")
        assert not any(reasons[:-1])


def _completion_text(choice: Json) -> str:
    return cast(str, choice["text"])


def _chat_text(choice: Json) -> str:
    part = choice.get("delta") or choice.get("message") or {}
    return cast(str, part.get("content") or "")


def check_chat_stream_begins_with_role(target: Target) -> None:
    """The first chunk of a chat stream carries the role and no text."""
    first = json.loads(chat(target, nonce(), stream=True).events[0])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def check_stream_usage(target: Target) -> None:
    """`include_usage` adds one chunk without choices before [DONE], equal to the whole answer's usage."""
    prompt = long_prompt()
    ok(complete(target, prompt))
    whole = ok(complete(target, prompt))["usage"]
    reply = complete(target, prompt, stream=True, stream_options={"include_usage": True})
    last = json.loads(reply.events[-2])
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole[name], name
    cached = whole["prompt_tokens_details"]["cached_tokens"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def check_n_and_batches(target: Target) -> None:
    """`n` and several prompts give one choice each, indexed in order; usage counts all."""
    page = ok(
        complete(target, [f"{nonce()} a", f"{nonce()} b"], n=2, temperature=1, max_tokens=2, ignore_eos=True)
    )
    assert sorted(choice["index"] for choice in page["choices"]) == [0, 1, 2, 3]
    assert page["usage"]["completion_tokens"] == 8
