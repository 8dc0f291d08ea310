"""Snapshots of one engine's part of the index: what they carry, and what is refused."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.errors import WireError
from anbar.core.events import Tier
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import EngineId
from anbar.route.index import PrefixIndex
from anbar.route.profile import EngineProfile
from anbar.route.snapshot import RESTORE_BLOCKS

from .builders import BLOCK, batch, offloaded, query, removed, stored

A, B = EngineId("a"), EngineId("b")
STORE = "anbar:s"
PROFILE = EngineProfile("m", BLOCK, 1, "f", frozenset({STORE}))
PROMPT = [1, 2, 3, 4, 5, 6, 7]


def index_of(*engines: EngineId, profile: EngineProfile = PROFILE) -> PrefixIndex:
    index = PrefixIndex(hint_ttl_s=10.0)
    for engine in engines:
        index.attach(engine, profile)
    return index


def restored(index: PrefixIndex, engine: EngineId, data: bytes, now_s: float = 0.0) -> int:
    """Restore all of it; the number of pauses."""
    return sum(1 for _ in index.restore(engine, data, now_s))


def full() -> PrefixIndex:
    """Device, host, store, a second copy, a parked hash: of A; and a block of B's own."""
    index = index_of(A, B)
    shared = offloaded(PROMPT, 2, Tier.SHARED, owner=STORE)
    parked = offloaded([9, 9], 0, Tier.HOST)
    index.apply(A, batch(stored(PROMPT), stored(PROMPT, 0, 1), offloaded(PROMPT, 0, Tier.HOST)), 0.0)
    index.apply(A, batch(removed(PROMPT, 2), shared, parked), 0.0)
    index.apply(B, batch(stored([8, 8, 8, 8])), 0.0)
    return index


def test_all_of_an_engine_is_handed_over_and_nothing_of_another() -> None:
    """Blocks per tier, copies, hashes that nothing explained, and the store's blocks, which then count for
    every engine that reads it."""
    other = index_of(A, B)
    restored(other, A, full().snapshot(A))
    other.check_integrity()
    assert other.match(query(PROMPT), [A, B], 0.0) == {A: PrefixMatch(4, 4, 6), B: PrefixMatch(0, 0, 0)}
    assert other.match(query([8, 8, 8, 8, 8]), [A, B], 0.0) == {A: PrefixMatch(), B: PrefixMatch()}
    assert other.stats().num_parked == 1
    other.apply(A, batch(removed(PROMPT, 0)), 0.0)
    assert other.match(query(PROMPT), [A], 0.0)[A].device == 4, "its first block was there twice"
    other.apply(A, batch(removed(PROMPT, 0)), 0.0)
    assert other.match(query(PROMPT), [A], 0.0)[A] == PrefixMatch(0, 2, 2)
    other.apply(A, batch(stored([9, 9])), 0.0)
    assert (other.stats().num_parked, other.stats().num_orphans) == (0, 0)


def test_what_was_believed_before_is_replaced() -> None:
    """A snapshot is the whole truth of its engine: what it does not have is not there."""
    other = index_of(A)
    other.apply(A, batch(stored([7, 7, 7, 7])), 0.0)
    restored(other, A, index_of(A).snapshot(A))
    assert other.match(query([7, 7, 7, 7, 7]), [A], 0.0)[A] == PrefixMatch()


def test_hints_keep_their_age() -> None:
    """A store's block that was announced half a TTL ago ends, in the router that joined, no later than in the
    other; one that is too old is left out."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT), offloaded(PROMPT, 0, Tier.SHARED, owner=STORE)), 0.0)
    for age_s, alive_s in ((0.0, 8.7), (5.0, 3.7)):
        other = index_of(A)
        index.match(query(PROMPT), [A], age_s)
        restored(other, A, index.snapshot(A), 1000.0)
        other.apply(A, batch(*(removed(PROMPT, at) for at in range(3))), 1000.0)
        assert other.match(query(PROMPT), [A], 1000.0 + alive_s)[A].shared == 2
        assert other.match(query(PROMPT), [A], 1010.0 - age_s)[A].shared == 0
    index.match(query(PROMPT), [A], 9.9)
    other = index_of(A)
    restored(other, A, index.snapshot(A), 1000.0)
    other.apply(A, batch(*(removed(PROMPT, at) for at in range(3))), 1000.0)
    assert other.match(query(PROMPT), [A], 1000.0)[A].shared == 0


def test_a_large_snapshot_is_restored_in_steps() -> None:
    """Others run between the steps; an engine that leaves meanwhile ends it."""
    tokens = list(range(BLOCK * (2 * RESTORE_BLOCKS + 1)))
    index = index_of(A)
    index.apply(A, batch(stored(tokens)), 0.0)
    data = index.snapshot(A)
    assert len(data) < 21 * (2 * RESTORE_BLOCKS + 1)
    other = index_of(A)
    assert restored(other, A, data) == 3
    assert other.match(query(tokens), [A], 0.0)[A].device == len(tokens) - BLOCK
    leaving = index_of(A)
    steps = leaving.restore(A, data, 0.0)
    next(steps)
    leaving.detach(A)
    assert list(steps) == []
    assert leaving.stats().num_rows == 0


@pytest.mark.parametrize(
    "profile",
    [replace(PROFILE, model="n"), replace(PROFILE, block_size=4), replace(PROFILE, fingerprint="g")],
    ids=["model", "block size", "fingerprint"],
)
def test_snapshots_of_something_else_are_refused(profile: EngineProfile) -> None:
    """Its hashes would mean something else; nothing has changed then."""
    other = index_of(A, profile=profile)
    with pytest.raises(WireError, match="the snapshot is of"):
        restored(other, A, full().snapshot(A))
    assert other.stats().num_rows == 0


def changed(data: bytes, at: int, value: object) -> bytes:
    parts: list[object] = msgspec.msgpack.decode(data)
    parts[at] = value
    return msgspec.msgpack.encode(parts)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 2),
        (5, b"123"),
        (6, bytes(800)),
        (7, [["", "device", 0, 0, b"\xff" * 4, {}]]),
        (7, [["", "device", 0, 0, b"\x00" * 3, {}]]),
        (7, [["", "moon", 0, 0, b"", {}]]),
        (7, [["", "device", 0, -1, b"", {}]]),
        (7, [["", "device", 0, 0, b"", {0: 0}]]),
        (4, "x"),
    ],
)
def test_malformed_snapshots_are_refused(at: int, value: object) -> None:
    """Another version, columns that do not fit, places that name what is not there: nothing has changed
    then."""
    other = index_of(A)
    with pytest.raises(WireError):
        restored(other, A, changed(full().snapshot(A), at, value))
    assert other.stats().num_rows == 0


@given(st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes_restore_or_raise_wire_error(tail: bytes, cut: int) -> None:
    """Whatever comes over the wire."""
    for data in (tail, full().snapshot(A)[:cut] + tail):
        other = index_of(A)
        try:
            restored(other, A, data)
        except WireError:
            continue
        other.check_integrity()
