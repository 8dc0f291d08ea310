"""Token ids of a text as far as they are needed."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

from anbar.adapters.vllm.word_cache import packed

TokenIds: TypeAlias = "array[int]"
"""Ids as unsigned 32-bit numbers (type code "I")."""


_BATCH = 32
"""Pieces that are looked up together: more than a short chat has."""


class PieceSource(Protocol):
    """Where a reading gets the ids of its pieces."""

    def known(self, pieces: Sequence[str]) -> list[bytes]:
        """Of the first pieces, up to one that was not encoded before."""
        ...

    def encode(self, piece: str) -> bytes: ...


class Reading:
    """The ids of one text, of which the first are at hand. One at a time may go on with it."""

    __slots__ = ("_batch", "_behind", "_encoder", "_num_chars", "_num_read", "_pieces", "ids")

    def __init__(
        self,
        num_chars: int,
        pieces: Iterator[str],
        encoder: PieceSource,
        around: tuple[int, bytes, bytes] = (0, b"", b""),
    ) -> None:
        """A text of `num_chars`. `around`: characters before `pieces` that are read already, their ids, and
        the ids behind `pieces`."""
        self._num_chars = num_chars
        self._num_read, before, self._behind = around
        self._pieces = pieces
        self._encoder = encoder
        self.ids: TokenIds = array("I", before)
        """What has been computed. It is replaced when there is more, not changed."""
        self._batch: list[str] = []
        """The next pieces; none: there are no more."""
        if not self._refill():
            self._append([])

    @property
    def is_whole(self) -> bool:
        """Whether `ids` are all."""
        return not self._batch

    @property
    def num_tokens(self) -> int:
        """Of the whole text; an estimate, by what has been read, until that is all."""
        if not self._batch or not self._num_read:
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
        return len(self._batch[0]) if self._batch else 0

    def take(self, num_chars: int, longest: int = sys.maxsize) -> None:
        """Go on until the text ends, or as many characters were encoded and something more is to be, or a
        piece of more than `longest` is."""
        found: list[bytes] = []
        while self._batch:
            known = self._encoder.known(self._batch)
            found += known
            if len(known) == len(self._batch):
                self._refill()
                continue
            piece = self._batch[len(known)]
            if num_chars <= 0 or len(piece) > longest:
                self._advance(len(known))
                break
            num_chars -= len(piece)
            found.append(self._encoder.encode(piece))
            self._advance(len(known) + 1)
        if found:
            self._append(found)

    def _advance(self, num_pieces: int) -> None:
        if num_pieces == len(self._batch):
            self._refill()
        else:
            self._num_read += sum(map(len, self._batch[:num_pieces]))
            del self._batch[:num_pieces]

    def _refill(self) -> bool:
        """All of the batch is read; whether there is another one."""
        self._num_read += sum(map(len, self._batch))
        self._batch = list(islice(self._pieces, _BATCH))
        return bool(self._batch)

    def _append(self, found: list[bytes]) -> None:
        if not self._batch:
            found.append(self._behind)
        self.ids = self.ids + array("I", b"".join(found))


def read_already(ids: Sequence[int]) -> Reading:
    """Ids that need no encoder. Raises OverflowError for one beyond 32 bits."""
    return Reading(0, iter(()), _NOTHING, (0, packed(ids), b""))


class _Nothing:
    def known(self, pieces: Sequence[str]) -> list[bytes]:
        return []

    def encode(self, piece: str) -> bytes:
        raise AssertionError(f"{len(piece)} characters are to be encoded by nobody")


_NOTHING = _Nothing()
