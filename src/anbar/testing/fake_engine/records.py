"""What a fake engine saw: the evidence of black-box tests."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from anbar.testing.fake_engine.http import Header, HttpRequest


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

    method: str
    target: str
    headers: list[Header]
    body: bytes
    ending: Ending = Ending.RUNNING
    num_cached_tokens: int | None = None
    num_generated: int = 0

    @property
    def header_names(self) -> set[str]:
        return {name.decode("latin-1").lower() for name, _ in self.headers}

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        wanted = name.lower().encode()
        return next((v.decode("latin-1") for k, v in self.headers if k.lower() == wanted), None)


class Records:
    """The last `limit` generation requests, and a count of all others by path."""

    def __init__(self, limit: int = 10_000) -> None:
        self.seen: deque[Seen] = deque(maxlen=limit)
        self.others: dict[str, int] = {}

    @property
    def num_open(self) -> int:
        """Generation requests that have not ended."""
        return sum(1 for seen in self.seen if seen.ending is Ending.RUNNING)

    def count(self, ending: Ending) -> int:
        """Generation requests that ended so."""
        return sum(1 for seen in self.seen if seen.ending is ending)

    def clear(self) -> None:
        """Forget everything."""
        self.seen.clear()
        self.others.clear()

    @contextmanager
    def track(self, request: HttpRequest) -> Iterator[Seen]:
        """Record a request from here on; one that ends without a word was cancelled."""
        seen = Seen(request.method, request.target, request.headers, request.body)
        self.seen.append(seen)
        try:
            yield seen
        finally:
            if seen.ending is Ending.RUNNING:
                seen.ending = Ending.CANCELLED
