"""Checks of KV events and of their replay: what was published can be had again, byte for byte."""

import zmq

from anbar.testing.engine_contract.event_log import (
    Batch,
    connected_socket,
    holds,
    published,
    stored,
)
from anbar.testing.engine_contract.samples import block_size
from anbar.testing.engine_contract.target import (
    Target,
    call,
    complete,
    needs,
    needs_events,
    ok,
    some_tokens,
)

_END = (-1).to_bytes(8, "big", signed=True)
_SILENCE_S = 1.0
"""How long the socket must say nothing before a request counts as ignored: it is served every 0.1 s."""


def check_event_sources(target: Target) -> None:
    """/kv_event_sources names the addresses of rank 0 as they were configured."""
    needs_events(target)
    source = ok(call(target, "GET", "/kv_event_sources"))["0"]
    assert _leads_to(source["endpoint"], target.events), source
    assert _leads_to(source["replay_endpoint"] or "", target.replay), source
    assert source["publisher"] == "zmq"


def check_events(target: Target) -> None:
    """Device events: maps, full blocks with their tokens, chained by parent, the salt on the first block."""
    needs_events(target)
    size = block_size(target)
    ids = some_tokens(target, 4 * size + 1)
    (first,) = [event for event in stored(target, ids, cache_salt="salt") if holds(event, ids[:size])]
    assert first["block_size"] == size
    assert first["parent_block_hash"] is None
    assert len(first["block_hashes"]) == 4
    assert first["token_ids"] == ids[: 4 * size]
    assert first["group_idx"] == 0
    assert first["lora_name"] is None
    extra = [list(keys) if keys else None for keys in first["extra_keys"]]
    assert extra == [["salt"], None, None, None]
    assert all(isinstance(block, bytes | int) for block in first["block_hashes"])


def check_replay(target: Target) -> None:
    """Replay gives every batch from the asked sequence on, in order, and ends with -1."""
    needs_replay(target)
    batches = _some_batches(target)
    sequences = [sequence for sequence, _ in _replayed(target, bytes(8))]
    assert sequences == list(range(sequences[0], sequences[-1] + 1))
    assert {batch.sequence for batch in batches} <= set(sequences)


def check_replay_repeats(target: Target) -> None:
    """A replay from the middle begins there and repeats the messages as they were."""
    needs_replay(target)
    batches = _some_batches(target)
    middle = batches[1].sequence
    found = _replayed(target, middle.to_bytes(8, "big"))
    assert found[0][0] == middle
    assert dict(found)[middle] == batches[1].payload
    assert [sequence for sequence, _ in found] == list(range(middle, middle + len(found)))


def check_replay_starts(target: Target) -> None:
    """A start in the future gives the end alone; a start is a big-endian number of any length, so that an
    empty one is 0."""
    needs_replay(target)
    last = _some_batches(target)[-1].sequence
    assert _replayed(target, (10**12).to_bytes(8, "big")) == []
    assert _replayed(target, _END) == [], "a start is never negative"
    assert _replayed(target, last.to_bytes(3, "big"))[0][0] == last
    assert _replayed(target, b"")[0][0] == _replayed(target, bytes(8))[0][0]


def check_replay_ignores(target: Target) -> None:
    """A request of too few or too many frames is not answered, and does no harm to the next."""
    needs_replay(target)
    _some_batches(target)
    for frames in ([bytes(8)], [b"", bytes(8), b"more"]):
        with connected_socket(zmq.DEALER, target.replay, _SILENCE_S) as socket:
            socket.send_multipart(frames)
            try:
                answer = socket.recv_multipart()
            except zmq.Again:
                continue
            raise AssertionError(f"{frames} got {answer[:3]}")
    assert _replayed(target, bytes(8))


def needs_replay(target: Target) -> None:
    needs_events(target)
    needs(target.replay, "it has no socket for replays")


def _leads_to(bound: str, address: str) -> bool:
    """Whether an engine that was told to bind `bound` is met at `address`: "*" stands for any host."""
    if "*" not in bound:
        return bound == address
    return bool(address) and bound.rpartition(":")[2] == address.rpartition(":")[2]


def _some_batches(target: Target) -> list[Batch]:
    """Two batches at least, which have been published when this returns."""
    size = block_size(target)

    def ask() -> None:
        for _ in range(2):
            ok(complete(target, some_tokens(target, size + 1), max_tokens=1))

    return published(target, ask)


def _replayed(target: Target, start: bytes) -> list[tuple[int, bytes]]:
    """Sequences and payloads from `start` on."""
    found: list[tuple[int, bytes]] = []
    with connected_socket(zmq.DEALER, target.replay) as socket:
        socket.send_multipart([b"", start])
        while True:
            empty, topic, sequence, payload = socket.recv_multipart()
            assert (empty, topic) == (b"", b"")
            if sequence == _END:
                assert payload == b""
                return found
            found.append((int.from_bytes(sequence, "big"), payload))
