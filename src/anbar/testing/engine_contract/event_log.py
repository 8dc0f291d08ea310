"""What an engine publishes while something is done to it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import zmq

from anbar.testing.engine_contract.sockets import connected_socket
from anbar.testing.engine_contract.target import Json, Target, block_size, complete, long_prompt, ok, tokens

_HEARD_MS = 500
"""After that long without a message a subscription is not there yet."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One published message."""

    sequence: int
    payload: bytes
    events: list[Json]


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
    time.sleep(0.1)
    end_s = time.monotonic() + target.timeout_s
    while True:
        assert time.monotonic() < end_s, f"nothing is heard of {target.events}"
        marker = some_tokens(target, block_size(target))
        ok(complete(target, marker, max_tokens=1))
        while socket.poll(_HEARD_MS):
            _, events, _ = msgspec.msgpack.decode(socket.recv_multipart()[2])
            if any(holds(event, marker) for event in events):
                return


def some_tokens(target: Target, count: int) -> list[int]:
    """That many ids that no prompt began with before."""
    ids = tokens(target, long_prompt(12 + 2 * count))
    assert len(ids) >= count, "the text is too short"
    return ids[:count]


def holds(event: Json, ids: Sequence[int]) -> bool:
    """Whether a device event is about blocks that begin with these tokens."""
    return event["type"] == "BlockStored" and list(event["token_ids"][: len(ids)]) == list(ids)


def on_device(batches: Sequence[Batch]) -> list[Json]:
    """The events of the device's own blocks, in order."""
    events = [event for batch in batches for event in batch.events]
    return [event for event in events if event.get("medium", "GPU") == "GPU"]
