"""The text of a stream so far, for the case that another engine must go on with it; and how what that engine
sends becomes the rest of the same stream."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_TEXT_BYTES = 1024**2
"""Longer texts are not kept, and not gone on with."""

MAX_UNREAD_BYTES = 16 * 1024
"""Bytes of a stream that are put aside before they are looked at: some 80 events."""

_END = b"\n\n"
_DATA = b"data: "
_DONE = b"data: [DONE]\n\n"
_TEXT = re.compile(rb'"(?:text|content)":("[^"\\]*+(?:\\.[^"\\]*+)*+")')
_BEYOND_TEXT = re.compile(
    rb'"(?:reasoning|reasoning_content)":"|"tool_calls":\[\{|"finish_reason":"|"error":'
)
"""What cannot be gone on with, or needs not be: it has ended."""

_decode = msgspec.json.decode
_encode = msgspec.json.encode


class Transcript:
    """Takes in the bytes of a stream as the client gets them. They are looked at when somebody wants the
    text, which is hardly ever, or when too many were put aside."""

    __slots__ = ("_is_lost", "_num_bytes", "_num_unread", "_parts", "_unread", "first")

    def __init__(self) -> None:
        self._unread: list[bytes] = []
        """What was not looked at yet; it may end in the middle of an event."""
        self._num_unread = 0
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._is_lost = False
        self.first: bytes = b""
        """The first event: it names the answer. Good once `text` was asked for."""

    def add(self, data: bytes) -> None:
        """The next bytes."""
        if self._is_lost:
            return
        self._unread.append(data)
        self._num_unread += len(data)
        if self._num_unread > MAX_UNREAD_BYTES:
            self._read()

    def add_text(self, text: bytes) -> None:
        """The next event is whole, and nothing but text: this one, a JSON string."""
        if self._unread:
            self._read()
        if self._is_lost:
            return
        self._parts.append(text)
        self._num_bytes += len(text)
        if self._num_bytes > MAX_TEXT_BYTES:
            self._lose()

    def _read(self) -> None:
        """Look at what was put aside, as far as its events have ended."""
        data = b"".join(self._unread)
        end = data.rfind(_END) + len(_END)
        if end < len(_END):
            end = 0
        rest, data = data[end:], data[:end]
        self._unread = [rest] if rest else []
        self._num_unread = len(rest)
        if not self.first:
            self.first = data[: data.find(_END)]
        texts = _TEXT.findall(data)
        self._parts += texts
        self._num_bytes += sum(map(len, texts))
        if self._num_bytes + len(rest) > MAX_TEXT_BYTES or _BEYOND_TEXT.search(data):
            self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        self._parts.clear()
        self._unread.clear()

    def text(self) -> str | None:
        """What the client has read; None when the stream cannot be gone on with."""
        if self._unread:
            self._read()
        if self._is_lost or self._unread or not self.first.startswith(_DATA):
            return None
        try:
            return "".join([_decode(part) for part in self._parts])
        except msgspec.DecodeError:
            return None


class Splicer:
    """Makes the stream of a completion the rest of an earlier stream: its events get that one's id, time and
    shape, its usage counts what had been generated before. Used in place of a usage filter."""

    def __init__(self, first: bytes, *, num_before: int, wants_usage: bool) -> None:
        """`first` is the earlier stream's first event, `num_before` the number of its tokens. Raises
        msgspec.DecodeError when that is no JSON."""
        self._named: dict[str, Any] = _decode(first.removeprefix(_DATA), type=dict[str, Any])
        self._is_chat = self._named.get("object") == "chat.completion.chunk"
        self._num_before = num_before
        self._wants_usage = wants_usage
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        """What of the earlier stream's rest may be sent now."""
        *events, self.held = (self.held + data).split(_END)
        return b"".join([self._event(event + _END) for event in events])

    @property
    def is_between(self) -> bool:
        """Never: each event becomes another one."""
        return False

    def end(self) -> bytes:
        """Nothing is left at the end of a whole stream."""
        return b""

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(_DATA) or event == _DONE:
            return event
        chunk = _decode(event[len(_DATA) :], type=dict[str, Any])
        if "choices" not in chunk:
            return event
        chunk |= {name: self._named[name] for name in ("id", "object", "created") if name in self._named}
        if isinstance(chunk.get("usage"), Mapping):
            if not self._wants_usage:
                return b""
            self._count(chunk["usage"])
        if self._is_chat:
            chunk["choices"] = [_as_delta(choice) for choice in chunk["choices"]]
        return _DATA + _encode(chunk) + _END

    def _count(self, usage: dict[str, Any]) -> None:
        """The tokens before were this engine's prompt, and are the answer's."""
        usage["prompt_tokens"] -= self._num_before
        usage["completion_tokens"] += self._num_before
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            details["cached_tokens"] = min(details["cached_tokens"], usage["prompt_tokens"])


def _as_delta(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A completion's choice as a chat's."""
    rest = {name: value for name, value in choice.items() if name not in ("text", "prompt_token_ids")}
    if rest.get("finish_reason") is None:
        rest.pop("stop_reason", None)
    return {"index": rest.pop("index", 0), "delta": {"content": choice.get("text", "")}, **rest}
