"""Bounce buffers: the memory that a request touches, which nobody waits for once it is late."""

import threading

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def as_bytes(buffer: memoryview) -> Bytes:
    """A flat byte array over a caller's contiguous buffer, without a copy."""
    return np.frombuffer(buffer, dtype=np.uint8)


class BufferPool:
    """Buffers for reuse: fresh memory costs a page fault per 4 KiB, several times the copy itself.

    `take` never blocks; `give` keeps at most `max_buffers`. A buffer that a late request still holds is
    simply never given back. Thread-safe.
    """

    def __init__(self, max_buffers: int) -> None:
        self._max_buffers = max_buffers
        self._lock = threading.Lock()
        self._free: list[Bytes] = []

    def take(self, num_bytes: int) -> Bytes:
        """A buffer of exactly `num_bytes`, with undefined content."""
        with self._lock:
            for index, buffer in enumerate(self._free):
                if buffer.nbytes == num_bytes:
                    return self._free.pop(index)
        return np.empty(num_bytes, dtype=np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Return a buffer that nothing touches any more."""
        with self._lock:
            if len(self._free) >= self._max_buffers:
                self._free.pop(0)
            self._free.append(buffer)
