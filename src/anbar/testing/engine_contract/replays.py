"""Checks of the replay socket: what was published can be had again, byte for byte, from any sequence on."""

import zmq

from anbar.testing.engine_contract.event_log import Batch, published, some_tokens
from anbar.testing.engine_contract.sockets import connected_socket
from anbar.testing.engine_contract.target import Target, block_size, complete, ok

_END = (-1).to_bytes(8, "big", signed=True)
_SILENCE_S = 1.0
"""How long the socket must say nothing before a request counts as ignored: it is served every 0.1 s."""


def check_replay_repeats(target: Target) -> None:
    """A replay from the middle begins there and repeats the messages as they were."""
    if not target.replay:
        return
    batches = _some_batches(target)
    middle = batches[1].sequence
    found = _replayed(target, middle.to_bytes(8, "big"))
    assert found[0][0] == middle
    assert dict(found)[batches[1].sequence] == batches[1].payload
    assert [sequence for sequence, _ in found] == list(range(middle, middle + len(found)))


def check_replay_starts(target: Target) -> None:
    """A start in the future gives the end alone; a start is a big-endian number of any length, so that an
    empty one is 0."""
    if not target.replay:
        return
    batches = _some_batches(target)
    assert _replayed(target, (10**12).to_bytes(8, "big")) == []
    assert _replayed(target, _END) == [], "a start is never negative"
    last = batches[-1].sequence
    assert _replayed(target, last.to_bytes(3, "big"))[0][0] == last
    assert _replayed(target, b"")[0][0] == _replayed(target, bytes(8))[0][0]


def check_replay_ignores(target: Target) -> None:
    """A request of too few or too many frames is not answered, and does no harm to the next."""
    if not target.replay:
        return
    ok(complete(target, some_tokens(target, block_size(target)), max_tokens=1))
    for frames in ([bytes(8)], [b"", bytes(8), b"more"]):
        with connected_socket(zmq.DEALER, target.replay, _SILENCE_S) as socket:
            socket.send_multipart(frames)
            try:
                answer = socket.recv_multipart()
            except zmq.Again:
                continue
            raise AssertionError(f"{frames} got {answer[:3]}")
    assert _replayed(target, bytes(8))


def _some_batches(target: Target) -> list[Batch]:
    size = block_size(target)

    def ask() -> None:
        for _ in range(2):
            ok(complete(target, some_tokens(target, size + 1), max_tokens=1))

    return published(target, ask)


def _replayed(target: Target, start: bytes) -> list[tuple[int, bytes]]:
    """Sequences and payloads from `start` on."""
    found: list[tuple[int, bytes]] = []
    with connected_socket(zmq.DEALER, target.replay) as socket:
        socket.send_multipart([b"", start])
        while True:
            empty, topic, sequence, payload = socket.recv_multipart()
            assert (empty, topic) == (b"", b"")
            if sequence == _END:
                assert payload == b""
                return found
            found.append((int.from_bytes(sequence, "big"), payload))
