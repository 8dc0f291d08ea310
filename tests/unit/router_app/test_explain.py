"""Explanations over HTTP: what they say of requests that run, ended, failed or are not known, and to whom."""

import asyncio
import json
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from scripted import END, REQUEST, SSE, Connection, Script, answer, ask, die, scripted
from test_router import Pages, becomes, configured, get, running
from tests.waiting import until, within

from anbar.adapters.http.message import Request
from anbar.apps.explain import explanation
from anbar.apps.router import explain_page
from anbar.apps.router.app import Router
from anbar.apps.router.explain import MAX_HEADER_BYTES, ExplainLog, Kept, header_value
from anbar.apps.router.explain_text import text_of
from anbar.apps.router.local import is_local
from anbar.apps.router.record import Record
from anbar.config.models import ExplainConfig, ExplainHeader
from anbar.core.cost import PrefillCost
from anbar.core.errors import StackError
from anbar.core.fleet import EngineState, EngineView
from anbar.core.ids import EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route.explain import note_decision
from anbar.route.policies import LeastLoaded

READY = EngineState.READY


class Engine(Pages):
    """An engine whose completions do as `complete` says; by default they answer at once."""

    def __init__(self) -> None:
        super().__init__()
        usage = {"prompt_tokens": 5, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
        self.complete = answer(json.dumps({"choices": [], "usage": usage}).encode())

    async def script(self, connection: Connection) -> None:
        if connection.head.startswith(b"POST /v1/completions"):
            await self.complete(connection)
        else:
            await super().script(connection)


def post(request_id: str, extra: str = "", body: bytes = REQUEST) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += f"x-request-id: {request_id}\r\nconnection: close\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def header_of(text: bytes, name: bytes) -> bytes | None:
    lines = text.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return next((line.partition(b": ")[2] for line in lines if line.startswith(name + b": ")), None)


async def explained(port: int, request_id: str) -> Any:
    status, page, _ = await get(port, f"/admin/explain/{request_id}")
    assert status == 200, page
    return page["requests"]


async def ended(router: Router, request_id: str) -> None:
    """Until the router has accounted for a request: its answer is out a moment before."""
    await until(lambda: all(kept.record.e2e_s is not None for kept in router.explain.find(request_id)))


async def test_a_finished_request_is_explained() -> None:
    """Its engines with verdict, parts and mode; the choice; how it ended, as the engine reported it."""
    busy = Engine()
    async with AsyncExitStack() as stack:
        ports = [(await stack.enter_async_context(scripted(busy.script))).port for _ in range(2)]
        router, port = await stack.enter_async_context(running(configured(*ports)))
        await becomes(router, READY, READY)
        await ask(port, post("r-1"))
        await ended(router, "r-1")
        (found,) = await explained(port, "r-1")
    assert (found["state"], found["policy"], found["model"]) == ("finished", "predicted_ttft", "m")
    first, second = found["engines"]
    assert (first["place"], second["place"], first["verdict"]) == (1, 2, "able")
    assert found["chosen"] == first["engine"] == found["outcome"]["engine"]
    assert (first["mode"], first["mode_reason"], found["tokens_note"]) == ("approximate", "no_kv_events", "")
    parts = ("wait_ms", "load_host_ms", "load_shared_ms", "prefill_ms")
    assert first["ttft_ms"] == pytest.approx(sum(first[part] for part in parts), abs=0.01) != 0
    assert first["score_ms"] == pytest.approx(
        sum(first[f"{part}_ms"] for part in ("ttft", "imposed_delay", "later_delay")), abs=0.01
    )
    outcome = found["outcome"]
    assert (outcome["outcome"], outcome["status"], outcome["cached_tokens"]) == ("ok", 200, 3)
    assert 0 <= outcome["engine_ttft_ms"] <= outcome["ttft_ms"] <= outcome["e2e_ms"]


async def test_a_failed_attempt_is_told_and_the_next_engine_answered() -> None:
    """The engine that broke, what was wrong, when; and both engines as they were before it did."""
    bad, good = Engine(), Engine()
    bad.complete = die
    async with (
        scripted(bad.script) as a,
        scripted(good.script) as b,
        running(configured(a.port, b.port, policy="round_robin")) as (router, port),
    ):
        await becomes(router, READY, READY)
        await ask(port, post("r-1"))
        await ended(router, "r-1")
        (found,) = await explained(port, "r-1")
    (attempt,) = found["failed_attempts"]
    assert (found["chosen"], attempt["engine"], attempt["failure"]) == ("e0", "e0", "unreachable")
    assert attempt["detail"]
    assert (found["outcome"]["engine"], found["outcome"]["outcome"]) == ("e1", "ok")
    assert {engine["verdict"] for engine in found["engines"]} == {"able"}


def stream(*events: bytes, dies: bool) -> Script:
    """An engine that sends these events, and then is lost or ends well."""

    async def script(connection: Connection) -> None:
        if b"/tokenize" in connection.head:
            await answer(b'{"tokens": [31], "count": 1, "max_model_len": 1000}')(connection)
            return
        await connection.send(SSE)
        for event in events:
            await connection.send_chunk(event)
        if dies:
            connection.writer.transport.abort()
        else:
            await connection.send_chunk(b"data: [DONE]\n\n")
            await connection.send(END)

    return script


CHOICE = b'{"index": 0, "text": " one", "finish_reason": null}'
ONE_WORD = b'data: {"id": "c", "created": 7, "choices": [%b]}\n\n' % CHOICE
STREAM = b'{"model": "m", "prompt": [1, 2], "stream": true, "max_tokens": 9'


async def test_a_stream_that_broke_off_says_why() -> None:
    """Nobody could go on with it, since it asked for log-probabilities: the page has the reason that the
    client was told, and the text too."""
    lost = Engine()
    lost.complete = stream(ONE_WORD, dies=True)
    async with scripted(lost.script) as a, running(configured(a.port)) as (router, port):
        await becomes(router, READY)
        told = await ask(port, post("r-1", body=STREAM + b', "logprobs": 1}'))
        await ended(router, "r-1")
        (found,) = await explained(port, "r-1")
        text = (await get(port, "/admin/explain/r-1?format=text"))[1].decode()
    outcome = found["outcome"]
    assert (outcome["outcome"], outcome["continued"], outcome["engine"]) == ("broken", False, "e0")
    assert outcome["broken"]
    assert outcome["broken"].encode() in told
    assert f"ms: {outcome['broken']}" in text


async def test_a_stream_that_another_engine_went_on_with() -> None:
    """Who went on, and that the first byte was the first engine's, beside what was predicted of that one."""
    lost, other = Engine(), Engine()
    lost.complete, other.complete = stream(ONE_WORD, dies=True), stream(ONE_WORD, dies=False)
    async with (
        scripted(lost.script) as a,
        scripted(other.script) as b,
        running(configured(a.port, b.port, policy="round_robin")) as (router, port),
    ):
        await becomes(router, READY, READY)
        await ask(port, post("r-1", body=STREAM + b"}"))
        await ended(router, "r-1")
        (found,) = await explained(port, "r-1")
        text = (await get(port, "/admin/explain/r-1?format=text"))[1].decode()
    outcome = found["outcome"]
    assert (outcome["outcome"], outcome["continued"], outcome["engine"]) == ("ok", True, "e1")
    assert (outcome["broken"], [each["engine"] for each in found["failed_attempts"]]) == ("", ["e0"])
    assert "e1 went on with the stream of e0" in text
    assert "after it was sent to e0; first token predicted" in text


async def test_a_request_that_nothing_could_serve_is_explained() -> None:
    """All engines are unhealthy: 503, and the header and the page say which filter dropped each."""
    engine = Engine()
    async with scripted(engine.script) as a, running(configured(a.port)) as (router, port):
        await becomes(router, READY)
        engine.status = b"500 Internal Server Error"
        await becomes(router, EngineState.UNHEALTHY)
        text = await ask(port, post("r-1", "x-anbar-explain: 1\r\n"))
        await ended(router, "r-1")
        (found,) = await explained(port, "r-1")
    assert b"503" in text.split(b"\r\n")[0]
    assert header_of(text, b"x-anbar-explain") == b"policy=none tokens=~14; e0 unhealthy"
    assert (found["chosen"], found["outcome"]["outcome"]) == (None, "no_engine")
    assert found["engines"][0]["verdict"] == "unhealthy"
    assert "e0: unhealthy" in found["reason"]


async def test_a_running_request_and_two_with_one_id() -> None:
    """The first with the id is over, the second still runs: both are told apart, the newest first; the text
    form says so too."""
    engine = Engine()
    let_go = asyncio.Event()
    quick = engine.complete

    async def late(connection: Connection) -> None:
        await let_go.wait()
        await quick(connection)

    async with scripted(engine.script) as a, running(configured(a.port)) as (router, port):
        await becomes(router, READY)
        await ask(port, post("twice"))
        await ended(router, "twice")
        engine.complete = late
        waiting = asyncio.create_task(ask(port, post("twice")))
        await until(lambda: len(router.explain.find("twice")) == 2)
        newest, oldest = await explained(port, "twice")
        text = (await get(port, "/admin/explain/twice?format=text"))[1]
        listed = (await get(port, "/admin/explain"))[1]["requests"]
        let_go.set()
        await within(waiting)
    assert (newest["state"], newest["outcome"], oldest["state"]) == ("running", None, "finished")
    assert oldest["outcome"]["outcome"] == "ok"
    assert b"2 requests had the id twice" in text
    assert b"still running" in text
    assert [row["outcome"] for row in listed] == ["running", "ok"]


async def test_ids_that_are_not_there() -> None:
    """Unknown, too old and switched off are different answers, in the shape of all errors."""
    engine = Engine()
    async with scripted(engine.script) as a:
        async with running(configured(a.port, explain={"keep": 2})) as (router, port):
            await becomes(router, READY)
            nothing = await get(port, "/admin/explain/r-0")
            for number in range(3):
                await ask(port, post(f"r-{number}"))
            old = await get(port, "/admin/explain/r-0")
            kept = [(await get(port, f"/admin/explain/r-{number}"))[0] for number in (1, 2)]
            odd = await get(port, "/admin/explain/r-1?format=xml")
            blank = await get(port, "/admin/explain?format=")
            empty = await get(port, "/admin/explain/")
        async with running(configured(a.port, explain={"keep": 0})) as (router, port):
            await becomes(router, READY)
            await ask(port, post("r-0"))
            off = await get(port, "/admin/explain/r-0")
    assert [status for status, _, _ in (nothing, old, off, odd, blank, empty)] == [
        404,
        404,
        404,
        400,
        400,
        404,
    ]
    assert "has routed no request yet" in nothing[1]["error"]["message"]
    assert "among the last 2 that were routed" in old[1]["error"]["message"]
    assert "router.explain.keep is 0" in off[1]["error"]["message"]
    assert old[1]["error"]["code"] == "not_kept"
    assert kept == [200, 200]


async def test_the_text_form_is_a_table_with_its_numbers_in_columns() -> None:
    """Asked for by `Accept` or by `?format=text`, which wins; each engine is one row under the head."""
    engine = Engine()
    async with scripted(engine.script) as a, running(configured(a.port)) as (router, port):
        await becomes(router, READY)
        await ask(port, post("a/b+c"))
        await ended(router, "a/b+c")
        accepted = await get(port, "/admin/explain/a%2Fb+c", extra="accept: text/plain\r\n")
        wanted = await get(port, "/admin/explain/a/b+c?format=text", extra="accept: application/json\r\n")
        listed = await get(port, "/admin/explain?format=text")
    assert accepted[:2] == wanted[:2]
    lines = accepted[1].decode().splitlines()
    assert lines[0].startswith("request a/b+c, routed at 20")
    head = next(line for line in lines if "verdict" in line)
    row = lines[lines.index(head) + 1]
    assert row[head.index("engine") :].startswith("e0")
    assert row[: head.index("score") + len("score")].split()[-1] == row.split()[12] != "0.0"
    assert "cached tokens: 3 reported, 0 predicted" in accepted[1].decode()
    assert [line.split()[0] for line in listed[1].decode().splitlines()] == ["request", "a/b+c"]


@pytest.mark.parametrize(
    ("who", "asks", "is_told"),
    [
        ("local", "x-anbar-explain: 1\r\n", True),
        ("local", "", False),
        ("local", "x-anbar-explain: 0\r\n", False),
        ("local", "x-anbar-explain: 1\r\nx-forwarded-for: 10.0.0.1\r\n", False),
        ("always", "x-anbar-explain: 1\r\nx-forwarded-for: 10.0.0.1\r\n", True),
        ("never", "x-anbar-explain: 1\r\n", False),
    ],
)
async def test_who_gets_the_header(who: str, asks: str, is_told: bool) -> None:
    """Only who asks, and only whom the configuration allows; the engine never sees the question."""
    engine = Engine()
    async with scripted(engine.script) as a:
        async with running(configured(a.port, explain={"header": who})) as (router, port):
            await becomes(router, READY)
            text = await ask(port, post("r-1", asks))
        heads = [head for head in a.heads if head.startswith(b"POST /v1/completions")]
    found = header_of(text, b"x-anbar-explain")
    assert (found is not None) is is_told
    assert found is None or found.startswith(b"policy=predicted_ttft tokens=5; e0 score=")
    assert b"x-anbar-explain" not in heads[0]


@pytest.mark.parametrize(
    ("token_ids", "is_whole", "note", "estimated", "words", "head"),
    [
        ((1, 2), True, "", False, "model m, 2 prompt tokens", "tokens=2"),
        ((1,), False, "", True, "model m, about 2 prompt tokens", "tokens=~2"),
        ((), True, "images", True, "model m, about 2 prompt tokens, not tokenized: images", "tokens=~2"),
    ],
)
def test_an_estimated_length_is_told_as_one(
    token_ids: tuple[int, ...], is_whole: bool, note: str, estimated: bool, words: str, head: str
) -> None:
    """A prompt that was read whole, one of which only the beginning was, and one that was not tokenized."""
    query = RouteQuery(RequestId("r"), "m", token_ids, 2, is_whole=is_whole)
    record = Record(request_id=RequestId("r"), endpoint="/v1/completions", started_s=0.0)
    record.decision = decision = note_decision(query, note, [], {}, None)
    found = explain_page.explained(Kept(record, 7.0))
    assert (found.prompt_tokens, found.prompt_tokens_estimated, found.tokens_note) == (2, estimated, note)
    assert f"{words}\n" in text_of(explain_page.Explanations("r", [found]))
    assert header_value(decision) == f"policy=none {head}"


def test_the_header_is_bounded() -> None:
    """Sixty-four engines do not fit: the choice comes first, and the rest are counted."""
    fleet = [
        EngineView(EngineId(f"engine-{i}"), READY, frozenset({"m"}), 16, 0, PrefillCost(1e-4))
        for i in range(64)
    ]
    query = RouteQuery(RequestId("r"), "m", (1, 2), 2)
    route = LeastLoaded(Random(0)).decide(query, fleet, {})
    value = header_value(note_decision(query, "", fleet, {}, route))
    assert len(value) <= MAX_HEADER_BYTES
    parts = value.split("; ")
    assert parts[1].startswith(f"{route.target} score=")
    assert parts[-1] == f"+{64 - (len(parts) - 2)} more"


@pytest.mark.parametrize(
    ("peer", "headers", "want"),
    [
        (True, {b"host": b"127.0.0.1:8000"}, True),
        (True, {b"host": b"LOCALHOST"}, True),
        (True, {b"host": b"[::1]:8000"}, True),
        (True, {}, True),
        (False, {b"host": b"127.0.0.1"}, False),
        (True, {b"host": b"evil.example:8000"}, False),
        (True, {b"host": b"127.0.0.1.evil.example"}, False),
        (True, {b"host": b"localhost.evil.example"}, False),
        (True, {b"host": b"localhost", b"x-forwarded-for": b"127.0.0.1"}, False),
        (True, {b"host": b"localhost", b"forwarded": b"for=127.0.0.1"}, False),
    ],
)
def test_who_is_local(peer: bool, headers: dict[bytes, bytes], want: bool) -> None:
    """A page whose name was rebound to this machine is not, nor is anybody behind a proxy."""
    request = Request(b"GET", b"/admin/engines", tuple(headers.items()), b"", peer_is_local=peer)
    assert is_local(request) is want


def test_the_log_is_bounded() -> None:
    """The oldest go; those that are found are the newest first."""
    log = ExplainLog(ExplainConfig(keep=3, header=ExplainHeader.NEVER), lambda: 7.0)
    for number in range(10):
        log.add(Record(request_id=RequestId(f"r{number % 5}"), endpoint="/", started_s=float(number)))
    assert [kept.record.started_s for kept in log.latest(9)] == [9.0, 8.0, 7.0]
    assert log.find("r1") == []
    assert log.oldest_s == 7.0


@pytest.mark.parametrize("path", ["/admin", "/admin/engines", "/admin/explain", "/admin/explain/r-1"])
async def test_admin_pages_are_for_this_machine(path: str) -> None:
    """A page in the operator's browser, at a name that was made to point here, learns nothing."""
    engine = Engine()
    async with scripted(engine.script) as a, running(configured(a.port)) as (router, port):
        await becomes(router, READY)
        await ask(port, post("r-1"))
        text = await ask(
            port, f"GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n".encode()
        )
    assert text.startswith(b"HTTP/1.1 403 ")
    assert b"local_only" in text


async def test_the_command_prints_what_the_router_says() -> None:
    """`anbar explain ID`, the list without one, JSON on demand, the router's own words for an unknown id."""
    engine = Engine()
    async with scripted(engine.script) as a, running(configured(a.port)) as (router, port):
        await becomes(router, READY)
        await ask(port, post("a/b c"))
        await ask(port, post("a/b"))
        await ended(router, "a/b")
        url = f"http://127.0.0.1:{port}"
        text = await explanation(url, "a/b", as_json=False)
        page = json.loads(await explanation(url, "a/b", as_json=True))
        listed = await explanation(url, None, as_json=False)
        with pytest.raises(StackError, match="No request 'a/c' is among the last 1000"):
            await explanation(url, "a/c", as_json=False)
    assert text.startswith("request a/b, routed at ")
    assert "that is the whole answer" in text
    assert page["requests"][0]["chosen"] == "e0"
    assert len(listed.splitlines()) == 3
