"""What a router believes of an engine that it began to follow late, on real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import engine_at
from tests.waiting import until

from anbar.adapters.vllm.kv_publish import AllBlocksCleared, BlockStored, Publisher, PublisherConfig
from anbar.apps.router import kv_snapshot
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.kv import KvFeed
from anbar.core.clock import ManualClock
from anbar.core.errors import WireError
from anbar.core.ids import EngineId, RequestId
from anbar.core.outcome import Event, KvStreamGap
from anbar.core.request import RouteQuery
from anbar.route import EngineProfile, Placements, PrefixIndex

BUFFER = 4
"""Batches that the engine can replay."""
DEVICE_ONLY = EngineProfile("m", 2)
WITH_HOST = EngineProfile("m", 2, chunk_blocks=1)


def prompt(number: int) -> list[int]:
    return [number, 1, number, 2]


@dataclass
class Router:
    """The part of a router that follows one engine."""

    profile: EngineProfile = DEVICE_ONLY
    engine: Engine = field(default_factory=lambda: engine_at(1, "e"))
    index: PrefixIndex = field(default_factory=PrefixIndex)
    events: list[Event] = field(default_factory=list)
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        clock = ManualClock()
        fleet = Fleet([self.engine])
        caches = Caches(fleet, self.index, Placements(), clock)
        self.feed = KvFeed(fleet, caches, self.events.append, clock, lambda: self.wall_s)
        self.engine.profile = self.profile
        self.index.attach(EngineId("e"), self.profile)

    def knows(self, number: int) -> int:
        """Tokens of a prompt that it believes to be on the engine."""
        query = RouteQuery(RequestId("r"), "m", (*prompt(number), 0), 5)
        return self.index.match(query, [self.engine.id], 0.0)[self.engine.id].device

    async def heard(self, seq: int) -> None:
        await until(lambda: self.engine.kv.seq == seq)


def store(publisher: Publisher, number: int) -> None:
    """The engine computes a prompt of two blocks."""
    hashes = [10 * number + 1, 10 * number + 2]
    publisher.publish([BlockStored(hashes, None, prompt(number), 2, None, "GPU", None)], 1.0)


@asynccontextmanager
async def publishing(folder: Path) -> AsyncIterator[Publisher]:
    """An engine's publisher with a short buffer, and nothing published."""
    publisher = Publisher(PublisherConfig(f"ipc://{folder}/e", f"ipc://{folder}/r", buffer_steps=BUFFER))
    await publisher.start()
    try:
        yield publisher
    finally:
        await publisher.stop()


@asynccontextmanager
async def following(publisher: Publisher, router: Router) -> AsyncIterator[Router]:
    """A router that follows from the first batch it can get."""
    await router.feed.follow(router.engine, publisher.endpoint, publisher.replay_endpoint)
    try:
        yield router
    finally:
        await router.feed.stop()


@asynccontextmanager
async def joining(publisher: Publisher, router: Router, snapshot: bytes) -> AsyncIterator[bool]:
    """A router that begins with another's snapshot; whether it could use it."""
    endpoints = publisher.endpoint, publisher.replay_endpoint
    try:
        yield await router.feed.join(router.engine, *endpoints, snapshot)
    finally:
        await router.feed.stop()


async def test_a_late_router_joins_by_snapshot(tmp_path: Path) -> None:
    """One router was there from the start. Another comes when the engine no longer replays the first batches:
    with the first's snapshot it knows all, and goes on with the live events; with the replay alone it knows
    the last four, and says that it is partial."""
    first, late, alone = Router(), Router(), Router()
    async with publishing(tmp_path) as publisher, following(publisher, first):
        await until(lambda: first.engine.kv.status.complete)
        for number in range(10):
            store(publisher, number)
            await first.heard(number)
        snapshot = first.feed.snapshot(first.engine)
        assert snapshot is not None
        store(publisher, 10)
        async with joining(publisher, late, snapshot) as used, following(publisher, alone):
            assert used
            await late.heard(10)
            await alone.heard(10)
            await until(lambda: late.engine.kv.status.complete)
            store(publisher, 11)
            for router in (first, late, alone):
                await router.heard(11)
            assert [late.knows(number) for number in range(12)] == [4] * 12
            assert [alone.knows(number) for number in range(12)] == [0] * 7 + [4] * 5
            assert (late.engine.kv.status.partial, alone.engine.kv.status.partial) == (False, True)
            assert late.events == []
            late.index.check_integrity()


async def test_a_snapshot_of_a_former_life_is_dropped(tmp_path: Path) -> None:
    """The engine restarted between the snapshot and the joining: nothing of its former life is believed."""
    first, late = Router(), Router()
    async with publishing(tmp_path) as publisher, following(publisher, first):
        store(publisher, 1)
        await first.heard(0)
        snapshot = first.feed.snapshot(first.engine)
    assert snapshot is not None
    async with publishing(tmp_path) as publisher:
        store(publisher, 2)
        async with joining(publisher, late, snapshot) as used:
            assert used
            await until(lambda: late.engine.kv.status.complete)
            assert (late.knows(1), late.knows(2)) == (0, 4)


async def test_lost_batches_end_what_was_believed(tmp_path: Path) -> None:
    """Among them may be removals: nothing that was heard before counts any more, what comes then does."""
    router = Router()
    async with publishing(tmp_path) as publisher, following(publisher, router):
        store(publisher, 1)
        await router.heard(0)
        assert router.knows(1) == 4
        router.feed.on_gap(router.engine.id, 1, 3)
        assert (router.knows(1), router.events) == (0, [KvStreamGap(router.engine.id, 3)])
        store(publisher, 2)
        await router.heard(1)
        assert (router.knows(1), router.knows(2)) == (0, 4)


@pytest.mark.parametrize("profile", [DEVICE_ONLY, WITH_HOST], ids=["device only", "with host memory"])
async def test_a_cleared_cache_proves_what_is_known(tmp_path: Path, profile: EngineProfile) -> None:
    """A router that came late is partial until the engine clears its cache: then there is nothing that it
    has not heard of, unless in host memory, which that does not clear."""
    router = Router(profile)
    async with publishing(tmp_path) as publisher:
        for number in range(6):
            store(publisher, number)
        async with following(publisher, router):
            await router.heard(5)
            assert router.engine.kv.status.partial
            publisher.publish([AllBlocksCleared()], 1.0)
            store(publisher, 7)
            await until(lambda: router.knows(7) == 4)
            assert router.engine.kv.status.partial == (profile is WITH_HOST)
            expected = "kv_events_incomplete" if profile is WITH_HOST else ""
            await until(lambda: router.engine.degraded() == expected)  # a late replay may be asked for again


@pytest.mark.parametrize("spoil", ["bytes", "another model", "no replay"])
async def test_a_snapshot_that_cannot_be_used(tmp_path: Path, spoil: str) -> None:
    """What is no snapshot, or of something else, or could not be compared with the engine's life: the engine
    is followed as if there were none."""
    first = Router(EngineProfile("other", 2) if spoil == "another model" else DEVICE_ONLY)
    late = Router()
    async with publishing(tmp_path) as publisher, following(publisher, first):
        store(publisher, 1)
        await first.heard(0)
        snapshot = first.feed.snapshot(first.engine)
        assert snapshot is not None
        replay = None if spoil == "no replay" else publisher.replay_endpoint
        used = await late.feed.join(
            late.engine, publisher.endpoint, replay, snapshot[:-3] if spoil == "bytes" else snapshot
        )
        assert not used
        if replay is not None:
            await late.heard(0)
            assert late.knows(1) == 4
        await late.feed.stop()


async def test_only_live_batches_tell_how_late_the_events_are(tmp_path: Path) -> None:
    """A router begins to follow minutes after an engine's last event: what it replays is no sign that events
    come late. The next live one, stamped as old, is."""
    router = Router(wall_s=415.0)
    async with publishing(tmp_path) as publisher:
        store(publisher, 0)
        async with following(publisher, router):
            await router.heard(0)
            await until(lambda: router.engine.kv.status.complete)
            assert (router.engine.kv.lag_s, router.engine.kv.status.replaying) == (0.0, False)
            store(publisher, 1)
            await router.heard(1)
            assert router.engine.kv.lag_s == 414.0


async def test_nothing_heard_is_no_snapshot(tmp_path: Path) -> None:
    """Before the first batch there is nothing to hand over."""
    router = Router()
    assert router.feed.snapshot(router.engine) is None
    async with publishing(tmp_path) as publisher, following(publisher, router):
        assert router.feed.snapshot(router.engine) is None


@pytest.mark.parametrize(
    "data", [b"", b"\x95\x01", b"\x95\x02\x00\x00\xc2\xc4\x00", b"\x95\x01\xff\x00\xc2\xc4\x00"]
)
def test_malformed_envelopes(data: bytes) -> None:
    """Too short, another version, a number that cannot be."""
    with pytest.raises(WireError):
        kv_snapshot.decode(data)
