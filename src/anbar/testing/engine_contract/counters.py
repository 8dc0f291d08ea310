"""Checks of /metrics: how the counters move with each kind of request."""

import time
from collections.abc import Callable, Mapping

from anbar.testing.engine_contract.event_log import some_tokens
from anbar.testing.engine_contract.target import (
    Target,
    block_size,
    complete,
    eventually,
    metrics,
    ok,
    refused,
)

_SETTLED_S = 0.2
"""The counters of a request are written just after its answer."""
Moves = Mapping[str, float]


def check_counters_of_a_request(target: Target) -> None:
    """One request moves the totals and the sums of its histograms by exactly its tokens."""
    if not target.alone:
        return
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
    if not target.alone or target.offloads:
        return
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
    if not target.alone:
        return
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
    if not target.alone:
        return
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
    if not target.alone:
        return
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
    if not target.alone:
        return
    _expect(target, lambda: refused(complete(target, "a", temperature=9), 400), {"prompt_tokens_total": 0})


def _expect(target: Target, action: Callable[[], object], expected: Moves) -> None:
    """Do something; the named samples move by these amounts."""
    time.sleep(_SETTLED_S)
    before = totals(target)
    action()

    def wrong() -> list[str]:
        after = totals(target)
        moved = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in expected}
        return [
            f"{name} moved by {moved[name]}, not {by}" for name, by in expected.items() if moved[name] != by
        ]

    eventually(lambda: not wrong(), target, lambda: "; ".join(wrong()))


def moves(before: Moves, after: Moves) -> dict[str, float]:
    """The samples that moved, and by how much."""
    changed = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: by for name, by in changed.items() if by}


def totals(target: Target) -> dict[str, float]:
    """vLLM's samples by short name and the labels that tell them apart."""
    found: dict[str, float] = {}
    for line in metrics(target).splitlines():
        if not line.startswith("vllm:"):
            continue
        name, _, value = line.removeprefix("vllm:").rpartition(" ")
        family, _, labels = name.partition("{")
        kept = [
            part for part in labels.rstrip("}").split(",") if not part.startswith(("engine=", "model_name="))
        ]
        own = ",".join(part for part in kept if part)
        found[f"{family}{{{own}}}" if own else family] = float(value)
    return found
