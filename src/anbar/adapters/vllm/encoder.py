"""Text to token ids, piece by piece: as much as is asked for, and each piece of a text only once.

A text is cut at added tokens, and what lies between is cut further where it is long, both only where
`anbar.adapters.vllm.tokenizer_kind` knows that nothing changes by it. The cuts of a piece depend only on what
stands before them, so that a conversation with one turn more, or a document with a new end, has the same
pieces but for the last. Ids are kept by the piece's whole text: no two pieces can be mistaken for each other.
"""

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from anbar.adapters.vllm.reading import Reading
from anbar.adapters.vllm.text_runs import TextRuns
from anbar.adapters.vllm.tokenizer_kind import TokenizerKind, kind_of
from anbar.adapters.vllm.word_cache import SAFE_CUT, Backend, WordCache, encoded, packed

PIECE_CHARS = 512, 4096
"""Of the first piece between two added tokens, and of the longest; each is twice as long as the one before.
The first has some 100 tokens, a few blocks: enough to tell whether an engine knows the text at all. A run of
pieces is as long as the longest."""
_RUNS_SHARE = 4
"""One part in so many of the memory is for runs, the others are for pieces."""
_SPLIT_CHARS = 65_536
"""A text up to this size is cut at its added tokens at once; a longer one as far as it is read."""

_ENTRY_BYTES = 150
"""Of a dictionary's entry and of the head of a bytes object."""


_SAMPLE = (
    "It's  a test,\n\n\tof 1234 words. می‌روم به خانه‌ها؛ क्षेत्र में १२ ज्ञान 👩\u200d👧 e\u0301 ",
    "中文，かな x=[1,2]; // a/b\n    return\r\n/path  \n <b>end</b> \u00a0\u2003\x1cA",
)


class PieceCache:
    """Ids of pieces of text, the least recently used of which are dropped beyond `max_bytes`. Threads may
    share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._ids: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.num_bytes = 0
        """Of what is kept now, texts and ids."""

    def known(self, pieces: Sequence[str]) -> list[bytes]:
        """The ids of the first pieces, up to one that is not known; they count as used."""
        found: list[bytes] = []
        with self._lock:
            for piece in pieces:
                ids = self._ids.pop(piece, None)
                if ids is None:
                    break
                self._ids[piece] = ids
                found.append(ids)
        return found

    def put(self, piece: str, ids: bytes) -> None:
        """Keep the ids of a piece that was not known."""
        with self._lock:
            if piece in self._ids:
                return
            self._ids[piece] = ids
            self.num_bytes += _size(piece, ids)
            while self.num_bytes > self._max_bytes:
                oldest = next(iter(self._ids))
                self.num_bytes -= _size(oldest, self._ids.pop(oldest))

    def __len__(self) -> int:
        return len(self._ids)


class Describing(Backend, Protocol):
    """A tokenizer that describes itself."""

    def to_str(self) -> str: ...


class Encoder:
    """One tokenizer with its caches. Safe to use from several threads."""

    def __init__(
        self,
        backend: Backend,
        kind: TokenizerKind,
        cache_bytes: int,
        piece_chars: tuple[int, int] = PIECE_CHARS,
    ) -> None:
        self._backend = backend
        self._piece_chars = piece_chars
        self._cache = PieceCache(cache_bytes - cache_bytes // _RUNS_SHARE)
        self._words = WordCache(backend, kind.words) if kind.words is not None else None
        self._safe_cut = SAFE_CUT[kind.words] if kind.words is not None else None
        self._cut = re.compile(f"({'|'.join(map(re.escape, kind.cuts))})") if kind.cuts else None
        self._runs = TextRuns(
            self._pieces,
            self._cache.known,
            num_chars=piece_chars[1],
            num_behind=1 + max(map(len, kind.cuts), default=0),
            max_bytes=cache_bytes // _RUNS_SHARE,
        )
        around = backend.encode("a", add_special_tokens=True)
        inside = around.special_tokens_mask.index(0)
        self._before = packed(around.ids[:inside])
        self._behind = packed(around.ids[inside + len(encoded(backend, "a")) // 4 :])
        self._guard = kind.cuts[0] if kind.guard_start and kind.cuts else ""
        """Put before what does not stand at the start, where that matters."""

    @property
    def has_short_pieces(self) -> bool:
        """Whether long texts between added tokens are cut too."""
        return self._safe_cut is not None

    def read(self, text: str, *, add_special_tokens: bool) -> Reading:
        """The ids of a text as they are needed; `add_special_tokens`: with those that the tokenizer puts
        around every text."""
        before, behind = (self._before, self._behind) if add_special_tokens else (b"", b"")
        num_read = 0
        if self._guard and self._cut is not None:
            first = next(_split(self._cut, text))
            num_read, before = len(first), before + encoded(self._backend, first)
        if len(text) - num_read <= self._piece_chars[1]:
            pieces = list(self._pieces(text[num_read:]))
            known = self._cache.known(pieces)
            if len(known) == len(pieces):  # mostly nothing is left to do
                return Reading(0, iter(()), self, (len(text), before + b"".join(known), behind))
            return Reading(len(text), iter(pieces), self, (num_read, before, behind))
        run = self._runs.known(text, num_read)
        num_read, before = num_read + run.num_chars, before + run.ids
        return Reading(len(text), self._runs.pieces(text, num_read), self, (num_read, before, behind))

    def known(self, pieces: Sequence[str]) -> list[bytes]:
        """The ids of the first of `pieces`, up to one that was not encoded before."""
        return self._cache.known(pieces)

    def encode(self, piece: str) -> bytes:
        """The ids of a piece, which are known from now on."""
        if self._words is not None:
            found = self._words.encode(piece)
        elif self._guard:
            found = encoded(self._backend, self._guard + piece)[4:]
        else:
            found = encoded(self._backend, piece)
        self._cache.put(piece, found)
        return found

    def _segments(self, text: str) -> Iterable[str]:
        """Added tokens and, between them, the text, in order; the first is text, if only an empty one."""
        if self._cut is None:
            return [text]
        return self._cut.split(text) if len(text) <= _SPLIT_CHARS else _split(self._cut, text)

    def _pieces(self, text: str) -> Iterator[str]:
        segments = self._segments(text)
        if isinstance(segments, list) and max(map(len, segments)) <= self._piece_chars[0]:
            return filter(None, segments)
        return self._cut_further(segments)

    def _cut_further(self, segments: Iterable[str]) -> Iterator[str]:
        first = self._piece_chars[0]
        for segment in segments:
            if len(segment) > first:
                yield from self._pieces_of(segment)
            elif segment:
                yield segment

    def _pieces_of(self, segment: str) -> Iterator[str]:
        size, longest = self._piece_chars
        at, end = 0, len(segment)
        while at < end:
            cut = self._next_cut(segment, at + size)
            yield segment[at:cut]
            at = cut
            size = min(2 * size, longest)

    def _next_cut(self, segment: str, begin: int) -> int:
        found = self._safe_cut.search(segment, begin) if self._safe_cut is not None else None
        return found.start() if found is not None else len(segment)


def _split(cut: re.Pattern[str], text: str) -> Iterator[str]:
    """As `cut.split`, with one group, as far as it is asked for."""
    at = 0
    for found in cut.finditer(text):
        yield text[at : found.start()]
        yield found[0]
        at = found.end()
    yield text[at:]


def exact_encoder(backend: Describing, cache_bytes: int) -> tuple[Encoder, str]:
    """The fastest encoder that is exact for a tokenizer, and why it does not cut at added tokens ("": it
    does). What the description promises is tried once: another release of the library may differ."""
    kind = kind_of(backend.to_str())
    encoder = Encoder(backend, kind, cache_bytes, (8, 64))
    text = "".join(f"{token}{part}{token} {part}" for token in kind.cuts[:3] for part in _SAMPLE)
    for sample in (text, "".join(_SAMPLE)):
        if encoder.read(sample, add_special_tokens=False).whole().tobytes() != encoded(backend, sample):
            kind = TokenizerKind(
                (), guard_start=False, words=None, note="its tokens depend on more than is known"
            )
            break
    return Encoder(backend, kind, cache_bytes), kind.note


def _size(piece: str, ids: bytes) -> int:
    return sys.getsizeof(piece) + len(ids) + _ENTRY_BYTES
