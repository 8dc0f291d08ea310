"""What the router learns from the requests that it carries."""

from dataclasses import replace

import pytest
from msgspec import structs
from scripted import (
    END,
    REQUEST,
    SSE,
    STREAM,
    Connection,
    InOrder,
    Path,
    answer,
    ask,
    engine_at,
    path_to,
    post,
    scripted,
)
from tests.unit.route.builders import BLOCK, batch, cleared, offloaded, stored
from tests.waiting import until

from anbar.apps.router.load import by_reported_times
from anbar.core.cost import PrefillWork
from anbar.core.events import Tier
from anbar.core.ids import EngineId, RequestId
from anbar.core.outcome import RequestFacts
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.core.request import RouteQuery
from anbar.route import EngineProfile
from anbar.route.costs import Finished

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


async def test_an_answer_that_is_not_streamed_teaches_what_its_engine_reports() -> None:
    """Two of five tokens were cached; the engine says that the request waited for 2 s and the first token
    took a quarter of a second from then on. What came after it, 3 s, is how long answers run."""
    body = (
        b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":5,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":2}},'
        b'"metrics":{"queue_time_ms":2000,"time_to_first_token_ms":250}}'
    )

    async def script(connection: Connection) -> None:
        path.clock.advance(5.25)
        await answer(body)(connection)

    async with scripted(script) as scripts, path_to([engine_at(scripts.port, "a")]) as path:
        await ask(path.port, post(REQUEST))
        await path.finished()
        (engine,) = path.fleet
        assert engine.costs.learner.num_samples == 1
        assert engine.costs.learner.error == pytest.approx(0.25 / PREFILL_PRIOR.seconds(5, 2) - 1)
        assert engine.costs.answer_s == pytest.approx(3.0)


def test_reported_times_with_a_load_or_without_a_queue_teach_nothing() -> None:
    """vLLM counts a load from the host tier as waiting: what is left would make it free. And an engine that
    does not say how long a request waited says nothing of what it took."""
    facts = RequestFacts(RequestId("r"), "completions", reported_ttft_s=2.0, reported_queue_s=1.5)
    finished = Finished(PrefillWork.of(100, 50), 9.0, PrefillWork.of(10), {Tier.HOST: 0})
    told = by_reported_times(finished, facts, 7.0)
    assert told == Finished(PrefillWork.of(100, 50), 0.5, loaded={Tier.HOST: 0}, answer_s=5.0)
    assert by_reported_times(structs.replace(finished, loaded={Tier.HOST: 50}), facts, 7.0) is None
    facts.reported_queue_s = None
    assert by_reported_times(finished, facts, 7.0) is None


async def test_what_shows_no_first_token_or_fails_teaches_nothing() -> None:
    """An answer that is not streamed whose engine reports no times, an error, and a stream that breaks."""
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


async def test_a_store_that_has_less_than_was_told_is_not_believed() -> None:
    """Two blocks are told to be in the store; the engine that was to load them reports one: the other one is
    predicted no more."""
    usage = b'{"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}'
    prompt, name = [1, 2, 3, 4, 5], EngineId("a")
    query = RouteQuery(RequestId("r"), "m", tuple(prompt), len(prompt))
    hints = [offloaded(prompt, place, Tier.SHARED, owner="s") for place in range(2)]
    engine = scripted(answer(b'{"choices": [{"text": "x"}], "usage": %b}' % usage))
    async with engine as server, path_to([engine_at(server.port, name)]) as path:
        index = path.flow.parts.caches.index
        index.attach(name, EngineProfile("m", BLOCK, 1, "f", frozenset({"s"})))
        index.apply(name, batch(stored(prompt), cleared(), *hints), path.clock.now_s())
        believed = index.match(query, [name], path.clock.now_s())[name]
        path.flow.retune(replace(path.flow.parts, policy=InOrder(match=believed)))
        await ask(path.port, post(REQUEST))
        await path.finished()
        left = index.match(query, [name], path.clock.now_s())[name]
    assert (believed.shared, left.shared) == (4, 2)
