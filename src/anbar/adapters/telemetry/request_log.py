"""The log: one JSON object per line, one line per request, and one per change worth knowing of."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from anbar.core.outcome import (
    AttemptFailed,
    BreakerChanged,
    EngineStateChanged,
    Event,
    KvStreamGap,
    KvStreamRestarted,
    LoadCorrected,
    PrefillEnded,
    RequestFinished,
    RequestMalformed,
    RetryRefused,
    SupervisorCaught,
    TokensCompared,
    TrustChanged,
)

_encode = msgspec.json.Encoder().encode
KINDS: dict[type[Event], str] = {
    RequestFinished: "request",
    RequestMalformed: "malformed",
    AttemptFailed: "attempt_failed",
    PrefillEnded: "prefill",
    RetryRefused: "retry_refused",
    BreakerChanged: "breaker",
    EngineStateChanged: "engine",
    KvStreamGap: "kv_gap",
    KvStreamRestarted: "kv_restart",
    TrustChanged: "trust",
    TokensCompared: "tokens",
    LoadCorrected: "load_corrected",
    SupervisorCaught: "defect",
}
LINES = {
    "listening": "The router takes requests now: `host`, `port`, `policy`.",
    "drained": "It has stopped taking them, and what ran is over: `cut`, how many answers were not.",
    "config_applied": "A changed configuration is in force: `generation`, the keys `applied`, and those that "
    "`needs_restart` names.",
    "config_unchanged": "One was read that changes nothing, or nothing before a restart; the same fields.",
    "config_refused": "One is bad, and the one before goes on: `reason`, with file, line, key and what is "
    "allowed.",
    "discovery": "Engines of an entry with `discover` have `joined` or `left`: `entry`, and how many it has "
    "now, `engines`.",
    "discovery_fails": "Its source cannot be read: `entry`, `failure`, `reason`. Once for each reason.",
    "discovery_partial": "Some of what it lists cannot be told: `entry`, `reason`.",
    "discovery_works": "It can be read again: `entry`.",
    "discovery_duplicates": "Engines of the `entry` that another entry has: `duplicates`.",
    "peer_failed": "Another router cannot be followed: `peer`, `error`. Once for each reason.",
    "record_failing": "The block log cannot be written: `error`. Said once.",
    "record_works": "It can be written again.",
    "tenant_keys_failing": "Files of `<state_dir>/keys` cannot be used: `error`. Said once; salts stay what "
    "they were, so a purge has no effect here.",
    "tenant_keys_work": "They can be used again.",
    "worker_ended": "A worker has ended: its `place`, exit `code`, `again_in_s`.",
    "worker_not_started": "One could not be started, and will be tried again: `place`, `error`.",
}
"""What is told that is no event: by kind, with its fields."""


class LineSink(Protocol):
    """What lines are written to: an open file in binary mode."""

    def write(self, data: bytes, /) -> int | None: ...

    def flush(self) -> None: ...


Later = Callable[[Callable[[], None]], object]
"""Calls what it is given, soon or at once."""


class EventLog:
    """Writes events to `sink`. A sink that fails is counted and not asked again for those lines: a full disk
    must not stop the router. `wall_s` gives seconds since 1970.

    A write of its own for each line would cost as much as all the rest of telemetry: lines are gathered until
    `later` calls `flush`, by default at once. Whoever gives another `later` flushes in the end.
    """

    def __init__(
        self, sink: LineSink, wall_s: Callable[[], float], later: Later = lambda flush: flush()
    ) -> None:
        self._sink = sink
        self._wall_s = wall_s
        self._later = later
        self._lines: list[bytes] = []
        self.generation = 1
        """Of the configuration that is in force; stands in every line as `config`."""
        self.about = b""
        """More members of every line, each with its comma: which of several workers writes it."""
        self._second = -1
        self._utc = b""
        self.num_lost = 0

    def on(self, event: Event) -> None:
        """Write the line of one event."""
        self._write(KINDS[type(event)], _encode(event))

    def line(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write a line that is no event's, of a kind that `LINES` describes."""
        self._write(kind, _encode(fields))

    def _write(self, kind: str, fields: bytes) -> None:
        comma = b"," if len(fields) > 2 else b""
        now_s = self._wall_s()
        head = (self._at(now_s), now_s, self.generation, self.about, kind.encode(), comma, fields[1:])
        line = b'{"at":"%bZ","ts":%.3f,"config":%d%b,"event":"%b"%b%b\n' % head
        self._lines.append(line)
        if len(self._lines) == 1:
            self._later(self.flush)

    def _at(self, now_s: float) -> bytes:
        """UTC to the millisecond. The part up to the second is made once a second: it costs more than all the
        rest of the line."""
        second, millis = divmod(round(now_s * 1e3), 1000)
        if second != self._second:
            self._second = second
            self._utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        return b"%b.%03d" % (self._utc, millis)

    def flush(self) -> None:
        """Write what was gathered."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            self._sink.write(b"".join(lines))
            self._sink.flush()
        except (OSError, ValueError):
            self.num_lost += len(lines)
