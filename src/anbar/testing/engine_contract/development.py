"""Checks of the development endpoints: resets, sleep in all its modes, waking."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from anbar.testing.engine_contract.background import Asked, begun, running
from anbar.testing.engine_contract.samples import block_size, totals
from anbar.testing.engine_contract.target import (
    Json,
    Target,
    call,
    complete,
    eventually,
    needs,
    needs_alone,
    nonce,
    ok,
    refused,
    some_tokens,
)

_AWAKE = {"status": "awake", "tags": None}
_A_WHILE_S = 0.5
"""How long an engine that is asleep is watched."""
_FEW = 24
"""Tokens of an answer that is waited for."""


def check_resets(target: Target) -> None:
    """The other caches are reset without a word; a reset while a request holds blocks does not succeed."""
    _needs_development(target)
    for path in ("/reset_mm_cache", "/reset_encoder_cache"):
        reply = call(target, "POST", path)
        assert (reply.status, reply.body) == (200, b""), path
    with running(target, some_tokens(target, block_size(target))):
        assert ok(call(target, "POST", "/reset_prefix_cache")) == {"success": False}
    eventually(lambda: _resets(target), target)
    error = refused(call(target, "POST", "/reset_prefix_cache?reset_external=x"), 400)
    assert (error["type"], error["param"]) == ("Bad Request", "query.reset_external"), error


def check_sleep(target: Target) -> None:
    """An engine asleep is healthy and takes requests, but works on them only once it is woken; level 0 keeps
    the cache, level 1 drops it; the metrics tell which."""
    _needs_development(target)
    ids = some_tokens(target, block_size(target) + 1)
    ok(complete(target, ids, max_tokens=1))
    for level, offloaded, cached in ((0, 0, block_size(target)), (1, 1, 0)):
        with asleep(target, f"level={level}") as page:
            assert page == {"status": "sleeping", "level": level}
            assert ok(call(target, "GET", "/is_sleeping")) == {"is_sleeping": True}
            assert call(target, "GET", "/health").status == 200
            states = {"awake": 0, "weights_offloaded": offloaded, "discard_all": 0}
            assert _sleep_state(target) == states
            asked = Asked(target, ids, max_tokens=1)
            time.sleep(_A_WHILE_S)
            assert not asked.is_answered, "it worked in its sleep"
            assert ok(call(target, "POST", "/wake_up")) == _AWAKE
            assert asked.answer()["usage"]["prompt_tokens_details"]["cached_tokens"] == cached, level
            assert ok(call(target, "GET", "/is_sleeping")) == {"is_sleeping": False}
            assert _sleep_state(target) == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


def check_sleep_aborts(target: Target) -> None:
    """Mode `abort`: what runs is answered with what it has, and the gauges say that nothing runs."""
    _needs_development(target)
    asked = begun(target, nonce())
    with asleep(target, "level=0&mode=abort"):
        (choice,) = asked.answer()["choices"]
        assert choice["finish_reason"] == "abort", choice
        eventually(lambda: totals(target)["num_requests_running"] == 0, target)


def check_sleep_waits(target: Target) -> None:
    """Mode `wait`: the engine sleeps when what runs is finished, and only then says so."""
    _needs_development(target)
    generated = totals(target)["generation_tokens_total"]
    asked = begun(target, nonce(), max_tokens=_FEW)
    with asleep(target, "level=0&mode=wait"):
        moved = totals(target)["generation_tokens_total"] - generated
        assert moved > _FEW // 2, f"it slept after {moved} of {_FEW} tokens"
        page = asked.answer()
    assert page["choices"][0]["finish_reason"] == "length", page
    assert page["usage"]["completion_tokens"] == _FEW, page


def check_sleep_keeps(target: Target) -> None:
    """Mode `keep`: what runs stands still, and goes on after the waking."""
    _needs_development(target)
    asked = begun(target, nonce())
    with asleep(target, "level=0&mode=keep"):
        before = _stands_still(target)
        assert not asked.is_answered, "it worked in its sleep"
    eventually(lambda: totals(target)["generation_tokens_total"] > before, target)
    with asleep(target, "level=0&mode=abort"):
        (choice,) = asked.answer()["choices"]
        assert choice["finish_reason"] in ("abort", "length"), choice


def check_sleep_refusals(target: Target) -> None:
    """Levels and modes that there are not; tags that leave an engine partly asleep, but not one that
    gave nothing up (level 0)."""
    _needs_development(target)
    for query, param in (("level=9", "query.level"), ("level=x", "query.level"), ("mode=x", "query.mode")):
        error = refused(call(target, "POST", f"/sleep?{query}"), 400)
        assert (error["type"], error["param"]) == ("Bad Request", param), error
    with asleep(target, "level=1"):
        part = ok(call(target, "POST", "/wake_up?tags=weights"))
        assert part == {"status": "sleeping", "tags": ["weights"]}
        assert ok(call(target, "GET", "/is_sleeping")) == {"is_sleeping": True}
        rest = ok(call(target, "POST", "/wake_up?tags=kv_cache"))
        assert rest == {"status": "awake", "tags": ["kv_cache"]}
    with asleep(target, "level=0"):
        page = ok(call(target, "POST", "/wake_up?tags=weights"))
        assert page == {"status": "awake", "tags": ["weights"]}
        assert ok(call(target, "GET", "/is_sleeping")) == {"is_sleeping": False}


@contextmanager
def asleep(target: Target, query: str) -> Iterator[Json]:
    """An engine that is put to sleep, and woken whatever comes; with the answer of /sleep."""
    try:
        yield ok(call(target, "POST", f"/sleep?{query}"))
    finally:
        call(target, "POST", "/wake_up")


def _needs_development(target: Target) -> None:
    needs(target.dev_mode, "it has no development endpoints")
    needs_alone(target)


def _resets(target: Target) -> bool:
    """Whether a reset succeeds: not while what was abandoned still holds blocks."""
    return ok(call(target, "POST", "/reset_prefix_cache?reset_external=true")) == {"success": True}


def _stands_still(target: Target) -> float:
    """How many tokens it has generated, once that no longer changes: the last step's are counted late."""
    seen = [-1.0]

    def is_still() -> bool:
        seen.append(totals(target)["generation_tokens_total"])
        time.sleep(_A_WHILE_S)
        return seen[-1] == seen[-2]

    eventually(is_still, target)
    return seen[-1]


def _sleep_state(target: Target) -> dict[str, float]:
    page = totals(target)
    return {
        state: page[f'engine_sleep_state{{sleep_state="{state}"}}']
        for state in ("awake", "weights_offloaded", "discard_all")
    }
