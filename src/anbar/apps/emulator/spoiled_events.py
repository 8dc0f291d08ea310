"""KV events that go missing, come twice or out of order, on demand."""

from collections.abc import Sequence
from dataclasses import dataclass

from anbar.adapters.vllm.kv_publish import (
    BlockRemoved,
    Publisher,
    PublisherConfig,
    WireEvent,
    encode_batch,
)
from anbar.apps.emulator.bounds import MANY, hold


@dataclass(slots=True)
class EventFaults:
    """What to do to the next batches; each counter counts down as batches are published."""

    drop: int = 0
    """Batches kept from the live socket (a slow subscriber's loss); replay still has them."""
    lose: int = 0
    """Batches kept from replay too, as when the buffer has turned over."""
    duplicate: int = 0
    """Batches sent twice."""
    swap: int = 0
    """Batches held back and sent after the one that follows."""

    mute: int = 0
    """Batches sent live without the removals in them, which replay has: nobody can tell from the stream."""

    def __post_init__(self) -> None:
        most = (0, MANY)
        hold(self, drop=most, lose=most, duplicate=most, swap=most, mute=most)


class SpoilingPublisher(Publisher):
    """A publisher that does to its batches what `faults` says."""

    def __init__(self, config: PublisherConfig, faults: EventFaults) -> None:
        super().__init__(config)
        self._faults = faults
        self._held: list[tuple[int, bytes]] = []

    def publish(self, events: Sequence[WireEvent], timestamp_s: float) -> None:
        """Send one batch as the faults have it; nothing for no events."""
        if not events:
            return
        faults, batch = self._faults, self.number(events, timestamp_s)
        if faults.lose > 0:
            faults.lose -= 1
            return
        self.keep(*batch)
        if faults.mute > 0:
            faults.mute -= 1
            said = [event for event in events if not isinstance(event, BlockRemoved)]
            batch = batch[0], encode_batch(said, timestamp_s, self.config.framing)
        if faults.drop > 0:
            faults.drop -= 1
            return
        if faults.swap > 0:
            faults.swap -= 1
            self._held.append(batch)
            return
        self.send(*batch)
        if faults.duplicate > 0:
            faults.duplicate -= 1
            self.send(*batch)
        while self._held:
            self.send(*self._held.pop())
