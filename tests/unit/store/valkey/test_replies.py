"""Replies off a socket that gives them in pieces of any size."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.store.valkey.replies import OtherLength, ProtocolError, Reply, ReplyReader, ServerError
from anbar.adapters.store.valkey.wire import pieces


class Pieces:
    """A socket from which `data` comes in pieces of at most the given sizes, in turn; then it has ended."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = data
        self._sizes = sizes
        self._count = 0

    def gettimeout(self) -> None:
        """It waits in the kernel."""

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert any(value), "for ever"

    def recv_into(self, target: memoryview, num_bytes: int, flags: int) -> int:
        size = min(len(target), self._sizes[self._count % len(self._sizes)])
        self._count += 1
        piece, self._data = self._data[:size], self._data[size:]
        target[: len(piece)] = piece
        return len(piece)


def reader(data: bytes, sizes: list[int] | None = None, seconds: float = 60.0) -> ReplyReader:
    reader = ReplyReader(65536)
    reader.on_connect(SimpleNamespace(_sock=Pieces(data, sizes or [1 << 20])))
    reader.deadline_s = time.monotonic() + seconds
    return reader


def encoded(reply: Reply) -> bytes:
    """As a server sends it."""
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(reply), reply)
        case ServerError(text):
            return b"-%s\r\n" % text.encode()
        case list():
            return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)
singles = st.none() | st.integers() | st.binary(max_size=60) | st.builds(ServerError, texts)
replies = st.recursive(singles, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
sizes = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@given(st.lists(replies, max_size=6), sizes)
def test_replies_in_any_pieces(expected: list[Reply], sizes: list[int]) -> None:
    """What a server sends comes out, one reply after the other, and then the end is seen."""
    source = reader(b"".join(map(encoded, expected)), sizes)
    assert [source.reply() for _ in expected] == expected
    with pytest.raises(ConnectionError):
        source.reply()


@given(st.binary(max_size=300), st.integers(0, 300), st.booleans(), sizes)
def test_values_in_any_pieces(data: bytes, split: int, fits: bool, sizes: list[int]) -> None:
    """A value goes into two parts of memory, if it is as long as they are; what follows is read in each
    case."""
    split = min(split, len(data))
    head, tail = bytearray(split), bytearray(len(data) - split + (0 if fits else 1))
    source = reader(encoded(data) + encoded(7) + encoded(None), sizes)
    filled: list[bytes] = []
    found = source.value((memoryview(head), memoryview(tail)), lambda part: filled.append(bytes(part)))
    if fits:
        assert filled == [bytes(head), bytes(tail)]
        assert (found, bytes(head + tail)) == (len(data), data)
    else:
        assert found == OtherLength(len(data))
    assert source.reply() == 7
    assert source.value((memoryview(head), memoryview(tail)), filled.append) is None


def test_a_value_much_larger_than_what_is_read_ahead() -> None:
    """With a header of odd length."""
    data = bytes(range(256)) * 1000
    head, tail = bytearray(97), bytearray(len(data) - 97)
    assert reader(encoded(data)).value((memoryview(head), memoryview(tail)), len) == len(data)
    assert head + tail == data


def test_an_error_in_the_place_of_a_value() -> None:
    """It has a code and its words."""
    error = reader(b"-OOM command not allowed\r\n").value(
        (memoryview(bytearray(1)), memoryview(bytearray(1))), len
    )
    assert error == ServerError("OOM command not allowed")
    assert error.code == "OOM"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$99999999999\r\n",
        b":one\r\n",
        b"$3\r\nabcXX",
        b"\r\n",
        b"+" + bytes(20_000),
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    """Another protocol, lengths that are none, a value that does not end, a line without an end."""
    with pytest.raises(ProtocolError):
        reader(data).reply()


def test_the_deadline_is_of_the_whole() -> None:
    """However much comes: after the deadline nothing is read."""
    with pytest.raises(TimeoutError):
        reader(b":1\r\n", seconds=-1.0).reply()


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=4), max_size=4))
def test_requests_are_arrays_of_values(requests: list[list[bytes]]) -> None:
    """What is sent reads as what a server would send."""
    sent = b"".join(pieces(tuple(request) for request in requests))
    source = reader(sent)
    assert [source.reply() for _ in requests] == requests


def test_a_large_argument_is_not_copied() -> None:
    """It is handed to the socket as it lies in memory, after a header that belongs to the same argument."""
    large = memoryview(bytes(100_000))
    sent = list(pieces([(b"SET", b"name", (b"header", large), b"EX", b"9")]))
    assert sent[1] is large
    assert reader(b"".join(sent)).reply() == [b"SET", b"name", b"header" + bytes(large), b"EX", b"9"]
