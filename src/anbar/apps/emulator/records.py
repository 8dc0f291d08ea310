"""What an emulated engine saw: the evidence of black-box tests."""

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum

from anbar.adapters.http.message import Request

_NUM_SEEN = 512
"""Whole requests that are kept: bodies of 32 KB are 16 MB."""


class Ending(Enum):
    """How a request ended, or that it has not."""

    RUNNING = "running"
    ANSWERED = "answered"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAULT = "fault"


@dataclass(slots=True)
class Seen:
    """One generation request: exactly as it came, and what became of it."""

    request: Request
    records: "Records"
    ending: Ending = Ending.RUNNING
    num_cached_tokens: int | None = None
    num_generated: int = 0

    @property
    def body(self) -> bytes:
        return self.request.body

    @property
    def target(self) -> str:
        return self.request.target.decode("latin-1")

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return self.request.headers

    @property
    def header_names(self) -> set[str]:
        return {name.decode("latin-1") for name, _ in self.request.headers}

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        value = self.request.header(name.lower().encode())
        return value.decode("latin-1") if value is not None else None

    def end(self, ending: Ending) -> None:
        """The first end counts."""
        if self.ending is Ending.RUNNING:
            self.ending = ending
            self.records.ended(ending)


@dataclass(slots=True)
class Records:
    """The last generation requests, how all of them ended, and a count of all others by path."""

    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=_NUM_SEEN))
    others: Counter[str] = field(default_factory=Counter)
    num_open: int = 0
    """Generation requests that have not ended, also those that were forgotten."""
    _endings: Counter[Ending] = field(default_factory=Counter)

    def count(self, ending: Ending) -> int:
        """Generation requests that ended so."""
        return self.num_open if ending is Ending.RUNNING else self._endings[ending]

    def ended(self, ending: Ending) -> None:
        """One ended."""
        self.num_open -= 1
        self._endings[ending] += 1

    def open(self, request: Request) -> Seen:
        """Record a request from here on."""
        seen = Seen(request, self)
        self.seen.append(seen)
        self.num_open += 1
        return seen

    def clear(self) -> None:
        """Forget everything."""
        self.seen.clear()
        self.others.clear()
        self._endings.clear()
