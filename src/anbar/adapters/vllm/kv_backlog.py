"""Live messages that were received and not yet read, bounded in bytes. Pure."""

from collections import deque

OVERHEAD_BYTES = 200
"""Of a message, beside what is in them."""


class Backlog:
    """A queue that gives up when it is full: from then on all that comes is dropped, until what is in it is
    taken. So an overload makes one hole in the stream, at its end, and not one for every message that there
    was no room for: a hole is mended by a replay, and one replay mends it."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: deque[tuple[list[bytes], int]] = deque()
        self._bytes = 0
        self.num_missing = 0
        """Messages dropped since `mended`, all of them after those that are kept."""

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, frames: list[bytes]) -> bool:
        """Keep a message; False when there is no room. One that is too large for an empty queue is kept."""
        size = OVERHEAD_BYTES + sum(map(len, frames))
        full = len(self._messages) >= self._max_messages or self._bytes + size > self._max_bytes
        if self.num_missing or (full and self._messages):
            self.num_missing += 1
            return False
        self._messages.append((frames, size))
        self._bytes += size
        return True

    def take(self) -> tuple[list[bytes], int]:
        """The oldest message and what it counts, in bytes; there must be one."""
        frames, size = self._messages.popleft()
        self._bytes -= size
        return frames, size

    def mended(self) -> int:
        """What was dropped is being fetched by other means: keep messages again. How many were missing."""
        missing, self.num_missing = self.num_missing, 0
        return missing
