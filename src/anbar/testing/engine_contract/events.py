"""Checks of KV events and their replay. Skipped where the target has no addresses for them."""

import time
from collections.abc import Sequence

import msgspec
import zmq

from anbar.testing.engine_contract.sockets import connected_socket
from anbar.testing.engine_contract.target import (
    Json,
    Target,
    block_size,
    call,
    complete,
    long_prompt,
    ok,
    tokens,
)


def check_event_sources(target: Target) -> None:
    """/kv_event_sources names the addresses of rank 0 as they were configured."""
    if not target.events:
        return
    source = ok(call(target, "GET", "/kv_event_sources"))["0"]
    assert _leads_to(source["endpoint"], target.events), source
    assert _leads_to(source["replay_endpoint"] or "", target.replay), source
    assert source["publisher"] == "zmq"


def _leads_to(bound: str, address: str) -> bool:
    """Whether an engine that was told to bind `bound` is met at `address`: "*" stands for any host."""
    if "*" not in bound:
        return bound == address
    return bool(address) and bound.rpartition(":")[2] == address.rpartition(":")[2]


def _stored(socket: "zmq.Socket[bytes]", wanted: Sequence[int]) -> list[Json]:
    """Device events, until those that hold the tokens `wanted`; checks frames and sequence on the way."""
    found: list[Json] = []
    last = -1
    while True:
        topic, seq_bytes, payload = socket.recv_multipart()
        seq = int.from_bytes(seq_bytes, "big")
        assert topic == b""
        assert last in (-1, seq - 1), f"batch {seq} follows {last}"
        last = seq
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        found += [e for e in events if e["type"] == "BlockStored" and e["medium"] == "GPU"]
        if any(list(event["token_ids"][: len(wanted)]) == list(wanted) for event in found):
            return found


def check_events(target: Target) -> None:
    """Device events: maps, full blocks with their tokens, chained by parent, the salt on the first block."""
    if not target.events:
        return
    size = block_size(target)
    ids = tokens(target, long_prompt(max(120, 4 * size)))
    with connected_socket(zmq.SUB, target.events) as socket:
        time.sleep(0.3)  # a subscription takes a moment to reach the publisher
        ok(complete(target, ids, cache_salt="salt", max_tokens=1))
        found = _stored(socket, ids[:size])
    first = next(e for e in found if list(e["token_ids"][:size]) == ids[:size])
    assert first["block_size"] == size
    assert first["parent_block_hash"] is None
    assert len(first["block_hashes"]) * size == len(first["token_ids"])
    assert first["token_ids"] == ids[: len(first["token_ids"])]
    assert first["group_idx"] == 0
    assert first["lora_name"] is None
    assert [list(keys) if keys else None for keys in first["extra_keys"]] == [
        ["salt"],
        *[None] * (len(first["block_hashes"]) - 1),
    ]
    assert all(isinstance(h, bytes | int) for h in first["block_hashes"])


def check_replay(target: Target) -> None:
    """Replay gives every batch from the asked sequence on, in order, with its topic, and ends with -1."""
    if not target.replay:
        return
    ok(complete(target, long_prompt(max(120, 2 * block_size(target)))))
    time.sleep(0.3)  # the engine publishes after it answered
    with connected_socket(zmq.DEALER, target.replay) as socket:
        sequences = _replay(socket, 0)
        assert sequences, "nothing to replay"
        assert sequences == list(range(sequences[0], sequences[-1] + 1))
        assert _replay(socket, sequences[-1])[:1] == [sequences[-1]]


def _replay(socket: "zmq.Socket[bytes]", start: int) -> list[int]:
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    sequences: list[int] = []
    while True:
        empty, _, seq, payload = socket.recv_multipart()
        assert empty == b""
        number = int.from_bytes(seq, "big", signed=True)
        if number == -1:
            assert payload == b""
            return sequences
        sequences.append(number)
