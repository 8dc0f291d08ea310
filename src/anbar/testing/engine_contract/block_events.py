"""Checks of what device events say of blocks: which, when, in which order, under which keys."""

from itertools import pairwise
from typing import cast

from anbar.testing.engine_contract.event_log import holds, on_device, published, stored
from anbar.testing.engine_contract.samples import block_size, capacity
from anbar.testing.engine_contract.target import (
    Json,
    Target,
    call,
    complete,
    needs,
    needs_alone,
    needs_events,
    ok,
    some_tokens,
)

_SMALL = 128
"""Caches of at most this many blocks are filled by the checks of eviction."""


def check_prompt_blocks(target: Target) -> None:
    """A prompt's full blocks are announced in one event, its last partial block not at all; a repetition
    that hits announces nothing."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, 2 * size + size // 2)
    first = stored(target, ids)
    (event,) = [event for event in first if holds(event, ids[:size])]
    assert event["token_ids"] == ids[: 2 * size]
    assert len(event["block_hashes"]) == 2
    fields = {
        *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
    }
    assert set(event) == fields, event
    assert event["kv_cache_spec_kind"] == "full_attention"
    assert event["lora_id"] is None
    assert not [event for event in stored(target, ids) if holds(event, ids[:size])]


def check_answer_blocks(target: Target) -> None:
    """A block that the answer fills is announced once its last token is computed, which is a step after it
    was generated; its parent is the block before."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, size - 1)
    assert not _mine(target, ids, max_tokens=1), "the only generated token is not computed"
    ids = some_tokens(target, size - 1)
    answer: list[int] = []
    events = _mine(target, ids, max_tokens=size + 2, answer=answer)
    known = [*ids, *answer]
    assert [event["token_ids"] for event in events] == [known[:size], known[size : 2 * size]]
    assert events[0]["parent_block_hash"] is None
    assert events[1]["parent_block_hash"] == events[0]["block_hashes"][0]


def check_blocks_computed_again(target: Target) -> None:
    """A prompt of exactly n blocks computes its last block again, and announces it again; one whose
    log-probabilities are wanted reads nothing from the cache and announces everything again."""
    needs_events(target)
    needs(not target.offloads, "its tiers may have the last block too")
    size = block_size(target)
    ids = some_tokens(target, 2 * size)
    (whole,) = [event for event in stored(target, ids) if holds(event, ids[:size])]
    (last,) = [event for event in stored(target, ids) if holds(event, ids[size:])]
    assert last["block_hashes"] == whole["block_hashes"][1:]
    assert last["parent_block_hash"] == whole["block_hashes"][0]
    (unread,) = [event for event in stored(target, ids, prompt_logprobs=0) if holds(event, ids[:size])]
    assert unread["block_hashes"] == whole["block_hashes"]


def check_shared_blocks(target: Target) -> None:
    """Choices of one prompt share its whole blocks from their first step on: they are announced once."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, 2 * size + 1)
    found = [event for event in stored(target, ids, n=2, temperature=1) if holds(event, ids[:size])]
    assert [len(event["block_hashes"]) for event in found] == [2], found


def check_hashes(target: Target) -> None:
    """Equal tokens have equal hashes and the same parent in every request; a salt changes all of them."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, 3 * size)
    plain = _hashes(target, ids[: size + 1], ids)
    salted = _hashes(target, ids[: size + 1], ids, cache_salt="a")
    other = _hashes(target, ids[: size + 1], ids, cache_salt="b")
    assert len({*plain, *salted, *other}) == 9
    assert all(isinstance(block, int) and 0 <= block < 2**64 for block in plain)


def check_sessions(target: Target) -> None:
    """`session_id` of a request is named by its events."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, size + 1)
    (event,) = [event for event in stored(target, ids, session_id="turn-1") if holds(event, ids[:size])]
    assert event["session_id"] == "turn-1"


def check_evictions(target: Target) -> None:
    """Blocks leave one event each, the least recently used request first and the tail of each before its
    head. Only on a small cache that nobody else uses."""
    needs_events(target)
    needs_alone(target)
    num_blocks = capacity(target)
    needs(num_blocks <= _SMALL, f"its cache has more than {_SMALL} blocks")
    size = block_size(target)
    prompts = [some_tokens(target, 3 * size + 1) for _ in range(2)]
    hashes: list[int] = []
    for ids in prompts:
        (event,) = [event for event in stored(target, ids) if holds(event, ids[:size])]
        hashes += reversed(event["block_hashes"])

    def fill() -> None:
        for _ in range(2):
            ok(complete(target, some_tokens(target, (num_blocks // 2) * size), max_tokens=1))

    removed = [event for event in on_device(published(target, fill)) if event["type"] == "BlockRemoved"]
    assert all(set(event) == {"type", "block_hashes", "medium", "group_idx"} for event in removed)
    assert all(len(event["block_hashes"]) == 1 for event in removed)
    gone = [event["block_hashes"][0] for event in removed]
    assert [block for block in gone if block in hashes] == hashes


def check_reset(target: Target) -> None:
    """`/reset_prefix_cache` empties the cache, says so, and is announced before the next step's blocks."""
    needs(target.dev_mode, "it has no development endpoints")
    needs_alone(target)
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, 2 * size + 1)
    ok(complete(target, ids, max_tokens=1))

    def reset() -> None:
        assert ok(call(target, "POST", "/reset_prefix_cache")) == {"success": True}
        usage = ok(complete(target, ids, max_tokens=1))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0

    kinds = [event for batch in published(target, reset) for event in batch.events]
    assert kinds[0] == {"type": "AllBlocksCleared"}
    assert holds(kinds[1], ids[:size])


def check_sequences(target: Target) -> None:
    """Batches are numbered without gaps, and those of a request's steps are one batch a step."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, size - 1)
    batches = published(target, lambda: ok(complete(target, ids, max_tokens=size + 2, ignore_eos=True)))
    assert all(after.sequence == before.sequence + 1 for before, after in pairwise(batches))
    mine = [batch for batch in batches if any(holds(event, ids) for event in batch.events)]
    assert len(mine) == 1
    assert len(batches) >= 2


def _mine(target: Target, ids: list[int], max_tokens: int, answer: list[int] | None = None) -> list[Json]:
    """The stored events of one prompt's chain; its answer's ids are added to `answer`."""

    def ask() -> None:
        page = ok(complete(target, ids, max_tokens=max_tokens, ignore_eos=True, return_token_ids=True))
        if answer is not None:
            answer.extend(page["choices"][0]["token_ids"])

    chain: list[Json] = []
    for event in on_device(published(target, ask)):
        if event["type"] != "BlockStored":
            continue
        parents = {chain[-1]["block_hashes"][-1]} if chain else set()
        if holds(event, ids) or event["parent_block_hash"] in parents:
            chain.append(event)
    return chain


def _hashes(target: Target, short: list[int], ids: list[int], **fields: object) -> list[int]:
    """Hashes of three blocks, the first announced with a request of its own."""
    size = block_size(target)
    (head,) = [event for event in stored(target, short, **fields) if holds(event, ids[:size])]
    (tail,) = [event for event in stored(target, ids, **fields) if holds(event, ids[size : 2 * size])]
    assert tail["parent_block_hash"] == head["block_hashes"][0]
    return cast(list[int], [*head["block_hashes"], *tail["block_hashes"]])
