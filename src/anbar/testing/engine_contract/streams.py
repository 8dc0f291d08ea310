"""Checks of what a stream says of usage, and of how its tokens are dealt out."""

from anbar.testing.engine_contract.target import Target, chat, chunks, complete, nonce, ok

_COUNTS = {"prompt_tokens", "completion_tokens", "total_tokens"}


def check_usage_chunk(target: Target) -> None:
    """With `include_usage` the last chunk alone has usage and fingerprint; nothing in it is null."""
    options = {"include_usage": True}
    for ask in (complete, chat):
        *first, last = chunks(ask(target, nonce(), stream=True, stream_options=options))
        assert all("usage" not in chunk and "system_fingerprint" not in chunk for chunk in first), first
        head = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
        assert set(last) == head, last
        assert set(last["usage"]) == {*_COUNTS, "prompt_tokens_details"}, last
        details = last["usage"]["prompt_tokens_details"]
        assert None not in details.values(), details
        wanted = {"cached_tokens"} if ask is complete else {"cached_tokens", "created_cache_tokens"}
        assert set(details) == wanted, details


def check_continuous_usage(target: Target) -> None:
    """`continuous_usage_stats` adds to every chunk what its choice has so far, but only together with
    `include_usage`."""
    both = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"stream": True, "max_tokens": 3, "ignore_eos": True}
    *stream, last = chunks(complete(target, nonce(), stream_options=both, **fields))
    assert [chunk["usage"]["completion_tokens"] for chunk in stream] == [1, 2, 3], stream
    assert all(set(chunk["usage"]) == _COUNTS for chunk in stream), stream
    assert all(
        chunk["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + number
        for number, chunk in enumerate(stream, 1)
    )
    role, *stream, last = chunks(chat(target, nonce(), stream_options=both, **fields))
    assert [chunk["usage"]["completion_tokens"] for chunk in (role, *stream)] == [0, 1, 2, 3], stream
    assert all(set(chunk["usage"]) == {*_COUNTS, "completion_tokens_details"} for chunk in (role, *stream))
    for options in ({"continuous_usage_stats": True}, {"include_usage": False}, {}, None):
        alone = chunks(complete(target, nonce(), stream_options=options, **fields))
        assert len(alone) == 3
        assert all("usage" not in chunk for chunk in alone), alone


def check_stream_interval(target: Target) -> None:
    """`stream_interval` n: the first token at once, then n at a time, and the rest at the end."""
    prompt = nonce()
    fields = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    whole = ok(complete(target, prompt, **fields))["choices"][0]
    stream = chunks(complete(target, prompt, stream=True, stream_interval=3, **fields))
    parts = [chunk["choices"][0] for chunk in stream]
    assert [len(part["token_ids"]) for part in parts] == [1, 3, 3, 1]
    assert "".join(part["text"] for part in parts) == whole["text"]


def check_stream_order(target: Target) -> None:
    """One chunk a token; the last has the reason, the others none."""
    stream = chunks(
        complete(target, nonce(), stream=True, max_tokens=5, ignore_eos=True, return_token_ids=True)
    )
    parts = [chunk["choices"][0] for chunk in stream]
    assert [len(part["token_ids"]) for part in parts] == [1] * 5
    assert [part["finish_reason"] for part in parts] == [None] * 4 + ["length"]
