"""What waits to be read of an engine's stream is bounded, and an overload is one hole, not many."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.vllm.kv_backlog import OVERHEAD_BYTES, Backlog
from tests.waiting import PATIENCE_S

from .publisher import Publisher
from .streams import PATIENT, Recorder, subscriber, until

ROOM = 4 * (OVERHEAD_BYTES + 10)


@given(st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=60))
def test_what_is_kept_is_in_order_and_bounded_and_misses_only_its_end(course: list[int | None]) -> None:
    """Messages come (their size) and are taken (None) in any order: never more than there is room for, and
    after the first that had none nothing is kept until all is taken and the hole is mended."""
    backlog = Backlog(3, ROOM)
    kept: list[bytes] = []
    missing = 0
    for number, size in enumerate(course):
        if size is None:
            if kept:
                frames, counted = backlog.take()
                assert frames == [kept.pop(0)]
                assert counted == OVERHEAD_BYTES + len(frames[0])
            elif missing:
                assert backlog.mended() == missing
                missing = 0
            continue
        message = bytes([number]) * size
        room = not kept or (
            len(kept) < 3 and sum(map(len, kept)) + size + OVERHEAD_BYTES * (len(kept) + 1) <= ROOM
        )
        took = backlog.put([message])
        assert took == (room and not missing)
        if took:
            kept.append(message)
        else:
            missing += 1
        assert (len(backlog), backlog.num_missing) == (len(kept), missing)


async def test_an_overload_is_made_up_for_by_a_replay(tmp_path: Path) -> None:
    """A hundred batches come at once, and there is room for one: the others are dropped, and fetched
    afterwards. The sink sees each once and in order, without a gap; the engine then has nothing more to say,
    so that no later number could have shown what is missing."""
    sink = Recorder()
    async with (
        Publisher(tmp_path) as publisher,
        subscriber(tmp_path, sink, timing=PATIENT, backlog_bytes=1) as stream,
    ):
        await publisher.subscribed()
        await until(lambda: stream.status.complete)
        await publisher.publish(*range(100))
        await until(lambda: len(sink.tags) == 100)
        await until(lambda: stream.status.complete and not stream.status.num_waiting)
        assert stream.status.num_dropped > 0
        assert sink.kinds() == ["batch"] * 100
        assert sink.tags == list(range(100))


async def test_an_overload_without_a_replay_address_is_a_gap(tmp_path: Path) -> None:
    """Nothing can be fetched: what comes next shows that batches are lost, and the sink is told."""
    sink = Recorder()
    async with (
        Publisher(tmp_path) as publisher,
        subscriber(tmp_path, sink, replay=False, backlog_bytes=1) as stream,
    ):
        await publisher.subscribed()
        await until(lambda: stream.status.connected)
        await publisher.publish(*range(300))
        await until(lambda: stream.status.num_dropped > 0)
        async with asyncio.timeout(PATIENCE_S):
            while "gap" not in sink.kinds():
                assert not stream.status.complete
                await publisher.publish(0)
                await asyncio.sleep(0.01)
