"""A caller's memory in the hands of threads that the caller does not wait for."""

import threading

import numpy as np

from anbar.adapters.store.buffers import Bytes, as_bytes


class LeaseEnded(Exception):
    """The call is over: its memory belongs to the caller again."""


class Lease:
    """The buffer of one value until the call ends. A thread of the store copies pieces to or from it, and
    `end` waits for no more than the one that is being copied; after it nothing touches the buffer, nor refers
    to it."""

    def __init__(self, buffer: memoryview) -> None:
        self._lock = threading.Lock()
        self._memory: Bytes | None = as_bytes(buffer)
        self.num_bytes = buffer.nbytes

    def read(self, start: int, piece: Bytes) -> None:
        """Fill `piece` from what begins at `start`. Raises LeaseEnded."""
        with self._lock:
            if self._memory is None:
                raise LeaseEnded
            np.copyto(piece, self._memory[start : start + piece.nbytes])

    def write(self, start: int, piece: Bytes) -> None:
        """Put `piece` where `start` is. Raises LeaseEnded."""
        with self._lock:
            if self._memory is None:
                raise LeaseEnded
            np.copyto(self._memory[start : start + piece.nbytes], piece)

    def end(self) -> None:
        """The call returns."""
        with self._lock:
            self._memory = None
