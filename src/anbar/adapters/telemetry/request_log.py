"""The log: one JSON object per line, one line per request, and one per change worth knowing of."""

from collections.abc import Callable
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
        fields: dict[str, object] = msgspec.to_builtins(event, enc_hook=repr)
        self.line(_KINDS[type(event)], fields)

    def line(self, kind: str, fields: dict[str, object]) -> None:
        """Write one line: time, kind, and the fields that say something; seconds to the microsecond."""
        line: dict[str, object] = {"ts": round(self._wall_s(), 3), "event": kind}
        for name, value in fields.items():
            if isinstance(value, float):
                line[name] = round(value, 6)
            elif value not in ("", None):
                line[name] = value
        try:
            self._sink.write(_encode(line) + b"\n")
            self._sink.flush()
        except (OSError, ValueError):
            self.num_lost += 1
