"""Checks of /metrics: how the counters move with each kind of request."""

from collections.abc import Callable

from anbar.testing.engine_contract.samples import Moves, block_size, moved_by
from anbar.testing.engine_contract.target import (
    Target,
    complete,
    needs,
    needs_alone,
    nonce,
    ok,
    refused,
    some_tokens,
)


def check_counters_of_a_request(target: Target) -> None:
    """One request moves the totals and the sums of its histograms by exactly its tokens."""
    needs_alone(target)
    ids = some_tokens(target, 2 * block_size(target) + 3)
    count = len(ids)
    expected = {
        "prompt_tokens_total": count,
        "generation_tokens_total": 3,
        'prompt_tokens_by_source_total{source="local_compute"}': count,
        "prefix_cache_queries_total": count,
        'request_success_total{finished_reason="length"}': 1,
        "request_prompt_tokens_sum": count,
        "request_generation_tokens_sum": 3,
        "request_max_num_generation_tokens_sum": 3,
        "request_params_max_tokens_sum": 3,
        "request_params_n_sum": 1,
        "request_prefill_kv_computed_tokens_sum": count,
        "iteration_tokens_total_sum": count + 3,
        "iteration_tokens_total_count": 3,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 2,
    }
    _expect(target, lambda: ok(complete(target, ids, max_tokens=3, ignore_eos=True)), expected)


def check_counters_of_a_hit(target: Target) -> None:
    """Tokens from the cache are counted as such, and not as computed."""
    needs_alone(target)
    needs(not target.offloads, "its tiers may have the last block too")
    size = block_size(target)
    ids = some_tokens(target, 2 * size + 3)
    ok(complete(target, ids, max_tokens=1))
    expected = {
        "prompt_tokens_total": 2 * size + 3,
        "prompt_tokens_cached_total": 2 * size,
        'prompt_tokens_by_source_total{source="local_compute"}': 3,
        'prompt_tokens_by_source_total{source="local_cache_hit"}': 2 * size,
        'prompt_tokens_cached_by_source_total{source="device"}': 2 * size,
        "prefix_cache_queries_total": 2 * size + 3,
        "prefix_cache_hits_total": 2 * size,
        "request_prefill_kv_computed_tokens_sum": 3,
    }
    _expect(target, lambda: ok(complete(target, ids, max_tokens=1)), expected)


def check_counters_of_choices(target: Target) -> None:
    """Each choice is a request of its own with a prompt of its own; `n` is recorded once."""
    needs_alone(target)
    ids = some_tokens(target, block_size(target) // 2)
    expected = {
        "prompt_tokens_total": 2 * len(ids),
        "generation_tokens_total": 4,
        'request_success_total{finished_reason="length"}': 2,
        "request_params_n_sum": 2,
        "request_params_n_count": 1,
        "request_max_num_generation_tokens_count": 1,
        "request_prompt_tokens_count": 2,
    }
    fields = {"n": 2, "temperature": 1, "max_tokens": 2, "ignore_eos": True}
    _expect(target, lambda: ok(complete(target, ids, **fields)), expected)


def check_counters_of_a_stop(target: Target) -> None:
    """An answer that a stop string ends counts as stopped, with the tokens that it has."""
    needs_alone(target)
    ids = some_tokens(target, block_size(target) // 2)
    asked = {"max_tokens": 6, "ignore_eos": True, "skip_special_tokens": False}
    text = ok(complete(target, ids, **asked))["choices"][0]["text"]
    expected = {
        'request_success_total{finished_reason="stop"}': 1,
        'request_success_total{finished_reason="length"}': 0,
        "request_params_max_tokens_sum": 6,
    }
    _expect(target, lambda: ok(complete(target, ids, stop=text[:1], **asked)), expected)


def check_counters_of_unread_prompts(target: Target) -> None:
    """A prompt whose log-probabilities are wanted is computed whole, and asks the cache for nothing."""
    needs_alone(target)
    ids = some_tokens(target, 2 * block_size(target) + 1)
    ok(complete(target, ids, max_tokens=1))
    expected = {
        "prompt_tokens_total": len(ids),
        'prompt_tokens_by_source_total{source="local_compute"}': len(ids),
        "prefix_cache_queries_total": 0,
        "prefix_cache_hits_total": 0,
    }
    _expect(target, lambda: ok(complete(target, ids, max_tokens=1, prompt_logprobs=0)), expected)


def check_counters_of_refusals(target: Target) -> None:
    """What is refused is not counted as a request."""
    needs_alone(target)
    names = ("prompt_tokens_total", "prefix_cache_queries_total", "request_params_max_tokens_count")
    _expect(target, lambda: refused(complete(target, nonce(), temperature=9), 400), dict.fromkeys(names, 0))


def _expect(target: Target, action: Callable[[], object], expected: Moves) -> None:
    """Do something; the named samples move by these amounts, no more and no less."""
    moved = moved_by(target, action)
    wrong = [
        f"{name} moved by {moved.get(name, 0)}, not {by}"
        for name, by in expected.items()
        if moved.get(name, 0) != by
    ]
    assert not wrong, "; ".join(wrong)
