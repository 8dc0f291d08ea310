"""vLLM's KV events, encoded and published: the other side of `kv_wire` and `kv_events`.

A live message has the frames topic, sequence (8 bytes, big-endian), payload; the payload is msgpack of
`[timestamp, events, data_parallel_rank]`. Since 0.32 an event is a map with `type`, its fields in order and
those left out that have their default; before, an array that begins with the type. A hash is published as the
low 64 bits of its digest. Source: vLLM 0.32 `distributed/kv_events.py`.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec
import zmq
import zmq.asyncio

from anbar.adapters.vllm.kv_wire import END_SEQ, SEQ_BYTES
from anbar.core.errors import WireError

MEDIUM_DEVICE, MEDIUM_HOST, MEDIUM_STORAGE = "GPU", "CPU", "STORAGE"

_END = END_SEQ.to_bytes(SEQ_BYTES, "big", signed=True)
_encode = msgspec.msgpack.Encoder().encode


WireHash = int | bytes


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks became available on a medium. Tokens, parent and size are empty for the tiers below the device,
    which name a block by its hash alone."""

    block_hashes: Sequence[WireHash]
    parent_block_hash: WireHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks left a medium."""

    block_hashes: Sequence[WireHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The device cache was reset."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


class Framing(Enum):
    """How events and replay answers are laid out."""

    MAPS = "maps"
    """vLLM 0.32: events are maps; replay answers carry the topic."""
    ARRAYS = "arrays"
    """Releases before mid-2026: events are tagged arrays; replay answers have no topic."""


def event_hash(digest: bytes) -> int:
    """A block's hash as events show it, unless they carry whole digests."""
    return int.from_bytes(digest[-8:], "big")


def encode_batch(
    events: Sequence[WireEvent], timestamp_s: float, framing: Framing = Framing.MAPS, dp_rank: int = 0
) -> bytes:
    """The payload of one batch."""
    if framing is Framing.ARRAYS:
        return _encode([timestamp_s, [_as_array(event) for event in events], dp_rank])
    return _encode([timestamp_s, events, dp_rank])


def _as_array(event: WireEvent) -> list[object]:
    match event:
        case BlockStored():
            head = [event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size]
            return ["BlockStored", *head, event.lora_id, event.medium, event.lora_name, event.extra_keys]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, event.medium]
        case AllBlocksCleared():
            return ["AllBlocksCleared"]


ANY_ADDRESS = "tcp://*:0"
"""A port of the system's choice, another one after each start, on the one address by which other machines
know this one: 127.0.0.1 does not reach it. So too vLLM 0.32, unlike for `tcp://*:5557`."""


def _own_address() -> str:
    """Of the interface that leads out; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no host (RFC 5737)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def binds(endpoint: str) -> bool:
    """Whether vLLM binds a publisher's address; it connects to any other."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """Where and how to publish, by the names of `--kv-events-config`."""

    endpoint: str
    replay_endpoint: str = ""
    """"": no replay."""
    topic: str = ""
    buffer_steps: int = 10_000
    """Batches kept for replay."""
    hwm: int = 100_000
    """Messages that wait for a slow subscriber; what comes beyond is lost to it."""
    max_queue_size: int = 100_000
    """Batches that wait for the publisher; none does here, and the number is only shown."""
    framing: Framing = Framing.MAPS
    int_hashes: bool = True
    """False: events carry whole digests (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`)."""


class Publisher:
    """One life of an engine's publisher: sequence numbers start at 0. All of it on one event loop."""

    def __init__(self, config: PublisherConfig) -> None:
        self.config = config
        self.next_seq = 0
        """The sequence number of the next batch."""
        self.endpoint, self.replay_endpoint = config.endpoint, config.replay_endpoint
        """With the ports that were given for `tcp://*:0`."""
        self.num_replays = 0
        self._topic = config.topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context: zmq.asyncio.Context | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._files: list[tuple[str, os.stat_result]] = []
        """Of the local sockets that were made."""

    async def start(self) -> None:
        """Open both sockets and answer replay requests; WireError when an address cannot be used."""
        self._context = zmq.asyncio.Context()
        pub = zmq.Socket(self._context, zmq.PUB)
        self._pub = pub
        pub.setsockopt(zmq.LINGER, 0)
        pub.setsockopt(zmq.SNDHWM, self.config.hwm)
        try:
            endpoint = self.config.endpoint
            self.endpoint = self._open(pub, endpoint, listen=binds(endpoint))
            if self.config.replay_endpoint:
                router = self._router = self._context.socket(zmq.ROUTER)
                router.setsockopt(zmq.LINGER, 0)
                self.replay_endpoint = self._open(router, self.config.replay_endpoint, listen=True)
                self._replaying = asyncio.get_running_loop().create_task(self._serve_replay(router))
        except WireError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the sockets and remove their files; their addresses are free when it returns. Idempotent."""
        replaying, self._replaying = self._replaying, None
        if replaying is not None:
            replaying.cancel()
            await asyncio.wait((replaying,))  # not `await`: its cancellation would be taken for the caller's
            if not replaying.cancelled():
                replaying.result()
        for opened in (self._pub, self._router):
            if opened is not None:
                opened.close()
        self._pub = self._router = None
        if self._context is not None:
            self._context.term()
            self._context = None
        files, self._files = self._files, []
        for path, made in files:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path), made):  # else somebody else has taken its place
                    os.unlink(path)

    def publish(self, events: Sequence[WireEvent], timestamp_s: float) -> None:
        """Send one batch and keep it for replay; nothing for no events."""
        if events:
            seq, payload = self.number(events, timestamp_s)
            self.send(seq, payload)
            self.keep(seq, payload)

    def number(self, events: Sequence[WireEvent], timestamp_s: float) -> tuple[int, bytes]:
        """Encode a batch and give it its number, without sending it."""
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        return seq, encode_batch(events, timestamp_s, self.config.framing)

    def send(self, seq: int, payload: bytes) -> None:
        """Send a numbered batch to whoever subscribes."""
        if self._pub is not None:
            self._pub.send_multipart([self._topic, seq.to_bytes(SEQ_BYTES, "big"), payload])

    def keep(self, seq: int, payload: bytes) -> None:
        """Remember a numbered batch for replay."""
        self._buffer.append((seq, payload))

    def _open(self, opened: "zmq.Socket[bytes] | zmq.asyncio.Socket", address: str, *, listen: bool) -> str:
        """The address, with what was chosen where it leaves host and port open."""
        if listen and address == ANY_ADDRESS:
            address = f"tcp://{_own_address()}:0"
        try:
            opened.bind(address) if listen else opened.connect(address)
        except zmq.ZMQError as error:
            raise WireError(f"KV events cannot be published at {address!r}: {error}") from error
        if listen and address.startswith("ipc://"):
            path = address.removeprefix("ipc://")
            with contextlib.suppress(OSError):  # an abstract name has no file
                self._files.append((path, os.stat(path)))
        return opened.getsockopt_string(zmq.LAST_ENDPOINT) if address.endswith(":0") else address

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3:  # vLLM too drops what is not [identity, "", first sequence]
                continue
            client, _, first = frames
            self.num_replays += 1
            await self._replay(router, client, int.from_bytes(first, "big"))

    async def _replay(self, router: zmq.asyncio.Socket, client: bytes, first: int) -> None:
        topic, end = ([self._topic], [b""]) if self.config.framing is Framing.MAPS else ([], [])
        for seq, payload in list(self._buffer):
            if seq >= first:
                await router.send_multipart([client, b"", *topic, seq.to_bytes(SEQ_BYTES, "big"), payload])
        await router.send_multipart([client, b"", *end, _END, b""])
