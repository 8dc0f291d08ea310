"""Checks of clients that go away: whatever stage their request is in, the engine stops working on it."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from anbar.testing.engine_contract.background import Asked
from anbar.testing.engine_contract.counters import moves, totals
from anbar.testing.engine_contract.event_log import some_tokens
from anbar.testing.engine_contract.target import (
    Target,
    block_size,
    capacity,
    connected,
    context_length,
    eventually,
    nonce,
)

_MANY = 400
"""More tokens than are generated before the client is gone."""
_UNDER_WAY_S = 0.2
"""After that long a long prompt is being computed; the gauges do not show it before its step ends."""
_SETTLED_S = 0.5


def check_disconnect_while_decoding(target: Target) -> None:
    """Streamed or not, an abandoned answer ends at once and frees its blocks; it is not counted as finished,
    not even as aborted, while the tokens that it got are."""
    if not target.alone:
        return
    for stream in (True, False):
        before = totals(target)
        with _sent(target, {"prompt": nonce(), "max_tokens": _MANY, "stream": stream}) as connection:
            if stream:
                assert connection.getresponse().read(16).startswith(b"data: ")
            eventually(partial(_has_begun, target, before), target)
        _wait_idle(target)
        moved = moves(before, totals(target))
        assert 1 <= moved.get("generation_tokens_total", 0) < _MANY, moved
        assert moved["prompt_tokens_total"] > 0, moved
        assert not _finished(moved), moved


def check_disconnect_in_prefill(target: Target) -> None:
    """A prompt that nobody waits for any more is dropped when its step ends: its blocks are kept, but
    neither it nor its tokens are counted."""
    if not target.alone:
        return
    ids = some_tokens(target, context_length(target) - 2 * block_size(target))
    before = totals(target)
    with _sent(target, {"prompt": ids, "max_tokens": _MANY}):
        time.sleep(_UNDER_WAY_S)
    _wait_idle(target)
    moved = moves(before, totals(target))
    if moved.get("generation_tokens_total", 0) == 0:
        assert not _finished(moved), moved
        assert "prompt_tokens_total" not in moved, moved
        assert moved.get("prefix_cache_queries_total", 0) in (0, len(ids)), moved
    assert moved.get("generation_tokens_total", 0) < _MANY, moved


def check_disconnect_while_waiting(target: Target) -> None:
    """A request that waits for blocks leaves the queue before another finishes, and is not counted. Only
    where two long prompts do not fit at once."""
    long = context_length(target) - 2 * block_size(target)
    if not target.alone or 2 * long < capacity(target) * block_size(target):
        return
    before = totals(target)
    first = Asked(target, some_tokens(target, long), max_tokens=40, ignore_eos=True)
    first.wait_begun()
    with _sent(target, {"prompt": some_tokens(target, long), "max_tokens": 8}):
        eventually(lambda: _gauge(target, "waiting") == 1, target)
    eventually(lambda: _gauge(target, "waiting") == 0, target)
    assert _gauge(target, "running") == 1, "it left only when the other had finished"
    first.answer()
    _wait_idle(target)
    moved = moves(before, totals(target))
    assert moved["prompt_tokens_total"] == long, moved
    assert _finished(moved) == 1, moved


@contextmanager
def _sent(target: Target, fields: Mapping[str, object]) -> Iterator[http.client.HTTPConnection]:
    """A completion that has been asked for; the client is gone when the block ends."""
    body = {"model": target.model, "ignore_eos": True, **fields}
    headers = {"content-type": "application/json"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    with connected(target) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
        yield connection


def _gauge(target: Target, state: str) -> float:
    return totals(target)[f"num_requests_{state}"]


def _has_begun(target: Target, before: Mapping[str, float]) -> bool:
    return "generation_tokens_total" in moves(before, totals(target))


def _finished(moved: Mapping[str, float]) -> float:
    return sum(by for name, by in moved.items() if name.startswith("request_success_total"))


def _wait_idle(target: Target) -> None:
    """Until nothing runs, waits or holds blocks, twice in a row: the gauges are those of the last step."""

    def is_idle() -> bool:
        page = totals(target)
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(page[name] for name in names)

    eventually(is_idle, target)
    time.sleep(_SETTLED_S)
    eventually(is_idle, target)
