"""Whether a batch of KV events is the next one, a repetition, behind a gap, or from another life. Pure."""

from dataclasses import dataclass
from enum import Enum

import xxhash

from anbar.adapters.vllm.kv_wire import Message


class Verdict(Enum):
    """What a message is, given those accepted before it."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    """Accepted before, byte for byte."""
    GAP = "gap"
    """Batches between it and the last accepted one are missing."""
    RESTART = "restart"
    """Its number was used before for other bytes: the publisher began anew."""
    STALE = "stale"
    """From before the oldest batch that is remembered: nothing can be told of it, and it is of no use."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a stream was followed, for someone who goes on from there."""

    seq: int
    """The number of the last batch that was accepted."""

    fingerprint: int
    """Of its bytes, by which a new life of the engine is told from this one."""

    partial: bool
    """Batches before it are missing, and nothing has made up for them."""


class SequenceLog:
    """Remembers the fingerprints of the last accepted batches, to tell repetitions from a new life."""

    WINDOW = 16_384
    """Fingerprints kept: more than vLLM's replay buffer (10,000 batches) and our receive queue together
    can repeat. About 1.5 MB."""

    def __init__(self) -> None:
        self._fingerprints: dict[int, int] = {}
        self.next = 0
        """The number expected next: 0 until a batch was accepted."""

    def judge(self, message: Message) -> Verdict:
        """What `message` is; changes nothing."""
        if message.seq == self.next:
            return Verdict.NEXT
        if message.seq > self.next:
            return Verdict.GAP
        known = self._fingerprints.get(message.seq)
        if known is None:
            return Verdict.STALE
        same = known == xxhash.xxh3_64_intdigest(message.payload)
        return Verdict.DUPLICATE if same else Verdict.RESTART

    def accept(self, message: Message) -> None:
        """Take `message` as the newest, whatever is missing before it."""
        self._fingerprints[message.seq] = xxhash.xxh3_64_intdigest(message.payload)
        self.next = message.seq + 1
        if len(self._fingerprints) > self.WINDOW:
            del self._fingerprints[next(iter(self._fingerprints))]

    def last(self) -> tuple[int, int] | None:
        """Number and fingerprint of the newest accepted batch; None if there is none."""
        return (self.next - 1, self._fingerprints[self.next - 1]) if self.next else None

    def resume(self, seq: int, fingerprint: int) -> None:
        """Go on behind a batch that another log has accepted."""
        self._fingerprints = {seq: fingerprint}
        self.next = seq + 1

    def reset(self) -> None:
        """Begin anew: nothing is known, number 0 is expected."""
        self._fingerprints.clear()
        self.next = 0
