"""The log: one JSON object per line, one line per request, and one per change worth knowing of."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from anbar.core.outcome import (
    AttemptFailed,
    EngineStateChanged,
    Event,
    KvStreamGap,
    KvStreamRestarted,
    RequestFinished,
    RequestMalformed,
    SupervisorCaught,
)

_encode = msgspec.json.Encoder().encode
_KINDS: dict[type[Event], str] = {
    RequestFinished: "request",
    RequestMalformed: "malformed",
    AttemptFailed: "attempt_failed",
    EngineStateChanged: "engine",
    KvStreamGap: "kv_gap",
    KvStreamRestarted: "kv_restart",
    SupervisorCaught: "defect",
}


class LineSink(Protocol):
    """What lines are written to: an open file in binary mode."""

    def write(self, data: bytes, /) -> int | None: ...

    def flush(self) -> None: ...


class EventLog:
    """Writes events to `sink`. A sink that fails is counted and not asked again for that line: a full disk
    must not stop the router. `wall_s` gives seconds since 1970."""

    def __init__(self, sink: LineSink, wall_s: Callable[[], float]) -> None:
        self._sink = sink
        self._wall_s = wall_s
        self.num_lost = 0

    def on(self, event: Event) -> None:
        """Write the line of one event."""
        self._write(_KINDS[type(event)], _encode(event))

    def line(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write a line that is no event's."""
        self._write(kind, _encode(fields))

    def _write(self, kind: str, fields: bytes) -> None:
        comma = b"," if len(fields) > 2 else b""
        head = b'{"ts":%.3f,"event":"%b"' % (self._wall_s(), kind.encode())
        try:
            self._sink.write(b"".join((head, comma, fields[1:], b"\n")))
            self._sink.flush()
        except (OSError, ValueError):
            self.num_lost += 1
