"""Checks of what an engine has only when it is told so: the development endpoints."""

import time

from anbar.testing.engine_contract.background import Asked
from anbar.testing.engine_contract.counters import totals
from anbar.testing.engine_contract.event_log import some_tokens
from anbar.testing.engine_contract.target import (
    Target,
    block_size,
    call,
    complete,
    nonce,
    ok,
    refused,
)

_DEVELOPMENT = (
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("GET", "/is_sleeping"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
)
_ABSENT = (
    ("POST", "/v1/embeddings"),
    ("POST", "/pooling"),
    ("POST", "/score"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/tokenizer_info"),
)


def check_absent_endpoints(target: Target) -> None:
    """A model that generates has no embeddings; adapters are not loaded over HTTP; without development mode
    there is no sleep and no reset: all that is the framework's 404."""
    absent = _ABSENT if target.dev_mode else (*_ABSENT, *_DEVELOPMENT)
    for method, path in absent:
        reply = call(target, method, path, {} if method == "POST" else None)
        assert (reply.status, reply.json) == (404, {"detail": "Not Found"}), path


def check_resets(target: Target) -> None:
    """The other caches are reset without a word; a reset while a request holds blocks does not succeed."""
    if not target.dev_mode or not target.alone:
        return
    for path in ("/reset_mm_cache", "/reset_encoder_cache"):
        reply = call(target, "POST", path)
        assert (reply.status, reply.body) == (200, b""), path
    asked = Asked(target, some_tokens(target, block_size(target)), max_tokens=40, ignore_eos=True)
    asked.wait_begun()
    assert ok(call(target, "POST", "/reset_prefix_cache")) == {"success": False}
    asked.answer()
    assert ok(call(target, "POST", "/reset_prefix_cache?reset_external=true")) == {"success": True}
    error = refused(call(target, "POST", "/reset_prefix_cache?reset_external=x"), 400)
    assert (error["type"], error["param"]) == ("Bad Request", "query.reset_external"), error


def check_sleep(target: Target) -> None:
    """An engine asleep is healthy and takes requests, but works on them only once it is woken; level 0 keeps
    the cache, level 1 drops it; the metrics tell which."""
    if not target.dev_mode or not target.alone:
        return
    ids = some_tokens(target, block_size(target) + 1)
    ok(complete(target, ids, max_tokens=1))
    for level, offloaded, cached in ((0, 0, block_size(target)), (1, 1, 0)):
        assert ok(call(target, "POST", f"/sleep?level={level}")) == {"status": "sleeping", "level": level}
        assert ok(call(target, "GET", "/is_sleeping")) == {"is_sleeping": True}
        assert call(target, "GET", "/health").status == 200
        states = {"awake": 0, "weights_offloaded": offloaded, "discard_all": 0}
        assert _sleep_state(target) == states
        asked = Asked(target, ids, max_tokens=1)
        time.sleep(0.5)
        assert not asked.is_answered, "it worked in its sleep"
        assert ok(call(target, "POST", "/wake_up")) == {"status": "awake", "tags": None}
        assert asked.answer()["usage"]["prompt_tokens_details"]["cached_tokens"] == cached, level
        assert ok(call(target, "GET", "/is_sleeping")) == {"is_sleeping": False}
        assert _sleep_state(target) == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


def check_sleep_modes(target: Target) -> None:
    """What runs when an engine goes to sleep is answered with what it has, reason `abort`; it is finished
    first (`wait`), or after the waking (`keep`)."""
    if not target.dev_mode or not target.alone:
        return
    for mode in ("abort", "wait", "keep"):
        asked = Asked(target, nonce(), max_tokens=24, ignore_eos=True)
        asked.wait_begun()
        ok(call(target, "POST", f"/sleep?level=0&mode={mode}"))
        if mode == "keep":
            time.sleep(0.3)
            assert not asked.is_answered, "it worked in its sleep"
        else:
            asked.answer()
        ok(call(target, "POST", "/wake_up"))
        page = asked.answer()
        choice, usage = page["choices"][0], page["usage"]
        wanted = "abort" if mode == "abort" else "length"
        assert choice["finish_reason"] == wanted, (mode, choice)
        assert (usage["completion_tokens"] == 24) == (mode != "abort"), (mode, usage)


def check_sleep_refusals(target: Target) -> None:
    """Levels and modes that there are not; tags that leave an engine partly asleep."""
    if not target.dev_mode or not target.alone:
        return
    for query, param in (("level=9", "query.level"), ("level=x", "query.level"), ("mode=x", "query.mode")):
        error = refused(call(target, "POST", f"/sleep?{query}"), 400)
        assert (error["type"], error["param"]) == ("Bad Request", param), error
    ok(call(target, "POST", "/sleep"))
    part = ok(call(target, "POST", "/wake_up?tags=weights"))
    assert part == {"status": "sleeping", "tags": ["weights"]}
    assert ok(call(target, "POST", "/wake_up")) == {"status": "awake", "tags": None}


def _sleep_state(target: Target) -> dict[str, float]:
    page = totals(target)
    return {
        state: page[f'engine_sleep_state{{sleep_state="{state}"}}']
        for state in ("awake", "weights_offloaded", "discard_all")
    }
