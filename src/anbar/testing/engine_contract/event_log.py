"""What an engine publishes while something is done to it, and its ZMQ sockets."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import zmq

from anbar.testing.engine_contract.samples import block_size
from anbar.testing.engine_contract.target import Json, Target, complete, ok, some_tokens

TIMEOUT_S = 60.0
"""Longest wait for a message that must come."""
_HEARD_MS = 500
"""After that long without a message a subscription is not there yet."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One published message."""

    sequence: int
    payload: bytes
    events: list[Json]


@contextmanager
def connected_socket(kind: int, address: str, timeout_s: float = TIMEOUT_S) -> Iterator["zmq.Socket[bytes]"]:
    """A socket with a context of its own; receiving raises zmq.Again after `timeout_s`."""
    context = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


def published(target: Target, action: Callable[[], object]) -> list[Batch]:
    """The batches that an action causes, and perhaps those of other requests.

    A request of one block follows the action: when its block is announced, all that came before has been.
    """
    marker = some_tokens(target, block_size(target))
    with connected_socket(zmq.SUB, target.events) as socket:
        _await_subscription(target, socket)
        action()
        ok(complete(target, marker, max_tokens=1))
        batches: list[Batch] = []
        while True:
            topic, sequence, payload = socket.recv_multipart()
            assert topic == b""
            stamp, events, rank = msgspec.msgpack.decode(payload)
            assert isinstance(stamp, float)
            assert rank == 0
            assert events, "an empty batch"
            batches.append(Batch(int.from_bytes(sequence, "big"), payload, events))
            if any(holds(event, marker) for event in events):
                batches[-1].events[:] = [event for event in events if not holds(event, marker)]
                return [batch for batch in batches if batch.events]


def _await_subscription(target: Target, socket: "zmq.Socket[bytes]") -> None:
    """A subscription takes its time to reach the publisher: have a block announced until that is heard."""
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        marker = some_tokens(target, block_size(target))
        ok(complete(target, marker, max_tokens=1))
        while socket.poll(_HEARD_MS):
            _, events, _ = msgspec.msgpack.decode(socket.recv_multipart()[2])
            if any(holds(event, marker) for event in events):
                return
        if time.monotonic() > end_s:
            raise zmq.Again


def stored(target: Target, ids: list[int], **fields: object) -> list[Json]:
    """The blocks that a completion of one token has announced on the device."""
    batches = published(target, lambda: ok(complete(target, ids, **{"max_tokens": 1, **fields})))
    return [event for event in on_device(batches) if event["type"] == "BlockStored"]


def holds(event: Json, ids: Sequence[int]) -> bool:
    """Whether a device event is about blocks that begin with these tokens."""
    return event["type"] == "BlockStored" and list(event["token_ids"][: len(ids)]) == list(ids)


def on_device(batches: Sequence[Batch]) -> list[Json]:
    """The events of the device's own blocks, in order."""
    events = [event for batch in batches for event in batch.events]
    return [event for event in events if event.get("medium", "GPU") == "GPU"]
