"""Text to token ids, piece by piece: as much as is asked for, and each piece of a text only once.

A text is cut at added tokens, and what lies between is cut further where it is long, both only where
`anbar.adapters.vllm.tokenizer_kind` knows that nothing changes by it. The cuts of a piece depend only on what
stands before them, so that a conversation with one turn more, or a document with a new end, has the same
pieces but for the last. Ids are kept by the piece's whole text: no two pieces can be mistaken for each other.
"""

import re
import sys
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from anbar.adapters.vllm.reading import Part, Reading
from anbar.adapters.vllm.tokenizer_kind import TokenizerKind, kind_of
from anbar.adapters.vllm.word_cache import SAFE_CUT, Backend, WordCache, encoded, packed

PIECE_CHARS = 512, 4096
"""Of the first piece between two added tokens, and of the longest; each is twice as long as the one before.
The first has some 100 tokens, a few blocks: enough to tell whether an engine knows the text at all."""
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

    def get(self, piece: str) -> bytes | None:
        """The ids of a piece, if they are known; it counts as used."""
        with self._lock:
            found = self._ids.pop(piece, None)
            if found is not None:
                self._ids[piece] = found
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
        self._cache = PieceCache(cache_bytes)
        self._words = WordCache(backend, kind.words) if kind.words is not None else None
        self._safe_cut = SAFE_CUT[kind.words] if kind.words is not None else None
        self._cut = re.compile("|".join(map(re.escape, kind.cuts))) if kind.cuts else None
        self._cut_ids = {text: encoded(backend, text) for text in kind.cuts}
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
        parts = self._parts(text)
        if add_special_tokens:
            parts = chain((("", self._before),), parts, (("", self._behind),))
        return Reading(len(text), parts, self)

    def known(self, piece: str) -> bytes | None:
        """The ids of a piece that was encoded before."""
        return self._cache.get(piece)

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

    def _parts(self, text: str) -> Iterator[Part]:
        """The pieces of a text in order."""
        at = 0
        if self._cut is not None:
            for cut in self._cut.finditer(text):
                yield from self._pieces(text, at, cut.start())
                yield cut[0], self._cut_ids[cut[0]]
                at = cut.end()
        yield from self._pieces(text, at, len(text))

    def _pieces(self, text: str, at: int, end: int) -> Iterator[Part]:
        size, longest = self._piece_chars
        while at < end:
            cut = self._next_cut(text, at + size, end)
            piece = text[at:cut]
            yield piece, encoded(self._backend, piece) if self._guard and at == 0 else None
            at = cut
            size = min(2 * size, longest)

    def _next_cut(self, text: str, begin: int, end: int) -> int:
        if self._safe_cut is None or begin >= end:
            return end
        found = self._safe_cut.search(text, begin, end)
        return end if found is None else found.start()


def exact_encoder(backend: Describing, cache_bytes: int) -> tuple[Encoder, str]:
    """The fastest encoder that is exact for a tokenizer, and why it does not cut at added tokens ("": it
    does). What the description promises is tried once: another release of the library may differ."""
    kind = kind_of(backend.to_str())
    encoder = Encoder(backend, kind, cache_bytes, (8, 16))
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
