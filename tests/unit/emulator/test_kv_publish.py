"""Published KV events: what the decoder makes of them, what replay gives, and what goes wrong on demand."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from anbar.adapters.vllm.kv_publish import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Framing,
    Publisher,
    PublisherConfig,
    WireEvent,
    binds,
    encode_batch,
    event_hash,
)
from anbar.adapters.vllm.kv_wire import (
    END_SEQ,
    Message,
    decode_message,
    live_message,
    replay_message,
    replay_request,
)
from anbar.apps.emulator.spoiled_events import EventFaults, SpoilingPublisher
from anbar.core.errors import WireError
from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, Tier

STORED = BlockStored(
    block_hashes=[7, 2**64 - 1],
    parent_block_hash=5,
    token_ids=[1, 2, 3, 4],
    block_size=2,
    lora_id=1,
    medium="GPU",
    lora_name="tuned",
    extra_keys=[("tuned", "salt"), ("tuned",)],
    group_idx=0,
    kv_cache_spec_kind="full_attention",
)
PLACEHOLDER = BlockStored(
    [9], None, [], 0, None, "STORAGE", None, group_idx=0, locality="REMOTE", ownership="x"
)
REMOVED = BlockRemoved([7], "CPU", 0)
EVENTS: list[WireEvent] = [STORED, PLACEHOLDER, REMOVED, AllBlocksCleared()]


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.mark.parametrize("framing", list(Framing))
def test_the_decoder_reads_what_is_encoded(framing: Framing) -> None:
    """Both framings decode to the same events, but for the owner of a store, which the older one lacks."""
    batch = decode_message(Message(3, encode_batch(EVENTS, 1.5, framing, dp_rank=2)))
    assert (batch.seq, batch.timestamp_s, batch.dp_rank) == (3, 1.5, 2)
    stored, placeholder, removed, cleared = batch.events
    assert stored == BlocksStored(
        (_bytes(7), _bytes(2**64 - 1)),
        _bytes(5),
        (1, 2, 3, 4),
        2,
        Tier.DEVICE,
        lora="tuned",
        extra_keys=(("tuned", "salt"), ("tuned",)),
    )
    assert isinstance(placeholder, BlocksStored)
    assert (placeholder.tier, placeholder.token_ids) == (Tier.SHARED, ())
    assert placeholder.owner == ("x" if framing is Framing.MAPS else "")
    assert removed == BlocksRemoved((_bytes(7),), Tier.HOST)
    assert cleared == AllCleared()


def test_maps_are_in_order_and_leave_defaults_out() -> None:
    """The keys of 0.32's maps: the type first, fields as declared, none that has its default."""
    _, events, _ = msgspec.msgpack.decode(encode_batch(EVENTS, 0.0))
    required = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]
    assert list(events[0]) == [*required, "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"]
    assert list(events[1]) == [*required, "lora_name", "group_idx", "locality", "ownership"]
    assert list(events[2]) == ["type", "block_hashes", "medium", "group_idx"]
    assert events[3] == {"type": "AllBlocksCleared"}


def test_hashes_are_the_low_64_bits() -> None:
    """Of a digest of 32 bytes its last 8 are published, as an unsigned number."""
    assert event_hash(bytes(24) + b"\xff" * 8) == 2**64 - 1
    assert event_hash(b"\x01" * 32) == 0x0101010101010101


@pytest.mark.parametrize(
    ("address", "listens"),
    [
        ("ipc:///tmp/x", True),
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://127.0.0.1:5557", False),
    ],
)
def test_which_addresses_are_bound(address: str, listens: bool) -> None:
    """Wildcards and local sockets are bound; any other address is connected to, as in vLLM."""
    assert binds(address) is listens


@asynccontextmanager
async def _publishing(publisher: Publisher) -> AsyncIterator[zmq.asyncio.Context]:
    await publisher.start()
    context = zmq.asyncio.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)
        await publisher.stop()


async def _replay(context: zmq.asyncio.Context, address: str, first: int) -> list[Message]:
    with context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        await socket.send_multipart(replay_request(first))
        messages: list[Message] = []
        while not messages or messages[-1].seq != END_SEQ:
            messages.append(replay_message(await asyncio.wait_for(socket.recv_multipart(), 60)))
        return messages[:-1]


def _config(tmp_path: Path, framing: Framing = Framing.MAPS, buffer_steps: int = 10) -> PublisherConfig:
    return PublisherConfig(
        f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r", buffer_steps=buffer_steps, framing=framing
    )


@pytest.mark.parametrize("framing", list(Framing))
async def test_live_and_replayed_batches(tmp_path: Path, framing: Framing) -> None:
    """A subscriber gets numbered batches; replay repeats those that are kept, from the one asked for."""
    publisher = Publisher(_config(tmp_path, framing, buffer_steps=3))
    async with _publishing(publisher) as context:
        with context.socket(zmq.SUB) as subscriber:
            subscriber.subscribe(b"")
            subscriber.connect(publisher.config.endpoint)
            received = asyncio.ensure_future(subscriber.recv_multipart())
            async with asyncio.timeout(60):
                while not received.done():  # a subscription takes a moment to reach the publisher
                    publisher.publish([REMOVED], 0.0)
                    await asyncio.sleep(0.02)
            batch = decode_message(live_message(received.result()))
        assert batch.events == (BlocksRemoved((_bytes(7),), Tier.HOST),)
        publisher.publish([], 0.0)
        for _ in range(5):
            publisher.publish([REMOVED], 0.0)
        last = publisher.next_seq - 1
        assert batch.seq <= last - 5, "nothing is sent for no events"
        replayed = await _replay(context, publisher.config.replay_endpoint, 0)
        assert [message.seq for message in replayed] == [last - 2, last - 1, last]
        assert [m.seq for m in await _replay(context, publisher.config.replay_endpoint, last)] == [last]
        assert publisher.num_replays == 2


async def test_a_restart_uses_the_same_addresses(tmp_path: Path) -> None:
    """When stop returns, another life can be started on the same sockets, and begins with sequence 0."""
    for _ in range(3):
        publisher = Publisher(_config(tmp_path))
        async with _publishing(publisher) as context:
            publisher.publish([REMOVED], 0.0)
            assert [m.seq for m in await _replay(context, publisher.config.replay_endpoint, 0)] == [0]
        await publisher.stop()


async def test_files_of_sockets_are_removed(tmp_path: Path) -> None:
    """After stop the local sockets have no files; one that another process has made since is let be."""
    async with _publishing(Publisher(_config(tmp_path))):
        assert sorted(os.listdir(tmp_path)) == ["e", "r"]
    assert not os.listdir(tmp_path)
    async with _publishing(Publisher(_config(tmp_path))):
        (tmp_path / "e").unlink()
        (tmp_path / "e").touch()
    assert os.listdir(tmp_path) == ["e"]


async def test_an_address_that_cannot_be_used(tmp_path: Path) -> None:
    """It is named in the error, and nothing is left open."""
    with pytest.raises(WireError, match="/no/such/directory"):
        await Publisher(PublisherConfig(f"ipc://{tmp_path}/e", "ipc:///no/such/directory/r")).start()
    with pytest.raises(WireError, match="nonsense"):
        await Publisher(PublisherConfig("nonsense")).start()


class _Heard(SpoilingPublisher):
    """Notes what would be sent, without sockets."""

    def __init__(self, faults: EventFaults) -> None:
        super().__init__(PublisherConfig("ipc:///unused"), faults)
        self.sent: list[int] = []
        self.kept: list[int] = []

    def send(self, seq: int, payload: bytes) -> None:
        self.sent.append(seq)

    def keep(self, seq: int, payload: bytes) -> None:
        self.kept.append(seq)


@pytest.mark.parametrize(
    ("faults", "sent", "kept"),
    [
        (EventFaults(), [0, 1, 2, 3], [0, 1, 2, 3]),
        (EventFaults(drop=2), [2, 3], [0, 1, 2, 3]),
        (EventFaults(lose=1), [1, 2, 3], [1, 2, 3]),
        (EventFaults(duplicate=1), [0, 0, 1, 2, 3], [0, 1, 2, 3]),
        (EventFaults(swap=1), [1, 0, 2, 3], [0, 1, 2, 3]),
        (EventFaults(swap=2), [2, 1, 0, 3], [0, 1, 2, 3]),
    ],
)
def test_spoiled_events(faults: EventFaults, sent: list[int], kept: list[int]) -> None:
    """Each fault does to the next batches what it says, and is then over."""
    publisher = _Heard(faults)
    for _ in range(4):
        publisher.publish([REMOVED], 0.0)
    assert (publisher.sent, publisher.kept) == (sent, kept)
    assert faults == EventFaults()
