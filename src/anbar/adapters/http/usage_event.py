"""Asking an engine for the usage of a stream whose client did not ask, and taking that one event out again.

vLLM 0.32 (`entrypoints/openai/{chat_completion,completion}/serving.py`) sends it once, behind the last
token and before `data: [DONE]`: `data: {…,"choices":[],"usage":{…}}`. With `continuous_usage_stats` each
event has a usage of its own, with choices. A server started with `--enable-force-include-usage` shows
both to everybody: they are its operator's wish, and stay."""

import re
from collections.abc import Mapping

import msgspec

from anbar.adapters.http.rewrite import member_span, with_member, with_new_member

MAX_EVENT_BYTES = 16 * 1024
"""What is longer is no usage event: those have some 400 bytes."""

_OPTIONS = "stream_options"
_ASKING = b'{"include_usage":true}'
_USAGE = b'"usage"'
_EVENT_END = b"\n\n"
_END = re.compile(rb"\r\n\r\n|\n\n")
_END_BYTES = 4
_DATA = b"data:"
_HAS_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*[^\s\]]')
_NO_OBJECT = re.compile(rb"data:[ \t]*[^\s{]")


class _Event(msgspec.Struct):
    """The members of an event that tell what it is."""

    choices: list[msgspec.Raw] | None = None
    usage: dict[str, msgspec.Raw] | None = None


_decode = msgspec.json.Decoder(_Event).decode


def asking_for_usage(body: bytes, parsed: Mapping[str, object]) -> bytes:
    """The body of a streaming request, which is `parsed` as JSON, made to ask for usage at the end. What it
    asked for in every event it does not get, as without `include_usage` it would not."""
    if _OPTIONS not in parsed:
        return with_new_member(body, _OPTIONS, _ASKING)
    options, span = parsed[_OPTIONS], member_span(body, _OPTIONS)
    assert span is not None, "it was parsed"
    start, end = span
    if not isinstance(options, Mapping):
        return b"".join((body[:start], _ASKING, body[end:]))
    edited = with_member(body[start:end], "include_usage", b"true")
    if options.get("continuous_usage_stats"):
        edited = with_member(edited, "continuous_usage_stats", b"false")
    return b"".join((body[:start], edited, body[end:]))


class UsageFilter:
    """Passes a stream's bytes on, all but the one usage event, wherever they are cut.

    Held back is only what may be the beginning of that event: an event that has begun, for as long as no
    choice was seen in it. A stream that breaks off leaves in `held` what no client could have read as an
    event."""

    __slots__ = ("_inside", "_is_over", "_seam", "held")

    def __init__(self) -> None:
        self.held = b""
        """The beginning of an event, not passed on yet."""
        self._inside = False
        """In the middle of an event that is passed on; its end may begin in `_seam`, its last bytes."""
        self._seam = b""
        self._is_over = False
        """Nothing more is looked for."""

    @property
    def is_between(self) -> bool:
        """Whether all events that have begun have ended."""
        return not self._inside and not self.held

    def feed(self, data: bytes) -> bytes:
        """What of the stream may be passed on now; possibly nothing."""
        if self._is_over:
            return data
        if not self._inside and not self.held and _USAGE not in data and data.endswith(_EVENT_END):
            return data  # whole events, none of them with a usage: nearly always
        return self._kept(data)

    def end(self) -> bytes:
        """What is left at the end of a stream."""
        held, self.held = self.held, b""
        return held

    def _kept(self, data: bytes) -> bytes:
        data = self.held + data
        self.held = b""
        at = self._passed(data)
        while (at := _next(data, at)) < len(data) and not self._is_over:
            end = _END.search(data, at)
            if end is None:
                return data[:at] + self._begun(data[at:])
            event = data[at : end.end()]
            if _USAGE in event and self._is_the_one(event):
                return data[:at] + data[end.end() :]
            at = end.end()
        return data

    def _passed(self, data: bytes) -> int:
        """Where the event ends that is being passed on, or all of `data`."""
        if not self._inside:
            return 0
        seam = self._seam
        end = _END.search(seam + data)
        self._inside = end is None
        self._seam = (seam + data)[1 - _END_BYTES :]
        return len(data) if end is None else end.end() - len(seam)

    def _begun(self, event: bytes) -> bytes:
        """What to pass on of an event that is not complete."""
        if _may_be_usage(event):
            self.held = event
            return b""
        self._inside = True
        self._seam = event[1 - _END_BYTES :]
        return event

    def _is_the_one(self, event: bytes) -> bool:
        """Whether it is the usage event. There is one; and none to take out where events with choices have a
        usage too, which was not asked for."""
        try:
            found = _decode(event[len(_DATA) :]) if event.startswith(_DATA) else _Event()
        except msgspec.DecodeError:
            return False
        self._is_over = found.usage is not None and found.choices is not None
        return self._is_over and not found.choices


def _next(data: bytes, at: int) -> int:
    """Where the first event begins, of those from `at` on, that has a usage in it or has not ended. Where
    line ends of another kind or more empty lines make that hard to tell: `at`."""
    usage = data.find(_USAGE, at)
    before = data.rfind(_EVENT_END, at, usage if usage >= 0 else len(data))
    if before < 0 or b"\r" in data or (before > at and data[before - 1 : before] == b"\n"):
        return at
    return before + len(_EVENT_END)


def _may_be_usage(event: bytes) -> bool:
    """Whether an event that begins like this may be the one with the usage."""
    if len(event) < len(_DATA):
        return _DATA.startswith(event)
    return (
        event.startswith(_DATA)
        and len(event) <= MAX_EVENT_BYTES
        and _NO_OBJECT.match(event) is None
        and _HAS_CHOICES.search(event) is None
    )
