"""ZMQ sockets of the checks."""

from collections.abc import Iterator
from contextlib import contextmanager

import zmq

TIMEOUT_S = 20.0
"""Longest wait for a message that must come."""


@contextmanager
def connected_socket(kind: int, address: str, timeout_s: float = TIMEOUT_S) -> Iterator["zmq.Socket[bytes]"]:
    """A socket with a context of its own; receiving raises zmq.Again after `timeout_s`."""
    context = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()
