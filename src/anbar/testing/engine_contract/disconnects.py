"""Checks of clients that go away: whatever stage their request is in, the engine stops working on it."""

import time
from collections.abc import Mapping

from anbar.testing.engine_contract.background import abandoned, endless, running
from anbar.testing.engine_contract.samples import block_size, capacity, moved_by, moves, totals
from anbar.testing.engine_contract.target import (
    Target,
    context_length,
    eventually,
    needs,
    needs_alone,
    nonce,
    some_tokens,
)

_DELAYS_S = (0.0, 0.05, 0.2)
"""When a client leaves: nothing tells that its prompt is being computed, as gauges change after a step."""
_TRIES = 10
_ROOM = 128
"""Tokens that a request must have room for to run for a while."""


def check_disconnect_while_decoding(target: Target) -> None:
    """Streamed or not, an abandoned answer ends at once and frees its blocks; it is not counted as finished,
    not even as aborted, while the tokens that it got are."""
    needs_alone(target)
    for stream in (True, False):
        prompt = nonce()

        def leave(prompt: str = prompt, stream: bool = stream) -> None:
            with running(target, prompt, stream=stream) as connection:
                if stream:
                    assert connection.getresponse().read(16).startswith(b"data: ")

        moved = moved_by(target, leave)
        assert 1 <= moved["generation_tokens_total"] < endless(target, prompt), moved
        assert moved["prompt_tokens_total"] > 0, moved
        assert not _num_finished(moved), moved


def check_disconnect_in_prefill(target: Target) -> None:
    """A prompt that nobody waits for any more is dropped when its step ends: its blocks are kept, but neither
    it nor its tokens are counted unless its first token had come."""
    needs_alone(target)
    for delay_s in _DELAYS_S:
        ids = some_tokens(target, context_length(target) // 2)

        def leave(ids: list[int] = ids, delay_s: float = delay_s) -> None:
            with abandoned(target, ids):
                time.sleep(delay_s)

        moved = moved_by(target, leave)
        generated = moved.get("generation_tokens_total", 0)
        assert generated < endless(target, ids), moved
        assert moved.get("prompt_tokens_total", 0) == (len(ids) if generated else 0), moved
        assert moved.get("prefix_cache_queries_total", 0) in (0, len(ids)), moved
        assert not _num_finished(moved), moved


def check_disconnect_while_waiting(target: Target) -> None:
    """A request that waits for blocks leaves the queue while another still runs, and is not counted. Only
    where two long prompts do not fit at once. It is tried again where the other was done too early."""
    needs_alone(target)
    size, room = block_size(target), context_length(target)
    long = room - 2
    short = capacity(target) * size - long // size * size + 1
    needs(short + _ROOM < room, "two prompts of the longest kind fit into its cache")
    in_time: list[bool] = []
    for _ in range(_TRIES):
        moved = moved_by(target, lambda: in_time.append(_leaves_queue(target, short, long)))
        if in_time[-1]:
            assert moved["prompt_tokens_total"] == short, moved
            assert moved["prefix_cache_queries_total"] == short, moved
            return
    raise AssertionError("it left the queue only when the other had finished")


def _leaves_queue(target: Target, short: int, long: int) -> bool:
    """Whether a long prompt that waits for a short one's blocks leaves before that is finished."""
    before = totals(target)

    def is_over() -> bool:
        return _num_finished(moves(before, totals(target))) > 0

    with running(target, some_tokens(target, short)):
        with abandoned(target, some_tokens(target, long)):
            eventually(lambda: _gauge(target, "waiting") == 1 or is_over(), target)
        eventually(lambda: _gauge(target, "waiting") == 0, target)
        return _gauge(target, "running") == 1 and not is_over()


def _gauge(target: Target, state: str) -> float:
    return totals(target)[f"num_requests_{state}"]


def _num_finished(moved: Mapping[str, float]) -> float:
    return sum(by for name, by in moved.items() if name.startswith("request_success_total"))
