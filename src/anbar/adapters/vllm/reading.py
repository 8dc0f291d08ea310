"""Token ids of a text as far as they are needed."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from anbar.adapters.vllm.word_cache import packed

TokenIds: TypeAlias = "array[int]"
"""Ids as unsigned 32-bit numbers (type code "I")."""


Part: TypeAlias = tuple[str, bytes | None]
"""A piece of text, and its ids where they do not have to be looked up."""


class PieceSource(Protocol):
    """Where a reading gets the ids of its pieces."""

    def known(self, piece: str) -> bytes | None: ...

    def encode(self, piece: str) -> bytes: ...


class Reading:
    """The ids of one text, of which the first are at hand. One at a time may go on with it."""

    __slots__ = ("_encoder", "_next", "_num_chars", "_num_read", "_parts", "ids")

    def __init__(self, num_chars: int, parts: Iterator[Part], encoder: PieceSource) -> None:
        self._num_chars = num_chars
        self._num_read = 0
        self._parts = parts
        self._encoder = encoder
        self._next = next(parts, None)
        self.ids: TokenIds = array("I")
        """What has been computed. It is replaced when there is more, not changed."""

    @property
    def is_whole(self) -> bool:
        """Whether `ids` are all."""
        return self._next is None

    @property
    def num_tokens(self) -> int:
        """Of the whole text; an estimate, by what has been read, until that is all."""
        if self._next is None or not self._num_read:
            return len(self.ids)
        return len(self.ids) * self._num_chars // self._num_read

    def whole(self) -> TokenIds:
        """All ids."""
        self.take(sys.maxsize)
        return self.ids

    def take_known(self) -> None:
        """Go on for as long as nothing has to be encoded."""
        self.take(0)

    @property
    def num_next(self) -> int:
        """Characters of the piece that comes next."""
        return len(self._next[0]) if self._next is not None else 0

    def take(self, num_chars: int, longest: int = sys.maxsize) -> None:
        """Go on until the text ends, or as many characters were encoded and something more is to be, or a
        piece of more than `longest` is."""
        found: list[bytes] = []
        while self._next is not None:
            piece, ids = self._next
            if ids is None:
                ids = self._encoder.known(piece)
            if ids is None:
                if num_chars <= 0 or len(piece) > longest:
                    break
                num_chars -= len(piece)
                ids = self._encoder.encode(piece)
            found.append(ids)
            self._num_read += len(piece)
            self._next = next(self._parts, None)
        if found:
            self.ids = self.ids + array("I", b"".join(found))


def read_already(ids: Sequence[int]) -> Reading:
    """Ids that need no encoder. Raises OverflowError for one beyond 32 bits."""
    reading = Reading(0, iter((("", packed(ids)),)), _NOTHING)
    reading.take_known()
    return reading


class _Nothing:
    def known(self, piece: str) -> bytes | None:
        return None

    def encode(self, piece: str) -> bytes:
        raise AssertionError(f"{len(piece)} characters are to be encoded by nobody")


_NOTHING = _Nothing()
