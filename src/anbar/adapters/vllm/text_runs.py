"""Neighbouring pieces of texts, kept together: a long conversation that was read before is found in a few
steps, not one for each of its pieces, and without cutting it up again.

A text is gone through in runs. A run is the pieces of the next `num_chars` characters, without the last ones:
those that would be others if the text went on otherwise. So a run is known by these characters, and where it
ends depends on nothing else. Between two runs the text may be cut like between two pieces.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_ENTRY_BYTES = 300
"""Of a dictionary's entry, a tuple, a number and the head of a bytes object."""


class Run(NamedTuple):
    """The beginning of a text: so many characters, and their ids."""

    num_chars: int
    ids: bytes


class TextRuns:
    """Runs of texts whose pieces were all known when they came again; the least recently used are dropped
    beyond `max_bytes`. Threads may share it."""

    def __init__(
        self,
        cut: Callable[[str], Iterator[str]],
        known: Callable[[Sequence[str]], list[bytes]],
        *,
        num_chars: int,
        num_behind: int,
        max_bytes: int,
    ) -> None:
        """`cut` gives the pieces of a text, and `known` the ids of pieces as far as they are known.
        `num_behind`: that many characters behind a piece decide where it ends."""
        self._cut = cut
        self._known_ids = known
        self._num_chars = num_chars
        self._num_behind = num_behind
        self._max_bytes = max_bytes
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self.num_bytes = 0
        """Of what is kept now, texts and ids."""

    def known(self, text: str, at: int) -> Run:
        """As much of what stands behind `at` as is known by runs."""
        start, found = at, []
        while len(text) - at > self._num_chars:
            begin = text[at : at + self._num_chars]
            run = self._find(begin) or self._learn(begin)
            if run is None:
                break
            found.append(run.ids)
            at += run.num_chars
        return Run(at - start, b"".join(found))

    def pieces(self, text: str, at: int) -> Iterator[str]:
        """The pieces of what stands behind `at`: where no run ends or was passed over."""
        while len(text) - at > self._num_chars:
            pieces = self._pieces_of_run(text[at : at + self._num_chars])
            if not pieces:
                break
            yield from pieces
            at += sum(map(len, pieces))
        yield from self._cut(text[at:])

    def _pieces_of_run(self, begin: str) -> list[str]:
        """None of them where a text that begins so cannot be cut early enough."""
        pieces, end = list(self._cut(begin)), len(begin)
        while pieces and end + self._num_behind > len(begin):
            end -= len(pieces.pop())
        return pieces

    def _find(self, begin: str) -> Run | None:
        with self._lock:
            run = self._runs.pop(begin, None)
            if run is not None:
                self._runs[begin] = run
            return run

    def _learn(self, begin: str) -> Run | None:
        """The run of a text that begins so, if all of its pieces are known; it is kept."""
        pieces = self._pieces_of_run(begin)
        ids = self._known_ids(pieces)
        if not pieces or len(ids) < len(pieces):
            return None
        run = Run(sum(map(len, pieces)), b"".join(ids))
        with self._lock:
            if begin not in self._runs:
                self._runs[begin] = run
                self.num_bytes += _size(begin, run)
            while self.num_bytes > self._max_bytes:
                oldest = next(iter(self._runs))
                self.num_bytes -= _size(oldest, self._runs.pop(oldest))
        return run


def _size(begin: str, run: Run) -> int:
    return sys.getsizeof(begin) + len(run.ids) + _ENTRY_BYTES
