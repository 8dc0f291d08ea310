"""Checks of clients that go away: whatever stage their request is in, the engine stops working on it."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from anbar.testing.engine_contract.event_log import some_tokens
from anbar.testing.engine_contract.target import (
    Target,
    block_size,
    capacity,
    complete,
    connected,
    context_length,
    eventually,
    metrics,
    nonce,
    ok,
    samples,
)


def check_disconnect_while_decoding(target: Target) -> None:
    """Streamed or not, an abandoned answer ends, frees its blocks and counts as aborted."""
    for stream in (True, False):
        before = _aborted(target)
        fields = {"prompt": nonce(), "max_tokens": 400, "stream": stream}
        with _sent(target, fields) as connection:
            if stream:
                assert connection.getresponse().read(16).startswith(b"data: ")
            else:
                eventually(lambda: _gauge(target, "running") >= 1, target)
        _wait_aborted(target, before)
        if target.alone:
            eventually(lambda: _is_idle(target), target)


def check_disconnect_in_prefill(target: Target) -> None:
    """A prompt that nobody waits for any more is dropped, at the latest when its step ends."""
    before = _aborted(target)
    with _sent(target, {"prompt": some_tokens(target, context_length(target) // 2), "max_tokens": 400}):
        time.sleep(0.2)
    _wait_aborted(target, before)


def check_disconnect_while_waiting(target: Target) -> None:
    """A request that waits for blocks leaves the queue. Only where two long prompts do not fit at once."""
    length = context_length(target)
    long = length - 2 * block_size(target)
    if not target.alone or 2 * long < capacity(target) * block_size(target):
        return
    before = _aborted(target)
    first = threading.Thread(target=lambda: ok(complete(target, some_tokens(target, long), max_tokens=40)))
    first.start()
    eventually(lambda: _gauge(target, "running") >= 1, target)
    with _sent(target, {"prompt": some_tokens(target, long), "max_tokens": 8}):
        eventually(lambda: _gauge(target, "waiting") >= 1, target)
    eventually(lambda: _gauge(target, "waiting") == 0, target)
    first.join()
    _wait_aborted(target, before)


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
    return sum(samples(metrics(target), f"vllm:num_requests_{state}").values())


def _aborted(target: Target) -> float:
    counts = samples(metrics(target), "vllm:request_success_total")
    return sum(value for labels, value in counts.items() if 'finished_reason="abort"' in labels)


def _wait_aborted(target: Target, before: float) -> None:
    eventually(lambda: _aborted(target) > before, target, lambda: "no request counts as aborted")


def _is_idle(target: Target) -> bool:
    page = metrics(target)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return not any(value for name in names for value in samples(page, f"vllm:{name}").values())
