"""KV events as vLLM publishes them, and the publisher: a PUB socket beside a ROUTER socket for replay.

Frames: topic, sequence (8 bytes, big-endian), msgpack of `[timestamp, events, data_parallel_rank]`. Since
0.32 an event is a map with `type`, optional keys left out; before, a tagged array. The shapes are those of
`vllm/distributed/kv_events.py`, written from its field lists.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import zmq
import zmq.asyncio

_encode = msgspec.msgpack.Encoder().encode
_END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks became available on a medium."""

    block_hashes: Sequence[bytes]
    parent_block_hash: bytes | None
    token_ids: Sequence[int]
    block_size: int
    medium: str
    lora_name: str | None = None
    extra_keys: Sequence[tuple[str, ...] | None] | None = None
    locality: str | None = None
    ownership: str | None = None
    spec_kind: str | None = "full_attention"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks left a medium."""

    block_hashes: Sequence[bytes]
    medium: str
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The device cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Framing(Enum):
    """How events and replay answers are laid out."""

    MAPS = "maps"
    """vLLM 0.32: events are maps; replay answers carry the topic."""
    ARRAYS = "arrays"
    """Releases before mid-2026: events are tagged arrays; replay answers have no topic."""


def _as_map(event: Event) -> dict[str, object]:
    match event:
        case BlockStored():
            always: dict[str, object] = {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": event.parent_block_hash,
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": 1 if event.lora_name else None,
                "medium": event.medium,
                "lora_name": event.lora_name,
            }
            optional = {
                "extra_keys": event.extra_keys,
                "group_idx": 0,
                "kv_cache_spec_kind": event.spec_kind,
                "locality": event.locality,
                "ownership": event.ownership,
            }
        case BlockRemoved():
            always = {"type": "BlockRemoved", "block_hashes": event.block_hashes, "medium": event.medium}
            optional = {"group_idx": 0, "locality": event.locality, "ownership": event.ownership}
        case AllBlocksCleared():
            always, optional = {"type": "AllBlocksCleared"}, {}
    return always | {key: value for key, value in optional.items() if value is not None}


def _as_array(event: Event) -> list[object]:
    match event:
        case BlockStored():
            lora = 1 if event.lora_name else None
            head = [event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size, lora]
            return ["BlockStored", *head, event.medium, event.lora_name, event.extra_keys]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, event.medium]
        case AllBlocksCleared():
            return ["AllBlocksCleared"]


def encode_batch(events: Sequence[Event], framing: Framing, timestamp_s: float, dp_rank: int = 0) -> bytes:
    """The payload frame of one batch."""
    as_wire = _as_map if framing is Framing.MAPS else _as_array
    return _encode([timestamp_s, [as_wire(event) for event in events], dp_rank])


@dataclass(slots=True)
class EventFaults:
    """What to do to the next batches; each counter counts down as batches are published."""

    drop: int = 0
    """Batches kept from the live socket (a slow subscriber's loss); replay still has them."""
    lose: int = 0
    """Batches kept from replay too, as when the buffer has turned over."""
    duplicate: int = 0
    """Batches sent twice."""
    swap: int = 0
    """Batches held back and sent after the one that follows."""


@dataclass(slots=True)
class Publisher:
    """One life of an engine's event publisher: sequence numbers start at 0.

    `endpoint` is bound (`ipc://...`, `tcp://127.0.0.1:P`): unlike vLLM, which connects to the latter, so that
    tests can use loopback TCP as well. `replay_endpoint` "" means no replay.
    """

    endpoint: str
    replay_endpoint: str = ""
    buffer_steps: int = 10_000
    framing: Framing = Framing.MAPS
    topic: bytes = b""
    faults: EventFaults = field(default_factory=EventFaults)
    num_replays: int = 0
    _context: zmq.asyncio.Context | None = None
    _pub: "zmq.Socket[bytes] | None" = None
    _task: asyncio.Task[None] | None = None
    _buffer: deque[tuple[int, bytes]] = field(default_factory=deque)
    _held: list[tuple[int, bytes]] = field(default_factory=list)
    _next: int = 0

    async def start(self) -> None:
        """Bind both sockets and serve replay requests."""
        self._context = zmq.asyncio.Context()
        self._buffer = deque(maxlen=self.buffer_steps)
        self._pub = zmq.Socket(self._context, zmq.PUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.bind(self.endpoint)
        if self.replay_endpoint:
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            router.bind(self.replay_endpoint)
            self._task = asyncio.create_task(self._serve_replay(router))

    async def stop(self) -> None:
        """Close the sockets; returns when the endpoints can be bound again."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._pub is not None:
            self._pub.close()
            self._pub = None
        if self._context is not None:
            self._context.term()
            self._context = None

    @property
    def next_seq(self) -> int:
        """The sequence number of the next batch."""
        return self._next

    def publish(self, events: Sequence[Event]) -> None:
        """Send one batch (nothing for no events), as the faults have it."""
        if not events or self._pub is None:
            return
        seq, self._next = self._next, self._next + 1
        payload = encode_batch(events, self.framing, time.time())
        if self.faults.lose > 0:
            self.faults.lose -= 1
            return
        self._buffer.append((seq, payload))
        if self.faults.drop > 0:
            self.faults.drop -= 1
            return
        if self.faults.swap > 0:
            self.faults.swap -= 1
            self._held.append((seq, payload))
            return
        self._send(seq, payload)
        if self.faults.duplicate > 0:
            self.faults.duplicate -= 1
            self._send(seq, payload)
        while self._held:
            self._send(*self._held.pop())

    def _send(self, seq: int, payload: bytes) -> None:
        if self._pub is not None:
            self._pub.send_multipart([self.topic, seq.to_bytes(8, "big"), payload])

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        try:
            while True:
                frames = await router.recv_multipart()
                if len(frames) != 3:  # vLLM logs and drops what is not [id, "", start]
                    continue
                client, _, start = frames
                self.num_replays += 1
                await self._replay(router, client, int.from_bytes(start, "big"))
        finally:
            router.close()

    async def _replay(self, router: zmq.asyncio.Socket, client: bytes, start: int) -> None:
        middle = [self.topic] if self.framing is Framing.MAPS else []
        for seq, payload in list(self._buffer):
            if seq >= start:
                await router.send_multipart([client, b"", *middle, seq.to_bytes(8, "big"), payload])
        end = [b""] if self.framing is Framing.MAPS else []
        await router.send_multipart([client, b"", *end, _END, b""])
