"""Whether a batch of KV events is the next one, a repetition, behind a gap, or from another life. Pure."""

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

    def reset(self) -> None:
        """Begin anew: nothing is known, number 0 is expected."""
        self._fingerprints.clear()
        self.next = 0
