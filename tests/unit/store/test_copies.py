"""Copies that are written afterwards: bounded, in batches, and never of something removed."""

import threading
from collections.abc import Iterator

import pytest

from anbar.adapters.store.copies import Copies
from anbar.tier.store import PutItem, Scope

LONG_S = 120.0


class Rig:
    """Copies whose writes stand still while `gate` is cleared; `written` has what was written, in order."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.written: list[tuple[int, Scope, bytes]] = []
        self.copies = Copies(2, self._write, max_bytes=100)
        self.copies.start()

    def offer(self, key: bytes, scope: Scope = "", parts: tuple[int, ...] = (0,)) -> bool:
        return self.copies.offer(scope, PutItem(key, memoryview(b"v" * 10)), parts, self.copies.now())

    def flush(self) -> int:
        self.gate.set()
        return self.copies.close(LONG_S)

    def _write(self, part: int, scope: Scope, items: list[PutItem]) -> None:
        self.begun.release()
        self.gate.wait()
        self.written += [(part, scope, item.key) for item in items]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.flush()


def test_memory_is_bounded(rig: Rig) -> None:
    """Ten copies of ten bytes fit into a hundred; two parts count twice, an entry that waits already does not
    count again, and what was written makes room."""
    assert rig.offer(b"running")
    assert rig.begun.acquire(timeout=LONG_S)
    assert all(rig.offer(bytes([number])) for number in range(8))
    assert rig.offer(bytes([0]))
    assert not rig.offer(b"two", parts=(0, 1))
    assert rig.offer(b"one")
    assert not rig.offer(b"more")
    assert rig.flush() == 0
    assert len(rig.written) == 10


def test_a_removal_drops_what_waits(rig: Rig) -> None:
    """One copy is being written, of four that wait two are of the removed scope, one of them of another key:
    removing that key drops one, removing the scope the other."""
    rig.offer(b"running")
    assert rig.begun.acquire(timeout=LONG_S)
    for scope, key in (("a", b"1"), ("a", b"2"), ("b", b"1"), ("", b"3")):
        rig.offer(key, scope)
    with rig.copies.removing("a", [b"1"], 0.0) as has_ended:
        assert has_ended
    with rig.copies.removing("a", None, 0.0) as has_ended:
        assert has_ended
    assert rig.flush() == 0
    assert rig.written == [(0, "", b"running"), (0, "b", b"1"), (0, "", b"3")]


def test_a_removal_waits_for_what_is_being_written(rig: Rig) -> None:
    """The removed key is being written: without time the removal says that it has not ended; with time it
    waits until it has."""
    rig.offer(b"key")
    assert rig.begun.acquire(timeout=LONG_S)
    with rig.copies.removing("", [b"key"], 0.0) as has_ended:
        assert not has_ended
    threading.Timer(0.01, rig.gate.set).start()
    with rig.copies.removing("", [b"key"], LONG_S) as has_ended:
        assert has_ended
    assert rig.written == [(0, "", b"key")]


def test_what_was_read_before_or_during_a_removal_is_not_written(rig: Rig) -> None:
    """A value was read before something was removed, another one meanwhile: either may be what was removed,
    so neither is taken. What is read afterwards is."""
    before = rig.copies.now()
    with rig.copies.removing("", [b"other"], 0.0):
        during = rig.copies.now()
        assert not rig.copies.offer("", PutItem(b"1", memoryview(b"v")), (0,), during)
    for since in (before, during):
        assert not rig.copies.offer("", PutItem(b"1", memoryview(b"v")), (0,), since)
    assert rig.offer(b"2")
    assert rig.flush() == 0
    assert rig.written == [(0, "", b"2")]


def test_closing_has_an_end(rig: Rig) -> None:
    """The part stands still: `close` gives up, and says how many copies are lost."""
    rig.offer(b"1")
    assert rig.begun.acquire(timeout=LONG_S)
    rig.offer(b"2")
    assert rig.copies.close(0.0) == 2
    assert not rig.offer(b"3")
