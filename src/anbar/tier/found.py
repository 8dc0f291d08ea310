"""The run of chunks that a request has found in the store so far, and what was decided about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from anbar.tier.admission import Decision, Run

GROUP_BYTES = 4
"""A key ends with the number of its layers' cache, big-endian (vLLM's `OffloadKey`)."""


@dataclass(slots=True)
class FoundRun:
    """Chunks in the order in which the scheduler asks for them, which is that of the prompt. Only those of
    the cache that is asked for first count: the others follow it. Where the order is another (layers with a
    sliding window are asked for from the end) nothing is weighed."""

    decision: Decision | None = None
    places: dict[bytes, int] = field(default_factory=dict)
    length: int = 0
    """Of the leading keys, so many are there."""
    step: int = 0
    """In which a key was asked for that had not been before."""
    _group: bytes = b""
    _keys: list[bytes] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _weighed: int = -1
    """`length` when it last did not pay."""

    def place(self, key: bytes, end_token: int, step: int) -> None:
        """A key is asked for in a step; it and those before it stand for so many tokens of the prompt."""
        if key in self.places or self.decision is not None:
            return
        if not self._keys:
            self._group = key[-GROUP_BYTES:]
        elif not key.endswith(self._group):
            return
        if self._ends and end_token <= self._ends[-1]:
            self.decision = Decision.UNWEIGHED
            return
        self.step = step
        self.places[key] = len(self._keys)
        self._keys.append(key)
        self._ends.append(end_token)

    def extend(self, there: Mapping[bytes, object], hit: object) -> bytes | None:
        """Take in what is known meanwhile. The key that ends the run; None: it is the last that was asked."""
        while self.length < len(self._keys) and there.get(self._keys[self.length]) is hit:
            self.length += 1
        return self._keys[self.length] if self.length < len(self._keys) else None

    def is_new(self) -> bool:
        """Whether the run has grown since the last call."""
        before, self._weighed = self._weighed, self.length
        return before != self.length

    def run(self, chunk_tokens: int) -> Run:
        """Not of an empty one."""
        return Run(max(0, self._ends[0] - chunk_tokens), self._ends[self.length - 1], self.length)
