"""A subscriber under test, and a sink that notes what it is told."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from anbar.adapters.vllm.kv_events import KvSubscriber, SubscriberTiming
from anbar.adapters.vllm.kv_sequence import StreamPosition
from anbar.core.events import BlocksRemoved, KvBatch
from anbar.core.ids import EngineId

ENGINE = EngineId("e0")
PATIENT = SubscriberTiming(
    poll_s=0.005, replay_timeout_s=60.0, replay_silence_s=60.0, backoff_s=0.01, max_backoff_s=0.05
)
"""Where a replay answers: however slow the machine, it must not be taken for mute."""
HASTY = SubscriberTiming(
    poll_s=0.005, replay_timeout_s=0.15, replay_silence_s=0.15, backoff_s=0.01, max_backoff_s=0.05
)


PROOF = 77
"""The block whose event says that nothing from before is left."""


@dataclass
class Recorder:
    """A sink that notes what it was told, in order; `tags` are the blocks since the last restart."""

    told: list[tuple[object, ...]] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    num_failures: int = 0
    errors: list[Exception] = field(default_factory=list)
    stream: KvSubscriber | None = None

    def on_batch(self, engine: EngineId, batch: KvBatch) -> None:
        assert engine == ENGINE
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("a defect in a sink")
        (event,) = batch.events
        assert isinstance(event, BlocksRemoved)
        tag = int.from_bytes(event.hashes[0], "big")
        self.told.append(("batch", batch.seq, tag))
        self.tags.append(tag)

        if tag == PROOF and self.stream is not None:
            self.stream.proven()

    def on_restart(self, engine: EngineId) -> None:
        self.told.append(("restart",))
        self.tags.clear()

    def on_gap(self, engine: EngineId, first: int, last: int) -> None:
        self.told.append(("gap", first, last))

    def on_error(self, engine: EngineId, error: Exception) -> None:
        self.errors.append(error)

    def kinds(self) -> list[object]:
        return [entry[0] for entry in self.told]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 the condition is about bytes on sockets
            await asyncio.sleep(0.002)


def subscriber(
    folder: Path,
    sink: Recorder,
    *,
    replay: bool = True,
    timing: SubscriberTiming = PATIENT,
    backlog_bytes: int | None = None,
    begin: StreamPosition | None = None,
) -> KvSubscriber:
    if backlog_bytes is not None:
        timing = replace(timing, backlog_bytes=backlog_bytes)
    address = f"ipc://{folder}/replay" if replay else None
    return KvSubscriber(ENGINE, f"ipc://{folder}/events", address, sink, timing=timing, begin=begin)
