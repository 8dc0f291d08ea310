"""What a request's record says of its times."""

import asyncio

from scripted import END, SSE, STREAM, Connection, engine_at, path_to, post, scripted
from test_flow import EVENTS, USAGE_EVENT
from tests.waiting import within


async def test_times_that_the_engine_reports_and_gaps_are_noted() -> None:
    """A stream of two events and usage with `metrics`: one gap between chunks at least, each counted once;
    the engine's own first token and queue are known."""
    last = USAGE_EVENT.replace(
        b'"completion_tokens":2}',
        b'"completion_tokens":2},"metrics":{"queue_time_ms":1,"time_to_first_token_ms":2}',
    )
    seen = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.send(SSE)
        await connection.send_chunk(EVENTS[0])
        await seen.wait()
        await connection.send_chunk(EVENTS[1] + last)
        await connection.send(END)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        reader, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(STREAM))
        await within(reader.readuntil(EVENTS[0]))
        seen.set()
        await within(reader.read())
        writer.transport.abort()
        event = await path.finished()
    assert (event.reported_queue_s, event.reported_ttft_s) == (0.001, 0.003)
    assert sum(event.gap_counts) == event.num_chunks - 1 > 0
