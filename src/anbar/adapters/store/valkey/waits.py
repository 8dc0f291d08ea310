"""Bytes to and from a socket, each wait with a deadline (`time.monotonic`), in as few calls as can be.

A plain socket waits inside the kernel, as long as its own options say: a value of a megabyte is one call.
With the timeouts of Python it would be a poll and a call for each few dozen kilobytes that have come, and
each of them gives up the interpreter and waits for it. TLS knows only those.
"""

import socket
import ssl
import struct
import time

_TIMEVAL = struct.Struct("@ll")


def receive(sock: socket.socket, target: memoryview, deadline_s: float, *, whole: bool) -> int:
    """Bytes that came: at least one, or with `whole` all of `target` unless the deadline comes first. 0: the
    other side has closed. Raises TimeoutError, or another OSError."""
    left_s = _left_s(deadline_s)
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(left_s)
        return sock.recv_into(target)
    _wait_in_kernel(sock, socket.SO_RCVTIMEO, left_s)
    try:
        return sock.recv_into(target, 0, socket.MSG_WAITALL if whole else 0)
    except BlockingIOError:
        raise TimeoutError("no answer by the deadline") from None


def send(sock: socket.socket, data: bytes | memoryview, deadline_s: float) -> None:
    """All of it. Raises TimeoutError, or another OSError."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(_left_s(deadline_s))
        sock.sendall(data)
        return
    rest = memoryview(data)
    while rest:
        _wait_in_kernel(sock, socket.SO_SNDTIMEO, _left_s(deadline_s))
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            raise TimeoutError("nothing was taken by the deadline") from None


def _wait_in_kernel(sock: socket.socket, option: int, left_s: float) -> None:
    if sock.gettimeout() is not None:
        sock.settimeout(None)
    left_us = max(1, int(left_s * 1e6))  # zero would mean for ever
    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(left_us, 1_000_000)))


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer by the deadline")
    return left_s
