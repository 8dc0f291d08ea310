"""Checks of what a stream says of usage, and of how its tokens are dealt out."""

from typing import cast

from anbar.testing.engine_contract.target import (
    Json,
    Target,
    chat,
    chunks,
    complete,
    needs,
    nonce,
    ok,
    tokens,
)

_COUNTS = {"prompt_tokens", "completion_tokens", "total_tokens"}
_EIGHT = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
_TRIES = 20


def check_usage_chunk(target: Target) -> None:
    """With `include_usage` the last chunk alone has usage and fingerprint; nothing in it is null."""
    options = {"include_usage": True}
    for ask in (complete, chat):
        *first, last = chunks(ask(target, nonce(), stream=True, stream_options=options))
        assert all("usage" not in chunk and "system_fingerprint" not in chunk for chunk in first), first
        head = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
        assert set(last) == (head | {"metrics"} if target.timed else head), last
        assert set(last["usage"]) == {*_COUNTS, "prompt_tokens_details"}, last
        details = last["usage"]["prompt_tokens_details"]
        assert None not in details.values(), details
        wanted = {"cached_tokens"} if ask is complete else {"cached_tokens", "created_cache_tokens"}
        assert set(details) == wanted, details


def check_times(target: Target) -> None:
    """`metrics` of a whole answer, and of a stream's last chunk, has times in milliseconds: an answer of one
    token none between two, one of several sequences none at all."""
    needs(target.timed, "--enable-per-request-metrics")
    names = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms"}
    names |= {"tokens_per_second"}
    for ask in (complete, chat):
        metrics = ok(ask(target, nonce(), max_tokens=3, ignore_eos=True))["metrics"]
        assert set(metrics) == {*names, "speculative_decoding"}, metrics
        assert metrics["speculative_decoding"] is None, metrics
        assert all(metrics[name] >= 0 for name in names), metrics
        assert abs(metrics["mean_itl_ms"] * 2 - metrics["generation_time_ms"]) < 1e-6, metrics
        assert ok(ask(target, nonce(), max_tokens=1))["metrics"]["mean_itl_ms"] is None
        assert ok(ask(target, nonce(), max_tokens=2, n=2, temperature=1.0))["metrics"] is None
        fields = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        *first, last = chunks(ask(target, nonce(), max_tokens=3, **fields))
        assert set(last["metrics"]) == names, last
        assert all("metrics" not in chunk for chunk in first), first


def check_continuous_usage(target: Target) -> None:
    """`continuous_usage_stats` adds to every chunk what its choice has so far, but only together with
    `include_usage`."""
    both = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"stream": True, "max_tokens": 3, "ignore_eos": True}
    *stream, last = chunks(complete(target, nonce(), stream_options=both, **fields))
    _check_growth(stream, last["usage"]["prompt_tokens"])
    assert all(set(chunk["usage"]) == _COUNTS for chunk in stream), stream
    role, *stream, last = chunks(chat(target, nonce(), stream_options=both, **fields))
    assert role["usage"]["completion_tokens"] == 0, role
    _check_growth(stream, last["usage"]["prompt_tokens"])
    assert all(set(chunk["usage"]) == {*_COUNTS, "completion_tokens_details"} for chunk in (role, *stream))
    for options in ({"continuous_usage_stats": True}, {"include_usage": False}, {}, None):
        alone = chunks(complete(target, nonce(), stream_options=options, **fields))
        assert all("usage" not in chunk for chunk in alone), alone


def check_continuous_usage_of_prompts(target: Target) -> None:
    """Each chunk of a completion of several prompts counts its own prompt's tokens, the last one all."""
    prompts = [f"{nonce()} a", f"{nonce()} b c"]
    lengths = [len(tokens(target, prompt)) for prompt in prompts]
    options = {"include_usage": True, "continuous_usage_stats": True}
    *stream, last = chunks(
        complete(target, prompts, stream=True, stream_options=options, max_tokens=3, ignore_eos=True)
    )
    for index, length in enumerate(lengths):
        own = [chunk for chunk in stream if chunk["choices"][0]["index"] == index]
        assert all(chunk["usage"]["prompt_tokens"] == length for chunk in own), own
        _check_growth(own, length)
    assert last["usage"]["prompt_tokens"] == sum(lengths), last
    assert last["usage"]["completion_tokens"] == 6, last


def check_stream_interval(target: Target) -> None:
    """`stream_interval` n: the first token at once, then n at a time, and the rest at the end."""
    prompt = nonce()
    whole = ok(complete(target, prompt, **_EIGHT))["choices"][0]
    parts = _dealt(target, prompt, [1, 3, 3, 1], stream_interval=3)
    assert "".join(part["text"] for part in parts) == whole["text"]


def check_stream_order(target: Target) -> None:
    """One chunk a token; the last has the reason, the others none."""
    parts = _dealt(target, nonce(), [1] * 8)
    assert [part["finish_reason"] for part in parts] == [None] * 7 + ["length"]


def _dealt(target: Target, prompt: str, wanted: list[int], **fields: object) -> list[Json]:
    """The choices of a stream whose chunks have these numbers of tokens.

    What comes while the server is busy with something else is joined in one chunk: it is asked again then.
    """
    found = []
    for _ in range(_TRIES):
        stream = chunks(complete(target, prompt, stream=True, **_EIGHT, **fields))
        parts = [cast(Json, chunk["choices"][0]) for chunk in stream]
        found.append([len(part["token_ids"]) for part in parts])
        assert sum(found[-1]) == sum(wanted), found
        if found[-1] == wanted:
            return parts
    raise AssertionError(f"the chunks have {found} tokens, not {wanted}")


def _check_growth(stream: list[Json], num_prompt_tokens: int) -> None:
    """Each chunk counts more tokens than the one before, the last all three, always beside the prompt's."""
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream]
    assert counts == sorted(set(counts)), stream
    assert (counts[0] > 0, counts[-1]) == (True, 3), stream
    totals = [chunk["usage"]["total_tokens"] for chunk in stream]
    assert totals == [num_prompt_tokens + count for count in counts], stream
