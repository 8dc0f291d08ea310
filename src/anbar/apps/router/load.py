"""What an engine is busy with, counted so that no path can leak: a request holds its share in a `with`."""

from types import TracebackType


class EngineLoad:
    """Requests that were sent to one engine and are not over."""

    __slots__ = ("num_decoding", "num_in_flight", "queued_prefill_tokens")

    def __init__(self) -> None:
        self.num_in_flight = 0
        self.queued_prefill_tokens = 0
        """Prompt tokens of requests without a first byte, less what is predicted to come from a cache."""
        self.num_decoding = 0
        """Requests past their first byte."""

    def hold(self, num_uncached_tokens: int) -> "Share":
        """Use as `with load.hold(n) as share:` around one try of one request."""
        return Share(self, num_uncached_tokens)


class Share:
    """One request's part of an engine's load."""

    __slots__ = ("_decoding", "_load", "_queued")

    def __init__(self, load: EngineLoad, num_uncached_tokens: int) -> None:
        self._load = load
        self._queued = num_uncached_tokens
        self._decoding = False

    def __enter__(self) -> "Share":
        self._load.num_in_flight += 1
        self._load.queued_prefill_tokens += self._queued
        return self

    def first_byte(self) -> None:
        """The prefill is over."""
        self._load.queued_prefill_tokens -= self._queued
        self._queued = 0
        self._load.num_decoding += 1
        self._decoding = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._load.num_in_flight -= 1
        self._load.queued_prefill_tokens -= self._queued
        self._load.num_decoding -= self._decoding
