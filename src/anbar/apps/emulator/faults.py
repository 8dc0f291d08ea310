"""How an emulated engine can misbehave, as values, and the box of those that are armed."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from anbar.apps.emulator.bounds import DAY_S, MANY, hold


class FaultKind(Enum):
    """What happens to a request."""

    HANG = "hang"
    """Accept it and do not answer until /emulator/clear."""
    HANG_MID_STREAM = "hang_mid_stream"
    """Stop after `after_events` SSE events, the connection open."""
    SLOW = "slow"
    """Wait `delay_s` before the answer."""
    DRIP = "drip"
    """Send the answer and its head in pieces of `drip_bytes`, `delay_s` apart (0: as separate writes)."""
    STATUS = "status"
    """Answer with `status` (4xx, 429 with `retry_after_s`, 5xx) in vLLM's error shape."""
    RESET = "reset"
    """Reset the connection (RST) before the first byte."""
    CLOSE = "close"
    """Close the connection before the first byte, as a killed process does."""
    RESET_MID_STREAM = "reset_mid_stream"
    """Reset after `after_events` SSE events."""
    TRUNCATE = "truncate"
    """Close in the middle of the SSE event that follows `after_events`."""
    ERROR_MID_STREAM = "error_mid_stream"
    """An error event and [DONE] after `after_events`, as vLLM does when generation fails."""


class Scope(Enum):
    """Which requests a fault meets."""

    GENERATE = "generate"
    """Generation and embeddings."""
    ALL = "all"
    """Everything but /emulator/..., health checks included."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault for the next `count` requests of its scope (0: until cleared)."""

    kind: FaultKind
    count: int = 1
    scope: Scope = Scope.GENERATE
    after_events: int = 2
    delay_s: float = 0.0
    drip_bytes: int = 1
    status: int = 500
    message: str = "injected fault"
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        hold(
            self,
            count=(0, MANY),
            after_events=(0, MANY),
            delay_s=(0, DAY_S),
            drip_bytes=(1, MANY),
            status=(400, 599),
            retry_after_s=(0, DAY_S),
        )


@dataclass(frozen=True, slots=True)
class Script:
    """Exact bytes for the next generation request: `chunks` are the writes of the body.

    `headers` are all of the answer's but those of framing: chunked when `chunked`, else a content-length.
    """

    chunks: tuple[bytes, ...]
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
    chunked: bool = False


class FaultBox:
    """The faults that are armed, in the order in which they were."""

    def __init__(self) -> None:
        self._armed: list[tuple[Fault, int]] = []
        self._hung: dict[object, Callable[[], None]] = {}
        self.num_clears = 0
        self.scripts: deque[Script] = deque()

    def arm(self, fault: Fault) -> None:
        """Apply `fault` from the next request on."""
        self._armed.append((fault, fault.count))

    def clear(self) -> None:
        """Disarm everything; requests that hang go on, as after SIGCONT."""
        self.num_clears += 1
        self._armed.clear()
        self.scripts.clear()
        hung, self._hung = self._hung, {}
        for go_on in hung.values():
            go_on()

    def hang(self, who: object, go_on: Callable[[], None], num_clears: int) -> None:
        """Call `go_on` when the fault is cleared: at once, if that was done since there were `num_clears`."""
        if num_clears != self.num_clears:
            go_on()
        else:
            self._hung[who] = go_on

    def forget(self, who: object) -> None:
        """It does not go on: its client has left."""
        self._hung.pop(who, None)

    def forget_hung(self) -> None:
        """Nobody that hangs goes on: their connections are gone."""
        self._hung.clear()

    def take(self, *, generating: bool) -> Fault | None:
        """The fault for this request, counted."""
        for index, (fault, left) in enumerate(self._armed):
            if fault.scope is Scope.ALL or generating:
                if left == 1:
                    del self._armed[index]
                elif left > 1:
                    self._armed[index] = (fault, left - 1)
                return fault
        return None
