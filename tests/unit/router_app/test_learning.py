"""What the router learns from the requests that it carries."""

import pytest
from scripted import (
    END,
    REQUEST,
    SSE,
    STREAM,
    Connection,
    Path,
    answer,
    ask,
    engine_at,
    path_to,
    post,
    scripted,
)
from tests.waiting import until

from anbar.apps.router.priors import PREFILL_PRIOR
from anbar.core.cost import PrefillWork

EVENTS = (
    b'data: {"choices":[1]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\ndata: [DONE]\n\n',
)


class Slow:
    """An engine whose first token takes a quarter of a second, on the router's own clock."""

    def __init__(self) -> None:
        self.is_whole = True
        self.path: Path

    async def script(self, connection: Connection) -> None:
        self.path.clock.advance(0.25)
        await connection.send(SSE)
        await connection.send_chunk(EVENTS[0])
        await until(lambda: all(engine.load.num_decoding for engine in self.path.fleet))
        self.path.clock.advance(3.0)  # what comes after the first token is no part of it
        if self.is_whole:
            await connection.send_chunk(EVENTS[1])
            await connection.send(END)
        connection.writer.close()


async def test_a_stream_teaches_what_its_first_token_took() -> None:
    """The engine reports that two of five tokens were cached: three tokens took a quarter of a second."""
    slow = Slow()
    async with scripted(slow.script) as scripts, path_to([engine_at(scripts.port, "a")]) as path:
        slow.path = path
        await ask(path.port, post(STREAM))
        await path.finished()
        (engine,) = path.fleet
        assert engine.costs.learner.num_samples == 1
        before_s = PREFILL_PRIOR.seconds(5, 2)
        assert engine.costs.learner.error == pytest.approx(0.25 / before_s - 1)
        after_s = engine.costs.prefill.overhead_s + engine.costs.prefill.work_seconds(PrefillWork.of(5, 2))
        assert before_s < after_s < 0.26


async def test_what_shows_no_first_token_or_fails_teaches_nothing() -> None:
    """An answer that is not streamed, an error, and a stream that breaks."""
    slow = Slow()
    slow.is_whole = False
    body = b'{"choices": [{"text": "x"}]}'
    for script, request in (
        (answer(body), REQUEST),
        (answer(b'{"error": {}}', status=b"400 Bad Request"), STREAM),
        (slow.script, STREAM),
    ):
        async with scripted(script) as scripts, path_to([engine_at(scripts.port, "a")]) as path:
            slow.path = path
            await ask(path.port, post(request))
            await path.finished()
            (engine,) = path.fleet
            assert engine.costs.learner.num_samples == 0
            assert engine.costs.prefill == PREFILL_PRIOR
