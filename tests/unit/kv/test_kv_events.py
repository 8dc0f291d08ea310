"""The subscriber on real ZMQ sockets against a publisher that behaves as vLLM's."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.adapters.vllm.kv_events import SubscriberTiming

from .publisher import Publisher, payload
from .streams import HASTY, PATIENT, Recorder, subscriber, until


@pytest.mark.parametrize("topic_frame", [True, False], ids=["0.32", "older"])
async def test_late_joiner_gets_all_from_replay(tmp_path: Path, topic_frame: bool) -> None:
    """A subscriber that comes after 300 batches sees them all, then the live ones, each once."""
    sink = Recorder()
    async with Publisher(tmp_path, topic_frame=topic_frame) as publisher:
        await publisher.publish(*range(300))
        async with subscriber(tmp_path, sink) as stream:
            await until(lambda: len(sink.tags) == 300)
            await until(lambda: stream.status.complete)
            await publisher.subscribed()
            await publisher.publish(*range(300, 320))
            await until(lambda: len(sink.tags) == 320)
            assert sink.tags == list(range(320))
            assert sink.kinds() == ["batch"] * 320
            assert stream.status.connected


async def test_publishing_during_the_replay_neither_loses_nor_repeats(tmp_path: Path) -> None:
    """The engine goes on publishing while the replay runs: some batches come both ways, and are seen once."""
    sink = Recorder()
    async with Publisher(tmp_path) as publisher:
        await publisher.publish(*range(500))
        publisher.gate.clear()
        async with subscriber(tmp_path, sink) as stream:
            await publisher.subscribed()
            await until(lambda: publisher.num_requests == 1)
            await publisher.publish(*range(500, 600))
            publisher.gate.set()
            for tag in range(600, 700):
                await asyncio.sleep(0)
                await publisher.publish(tag)
            await until(lambda: sink.tags[-1:] == [699])
            assert stream.status.num_duplicates >= 100
        assert sink.tags == list(range(700))


async def test_engine_that_is_not_there_yet(tmp_path: Path) -> None:
    """Subscribing before the engine exists costs nothing: the stream begins when it comes up."""
    sink = Recorder()
    async with subscriber(tmp_path, sink) as stream:
        await asyncio.sleep(0.1)
        assert not stream.status.connected
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(1, 2, 3)
            await until(lambda: sink.tags == [1, 2, 3])


async def test_gap_is_filled_by_replay(tmp_path: Path) -> None:
    """Batches lost on the way are fetched before the one that showed the gap is delivered."""
    sink = Recorder()
    async with Publisher(tmp_path) as publisher, subscriber(tmp_path, sink) as stream:
        await publisher.subscribed()
        await until(lambda: stream.status.complete)
        await publisher.publish(0, 1)
        await until(lambda: len(sink.tags) == 2)
        for tag in (2, 3, 4):
            publisher.buffer_only(payload(tag))
        await publisher.publish(5)
        await until(lambda: len(sink.tags) == 6)
        assert sink.tags == [0, 1, 2, 3, 4, 5]
        assert sink.kinds() == ["batch"] * 6
        assert stream.status.complete


@pytest.mark.parametrize(
    ("dropped", "timing"),
    [(range(40, 45), PATIENT), (range(90, 101), replace(PATIENT, replay_silence_s=1.0))],
    ids=["a hole", "the end"],
)
async def test_a_replay_that_drops_batches_is_continued(
    tmp_path: Path, dropped: range, timing: SubscriberTiming
) -> None:
    """The replay socket had no room for some batches, or for the end mark: they are asked for again. Only
    silence tells that the end is missing."""
    sink = Recorder()
    async with Publisher(tmp_path, drops_once=dropped) as publisher:
        for tag in range(100):
            publisher.buffer_only(payload(tag))
        async with subscriber(tmp_path, sink, timing=timing) as stream:
            await until(lambda: stream.status.complete)
            assert sink.tags == list(range(100))
            assert sink.kinds() == ["batch"] * 100
            assert stream.status.num_failed_replays >= 1
            assert stream.status.num_failed_replays == 1 or timing is not PATIENT


async def test_history_beyond_the_buffer_is_reported(tmp_path: Path) -> None:
    """Of 50 batches the buffer holds the last 10: the first 40 are reported lost, once, before the others."""
    sink = Recorder()
    async with Publisher(tmp_path, buffer_steps=10) as publisher:
        await publisher.publish(*range(50))
        async with subscriber(tmp_path, sink) as stream:
            await until(lambda: len(sink.tags) == 10)
            assert sink.told[0] == ("gap", 0, 39)
            assert sink.tags == list(range(40, 50))
            assert sink.kinds().count("gap") == 1
            assert not stream.status.complete
            assert stream.status.num_lost == 40


async def test_gap_beyond_the_buffer_voids_what_was_said(tmp_path: Path) -> None:
    """More was lost than the buffer holds: the sink is told to begin anew, and what is missing."""
    sink = Recorder()
    async with Publisher(tmp_path, buffer_steps=5) as publisher, subscriber(tmp_path, sink) as stream:
        await publisher.subscribed()
        await until(lambda: stream.status.complete)
        await publisher.publish(0, 1)
        await until(lambda: len(sink.tags) == 2)
        for tag in range(2, 20):
            publisher.buffer_only(payload(tag))
        await publisher.publish(20)
        await until(lambda: sink.tags[-1:] == [20])
        assert sink.told[2:4] == [("restart",), ("gap", 0, 15)]
        assert sink.tags == list(range(16, 21))


async def test_a_queue_older_than_the_replay_is_no_restart(tmp_path: Path) -> None:
    """Live batches waited in our queue while the buffer moved on past them: they are left, nothing is
    purged."""
    sink = Recorder()
    async with Publisher(tmp_path, buffer_steps=3) as publisher, subscriber(tmp_path, sink) as stream:
        await publisher.subscribed()
        await until(lambda: stream.status.complete)
        for tag in range(10):
            publisher.buffer_only(payload(tag))
        await publisher.send_frames(b"", (4).to_bytes(8, "big"), payload(4))
        await publisher.send_frames(b"", (5).to_bytes(8, "big"), payload(5))
        await until(lambda: stream.status.num_stale == 2)
        await publisher.publish(10)
        await until(lambda: sink.tags[-1:] == [10])
        assert sink.told[0] == ("gap", 0, 6)
        assert sink.tags == [7, 8, 9, 10]
        assert "restart" not in sink.kinds()
        assert stream.status.num_stale == 2


async def test_restart_with_fewer_batches(tmp_path: Path) -> None:
    """The new life is shorter than the old one: purge, then its own history from 0."""
    sink = Recorder()
    async with subscriber(tmp_path, sink) as stream:
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(*range(10))
            await until(lambda: len(sink.tags) == 10)
        await until(lambda: not stream.status.connected)
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(100, 101)
            await until(lambda: sink.tags == [100, 101])
        assert sink.kinds().count("restart") == 1
        assert "gap" not in sink.kinds()


async def test_restart_that_is_already_ahead(tmp_path: Path) -> None:
    """While we were away the new life has published more than we had seen of the old one: nothing but the
    bytes of our last batch tells them apart."""
    sink = Recorder()
    async with subscriber(tmp_path, sink) as stream:
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(0, 1, 2)
            await until(lambda: len(sink.tags) == 3)
        await until(lambda: not stream.status.connected)
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(*range(100, 130))
            await until(lambda: len(sink.tags) == 30)
            assert sink.tags == list(range(100, 130))
        assert sink.told[3] == ("restart",)


async def test_restart_with_an_empty_history(tmp_path: Path) -> None:
    """An engine that comes back and has published nothing holds nothing: its old blocks are void at once."""
    sink = Recorder()
    async with subscriber(tmp_path, sink) as stream:
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(0, 1, 2)
            await until(lambda: len(sink.tags) == 3)
        await until(lambda: not stream.status.connected)
        async with Publisher(tmp_path):
            await until(lambda: sink.kinds()[-1] == "restart")
            await until(lambda: stream.status.complete)


async def test_restart_without_a_lost_connection(tmp_path: Path) -> None:
    """Behind a proxy a number simply comes again with other bytes."""
    sink = Recorder()
    async with Publisher(tmp_path) as publisher, subscriber(tmp_path, sink) as stream:
        await publisher.subscribed()
        await until(lambda: stream.status.complete)
        await publisher.publish(0, 1, 2)
        await until(lambda: len(sink.tags) == 3)
        publisher._next = 0
        publisher._buffer.clear()
        await publisher.publish(100)
        await until(lambda: sink.tags == [100])
        assert sink.kinds() == ["batch"] * 3 + ["restart", "batch"]


async def test_same_life_after_a_lost_connection(tmp_path: Path) -> None:
    """The connection breaks and comes back, the engine is the same: what was missed is fetched, nothing is
    purged."""
    sink = Recorder()
    async with subscriber(tmp_path, sink) as stream:
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(0, 1, 2)
            await until(lambda: len(sink.tags) == 3)
        await until(lambda: not stream.status.connected)
        async with Publisher(tmp_path) as publisher:
            for tag in range(6):
                publisher.buffer_only(payload(tag))
            await until(lambda: sink.tags == list(range(6)))
        assert "restart" not in sink.kinds()


async def test_mute_replay_leaves_live_batches_and_a_report(tmp_path: Path) -> None:
    """The replay never answers: live batches are delivered, and the missing history is reported."""
    sink = Recorder()
    async with Publisher(tmp_path, answers=False) as publisher:
        await publisher.publish(0, 1)
        async with subscriber(tmp_path, sink, timing=HASTY) as stream:
            await publisher.subscribed()
            await until(lambda: stream.status.num_failed_replays >= 3)
            await publisher.publish(2, 3)
            await until(lambda: sink.tags == [2, 3])
            assert sink.told[0] == ("gap", 0, 1)
            assert not stream.status.complete


async def test_without_a_replay_address(tmp_path: Path) -> None:
    """No replay configured: history is reported lost, and a lost connection voids what was said."""
    sink = Recorder()
    async with subscriber(tmp_path, sink, replay=False) as stream:
        async with Publisher(tmp_path) as publisher:
            await publisher.publish(0)
            await until(lambda: stream.status.connected)
            await publisher.subscribed()
            await publisher.publish(1, 2)
            await until(lambda: sink.tags[-1:] == [2])
        await until(lambda: not stream.status.connected)
        async with Publisher(tmp_path):
            await until(lambda: sink.kinds()[-1] == "restart")


async def test_malformed_messages_do_not_stop_the_stream(tmp_path: Path) -> None:
    """Garbage in the place of a batch is a reported loss of that batch; garbage frames are counted."""
    sink = Recorder()
    async with Publisher(tmp_path) as publisher, subscriber(tmp_path, sink) as stream:
        await publisher.subscribed()
        await until(lambda: stream.status.complete)
        await publisher.publish(0)
        await publisher.publish_bytes(b"\xc1 no msgpack")
        await publisher.send_frames(b"one frame only")
        await publisher.publish(2)
        await until(lambda: sink.tags == [0, 2])
        assert ("gap", 1, 1) in sink.told
        assert stream.status.num_malformed == 2
        assert not stream.status.complete


async def test_a_failing_sink_gets_the_stream_from_the_beginning(tmp_path: Path) -> None:
    """A defect in the sink ends the session, not the subscription: it is told, and all is said again."""
    sink = Recorder(num_failures=1)
    async with Publisher(tmp_path) as publisher:
        await publisher.publish(0, 1, 2)
        async with subscriber(tmp_path, sink) as stream:
            await until(lambda: sink.tags == [0, 1, 2])
            assert stream.status.num_errors == 1
    assert [str(error) for error in sink.errors] == ["a defect in a sink"]


async def test_stop_is_clean_and_repeatable(tmp_path: Path) -> None:
    """Stopping in the middle of a replay that hangs leaves no task and no socket behind."""
    sink = Recorder()
    async with Publisher(tmp_path, answers=False) as publisher:
        await publisher.publish(0)
        stream = subscriber(tmp_path, sink)
        stream.start()
        stream.start()
        await until(lambda: publisher.num_requests > 0)
        await stream.stop()
        await stream.stop()
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("kv-")] == []


async def test_the_loop_stays_responsive_during_a_long_replay(tmp_path: Path) -> None:
    """While 3,000 batches are replayed other work on the loop is never kept waiting for long.

    The processor's time is what is judged: how long a loaded machine leaves this process out says nothing."""
    sink = Recorder()
    longest_s = 0.0
    async with Publisher(tmp_path) as publisher:
        for tag in range(3000):
            publisher.buffer_only(payload(tag))
        async with subscriber(tmp_path, sink):
            while len(sink.tags) < 3000:
                before = time.thread_time()
                await asyncio.sleep(0)
                longest_s = max(longest_s, time.thread_time() - before)
    assert longest_s < 0.3


async def test_a_cancelled_stop_is_cancelled(tmp_path: Path) -> None:
    """Whoever waits for the end of a stream is cancelled meanwhile: that is his, and reaches him."""
    stream = subscriber(tmp_path, Recorder())
    stream.start()
    stopping = asyncio.create_task(stream.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait((stopping,))
    assert stopping.cancelled()
