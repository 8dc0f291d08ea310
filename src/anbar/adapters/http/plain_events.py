"""The events of a stream that need no look: those that differ from an earlier one in their text alone.

An engine sends a token after the other in events that are alike but for the text, so a look at both ends of
one tells what it is: no usage, no tool call, no end, nothing but so much text.
"""

import re
import sys

MAX_LOOKS = 8
"""Events of a stream that are looked at to learn from. Where not even these are alike, as with
log-probabilities, none will be."""

_END = b"\n\n"
_TEXT = re.compile(rb'"(?:text|content)":("(?:[^"\\]|\\.)*")')
_NOT_PLAIN = re.compile(
    rb'\r|"usage"|"(?:reasoning|reasoning_content)":"|"tool_calls":\[\{|"finish_reason":"|"error":'
)
"""What makes an event more than text, and line ends that are not looked for here."""


class PlainEvents:
    """What stands before and behind the text in the events of one stream."""

    __slots__ = ("_begin", "_end", "_from", "_num_bytes", "_num_looks", "_to")

    def __init__(self) -> None:
        self._num_looks = 0
        self._num_bytes = sys.maxsize
        """Of the shortest that there may be: none, until one was learned."""
        self._begin = self._end = b""
        self._from = self._to = 0

    def text(self, data: bytes) -> bytes | None:
        """The text, a JSON string, of `data` if that is one event like the one that was learned; else None.
        What stands between two events must be known to end before `data`."""
        if not (data.startswith(self._begin) and data.endswith(self._end)) or len(data) < self._num_bytes:
            return None
        text = data[self._from : self._to]
        # A quote inside would have to be escaped, and so would the last one be by a backslash.
        if text.find(b'"', 1) != len(text) - 1 or text.endswith(b'\\"'):
            return None
        return text

    def learn(self, data: bytes) -> None:
        """The stream has gone on with `data`, of which nothing is known."""
        if self._num_looks >= MAX_LOOKS or data.find(_END) != len(data) - len(_END):
            return
        self._num_looks += 1
        texts = list(_TEXT.finditer(data))
        if len(texts) != 1 or _NOT_PLAIN.search(data):
            return
        start, end = texts[0].span(1)
        if not data.startswith(b"data: {") or data[end : end + 1] not in (b",", b"}"):
            return
        self._begin, self._end = data[: start + 1], data[end - 1 :]
        self._from, self._to = start, end - len(data)
        self._num_bytes = len(self._begin) + len(self._end)
