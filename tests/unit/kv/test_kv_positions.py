"""Streams that are partial, that begin where another one was, and that are asked to look now."""

from dataclasses import replace
from pathlib import Path

import pytest

from anbar.adapters.vllm.kv_sequence import StreamPosition

from .publisher import Publisher
from .streams import PATIENT, PROOF, Recorder, subscriber, until


async def test_a_partial_stream_is_partial_until_proven(tmp_path: Path) -> None:
    """The buffer holds the last 10 of 50 batches: the stream is true but partial, through a lost connection
    as well, until an event says that nothing is left of what was missed."""
    sink = Recorder()
    async with Publisher(tmp_path, buffer_steps=10) as publisher:
        await publisher.publish(*range(50))
        async with subscriber(tmp_path, sink) as stream:
            sink.stream = stream
            await publisher.subscribed()
            await until(lambda: len(sink.tags) == 10)
            await publisher.publish(50)
            await until(lambda: len(sink.tags) == 11)
            assert (stream.status.partial, stream.status.complete) == (True, False)
            stream.resync()
            await publisher.publish(PROOF)
            await until(lambda: stream.status.complete)
            assert not stream.status.partial
            await publisher.publish_bytes(b"\xc1 no msgpack")
            await until(lambda: stream.status.partial)
            assert not stream.status.complete


async def test_a_new_life_is_not_partial(tmp_path: Path) -> None:
    """An engine whose history was lost restarts: what is followed from its first batch is complete."""
    sink = Recorder()
    async with subscriber(tmp_path, sink) as stream:
        async with Publisher(tmp_path, buffer_steps=2) as publisher:
            await publisher.publish(*range(5))
            await until(lambda: len(sink.tags) == 2)
            assert stream.status.partial
        await until(lambda: not stream.status.connected)
        assert not stream.status.complete
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(100)
            await until(lambda: stream.status.complete)
            assert (sink.tags, stream.status.partial) == ([100], False)


@pytest.mark.parametrize("partial", [False, True])
async def test_a_stream_goes_on_where_another_one_was(tmp_path: Path, partial: bool) -> None:
    """A router that has another's snapshot begins behind it, before anything is published and after; what the
    other had missed is still missing."""
    sink, joined = Recorder(), Recorder()
    async with Publisher(tmp_path) as publisher:
        await publisher.publish(0, 1, 2)
        async with subscriber(tmp_path, sink) as stream:
            await until(lambda: len(sink.tags) == 3)
            position = stream.position()
        assert position is not None
        assert (position.seq, position.partial) == (2, False)
        await publisher.publish(3)
        begin = replace(position, partial=partial)
        async with subscriber(tmp_path, joined, begin=begin) as stream:
            await publisher.subscribed()
            await until(lambda: joined.tags == [3])
            await publisher.publish(4)
            await until(lambda: joined.tags == [3, 4])
            assert joined.kinds() == ["batch"] * 2
            assert (stream.status.partial, stream.status.complete) == (partial, not partial)


async def test_a_position_of_another_life_is_void(tmp_path: Path) -> None:
    """The engine has restarted since: what the other router knew is void, and the new life is followed from
    its beginning. So too when the buffer no longer has the batch at which the other was."""
    for buffer_steps, tags, kinds in ((100, [7, 8, 9], []), (2, [8, 9], [("gap", 0, 0)])):
        sink = Recorder()
        async with Publisher(tmp_path, buffer_steps=buffer_steps) as publisher:
            await publisher.publish(7, 8, 9)
            begin = StreamPosition(0, 12345, False)
            async with subscriber(tmp_path, sink, begin=begin) as stream:
                await until(lambda: len(sink.tags) == len(tags))  # noqa: B023
                assert sink.tags == tags
                assert sink.told[: 1 + len(kinds)] == [("restart",), *kinds]
                assert stream.status.partial == bool(kinds)


async def test_nobody_was_there_to_take_a_position(tmp_path: Path) -> None:
    """A stream that has heard nothing has none, and one without a replay address does not use any: it could
    not be compared."""
    stream = subscriber(tmp_path, Recorder())
    assert stream.position() is None
    stream = subscriber(tmp_path, Recorder(), replay=False, begin=StreamPosition(3, 1, False))
    assert stream.position() is None


async def test_resync_does_not_wait_for_the_next_try(tmp_path: Path) -> None:
    """The engine was away and is back, and the next try to connect is an hour off: asked to look now, the
    stream finds the new life."""
    sink = Recorder()
    slow = replace(PATIENT, backoff_s=3600.0, reconnect_s=3600.0)
    async with subscriber(tmp_path, sink, timing=slow) as stream:
        async with Publisher(tmp_path) as publisher:
            stream.resync()
            await publisher.publish(0, 1)
            await until(lambda: sink.tags == [0, 1])
        await until(lambda: not stream.status.connected)
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(100)
            stream.resync()
            await until(lambda: sink.tags == [100])
        assert sink.kinds().count("restart") == 1


async def test_resync_of_a_stream_that_is_well(tmp_path: Path) -> None:
    """Nothing was missed: the replay confirms it, and nothing is said twice."""
    sink = Recorder()
    async with Publisher(tmp_path) as publisher:
        await publisher.publish(0, 1)
        async with subscriber(tmp_path, sink) as stream:
            await until(lambda: stream.status.complete)
            num_replays = stream.status.num_replays
            stream.resync()
            assert not stream.status.complete
            await until(lambda: stream.status.complete)
            assert stream.status.num_replays == num_replays + 1
    assert sink.told == [("batch", 0, 0), ("batch", 1, 1)]
