"""Values on their way from objects into a caller's buffers. Only the caller's own thread works here."""

from collections.abc import Iterator

import numpy as np

from anbar.adapters.store.buffers import Bytes
from anbar.adapters.store.record import HEADER_BYTES, RecordFormat
from anbar.adapters.store.s3.objects import Piece
from anbar.tier.store import Outcome, Scope


class Reading:
    """One value, put together from the pieces of its object as they come, in any order."""

    def __init__(self, key: bytes, scope: Scope, name: str, target: Bytes) -> None:
        self.name = name
        self.num_bytes = HEADER_BYTES + target.nbytes
        self.e_tag: str | None = None
        self._key = key
        self._scope = scope
        self._target = target
        self._header = bytearray(HEADER_BYTES)
        self._num_missing = self.num_bytes
        self._failure: Outcome | None = None

    def ranges(self, part_bytes: int) -> Iterator[tuple[int, int]]:
        """Starts and ends of the pieces."""
        for start in range(0, self.num_bytes, part_bytes):
            yield start, min(start + part_bytes, self.num_bytes)

    def take(self, piece: Piece) -> None:
        """Copy a piece to where it belongs. Pieces of two objects, since one replaced the other between two
        requests, make no value: an ERROR, which tells nothing of either."""
        if piece.data is None:
            if self._failure is None or piece.outcome is Outcome.CORRUPT:
                self._failure = piece.outcome
            self.e_tag = self.e_tag or piece.e_tag
            return
        if self.e_tag not in (None, piece.e_tag):
            self._failure = self._failure or Outcome.ERROR
        self.e_tag = self.e_tag or piece.e_tag
        in_header = max(0, min(HEADER_BYTES - piece.start, piece.data.nbytes))
        self._header[piece.start : piece.start + in_header] = piece.data[:in_header].tobytes()
        begin = piece.start + in_header - HEADER_BYTES
        np.copyto(self._target[begin : begin + piece.data.nbytes - in_header], piece.data[in_header:])
        self._num_missing -= piece.data.nbytes

    def outcome(self, record_format: RecordFormat) -> Outcome | None:
        """What became of it: None as long as pieces are missing. What is in the buffer is verified."""
        if self._failure is not None:
            return self._failure
        if self._num_missing:
            return None
        if record_format.verifies(bytes(self._header), self._key, self._scope, self._target):
            return Outcome.HIT
        return Outcome.CORRUPT
