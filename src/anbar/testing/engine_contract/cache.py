"""Checks of the prefix cache: what usage and the counters say of it."""

from typing import cast

from anbar.testing.engine_contract.samples import block_size, totals
from anbar.testing.engine_contract.target import (
    Reply,
    Target,
    complete,
    eventually,
    long_prompt,
    ok,
    some_tokens,
)


def check_cached_tokens(target: Target) -> None:
    """The second time, all whole blocks of a prompt but its last token's come from the cache."""
    size = block_size(target)
    prompt = long_prompt(max(120, 3 * size))
    assert _cached(complete(target, prompt)) < size
    reply = complete(target, prompt)
    num_tokens = ok(reply)["usage"]["prompt_tokens"]
    assert num_tokens > 2 * size, "the prompt is too short to show anything"
    assert _cached(reply) in _allowed(target, num_tokens, size)


def check_exact_blocks(target: Target) -> None:
    """A prompt of exactly n blocks has n-1 of them cached the second time: its last token is recomputed."""
    size = block_size(target)
    ids = some_tokens(target, 2 * size)
    ok(complete(target, ids, max_tokens=1))
    assert _cached(complete(target, ids, max_tokens=1)) in _allowed(target, 2 * size, size)


def check_salts(target: Target) -> None:
    """Another salt, or none, never sees a salted prompt's blocks; the same salt does."""
    prompt = long_prompt(max(120, 3 * block_size(target)))
    ok(complete(target, prompt, cache_salt="one"))
    assert _cached(complete(target, prompt, cache_salt="two")) == 0
    assert _cached(complete(target, prompt)) == 0
    assert _cached(complete(target, prompt, cache_salt="one")) > 0


def _allowed(target: Target, num_tokens: int, size: int) -> set[int]:
    """What the device alone gives; offload tiers may serve a prompt to its last token."""
    device = (num_tokens - 1) // size * size
    return {device, num_tokens // size * size} if target.offloads else {device}


def _cached(reply: Reply) -> int:
    return cast(int, ok(reply)["usage"]["prompt_tokens_details"]["cached_tokens"])


def check_token_accounting(target: Target) -> None:
    """The counters of prompt tokens by source move by what usage says, or by more where others ask too."""
    prompt = long_prompt(max(120, 3 * block_size(target)))
    ok(complete(target, prompt))
    before = totals(target)
    usage = ok(complete(target, prompt))["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]

    def moved(*sources: str) -> float:
        after = totals(target)
        names = [f'prompt_tokens_by_source_total{{source="{source}"}}' for source in sources]
        return sum(after[name] - before[name] for name in names)

    eventually(lambda: moved("local_compute") >= usage["prompt_tokens"] - cached, target)
    eventually(lambda: moved("local_cache_hit", "external_kv_transfer") >= cached, target)
