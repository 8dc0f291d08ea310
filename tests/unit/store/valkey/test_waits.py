"""Waits on real sockets end at their deadline, however little or much comes."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from anbar.adapters.store.valkey.waits import receive, send
from tests.waiting import PATIENCE_S

Pair = tuple[socket.socket, socket.socket]

MUCH = bytes(range(256)) * 40_000
"""More than the kernel keeps for a socket that nobody reads from."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def in_s(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_whole_value_is_one_call(pair: Pair) -> None:
    """It comes in many pieces, as fast as it is taken."""
    ours, theirs = pair
    thread = threading.Thread(target=send, args=(theirs, MUCH, in_s(PATIENCE_S)))
    thread.start()
    target = bytearray(len(MUCH))
    assert receive(ours, memoryview(target), in_s(PATIENCE_S), whole=True) == len(MUCH)
    thread.join(PATIENCE_S)
    assert target == MUCH


def test_what_is_there_is_enough(pair: Pair) -> None:
    """Without `whole` nobody waits for more than something, and nothing means that the other side closed."""
    ours, theirs = pair
    theirs.sendall(b"some")
    target = memoryview(bytearray(100))
    assert receive(ours, target, in_s(PATIENCE_S), whole=False) == 4
    theirs.close()
    assert receive(ours, target, in_s(PATIENCE_S), whole=True) == 0


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_comes(pair: Pair, whole: bool) -> None:
    """A frozen server: the wait ends, and not before the deadline."""
    ours, _ = pair
    deadline_s = in_s(0.05)
    with pytest.raises(TimeoutError):
        receive(ours, memoryview(bytearray(10)), deadline_s, whole=whole)
    assert time.monotonic() >= deadline_s - 0.01  # the kernel counts in ticks


def test_some_of_it_comes(pair: Pair) -> None:
    """A server that froze in the middle of a value: what came is told at the deadline, the rest is late."""
    ours, theirs = pair
    theirs.sendall(b"half")
    assert came(ours) == 4
    with pytest.raises(TimeoutError):
        receive(ours, memoryview(bytearray(4)), in_s(0.05), whole=True)


def came(sock: socket.socket) -> int:
    """Of eight bytes; a machine that stalls before the wait begins gets more time."""
    for seconds in (0.05, 1.0, 5.0):
        with suppress(TimeoutError):
            return receive(sock, memoryview(bytearray(8)), in_s(seconds), whole=True)
    return receive(sock, memoryview(bytearray(8)), in_s(20.0), whole=True)


def test_nothing_is_taken(pair: Pair) -> None:
    """A server that does not read: sending a large value ends at the deadline."""
    with pytest.raises(TimeoutError):
        send(pair[0], MUCH, in_s(0.05))


def test_a_deadline_that_is_over(pair: Pair) -> None:
    """Nothing is begun, also when there is something to read."""
    ours, theirs = pair
    theirs.sendall(b"late")
    with pytest.raises(TimeoutError):
        receive(ours, memoryview(bytearray(4)), in_s(-1.0), whole=True)
    with pytest.raises(TimeoutError):
        send(ours, b"late", in_s(-1.0))
