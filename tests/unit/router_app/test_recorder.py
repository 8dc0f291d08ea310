"""The block log of a whole router: what is recorded, of whom, and that no text ever gets out."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from scripted import SSE, Connection, answer, ask, die, scripted
from test_explain import Engine, ended, post
from test_router import becomes, configured, get
from tests.waiting import until, within

from anbar.adapters.telemetry.block_ids import KEY_FILE
from anbar.adapters.telemetry.rotating_file import rotated_files
from anbar.apps.router.app import Router
from anbar.config.models import AnbarConfig
from anbar.core.block_log import BlockLogEntry, BlockLogReader
from anbar.core.errors import StackError
from anbar.core.fleet import EngineState

READY = EngineState.READY


def recording(tmp_path: Path, *ports: int, rate: float = 1.0, **router: Any) -> AnbarConfig:
    record = {"path": tmp_path / "record/blocks.jsonl", "rate": rate}
    config = configured(*ports, record=record, **router)
    return config.model_copy(update={"state_dir": tmp_path / "state"})


async def written(router: Router) -> None:
    """Until all that was handed to the writer is in the file: a stop waits for seconds only."""
    stats = router.recorder.stats
    await until(lambda: stats.num_written + stats.num_failed == stats.num_taken)


def read(tmp_path: Path) -> list[BlockLogEntry]:
    reader = BlockLogReader()
    files = rotated_files(tmp_path / "record/blocks.jsonl")
    found = list(reader.entries(line for file in files for line in file.read_bytes().splitlines()))
    assert reader.num_skipped == 0
    return found


def body(tokens: list[int], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": tokens, "max_tokens": 4, **fields}).encode()


async def record_of(tmp_path: Path, requests: list[bytes], **router: Any) -> list[BlockLogEntry]:
    """What a router records of these requests, one after another."""
    engine = Engine()
    async with scripted(engine.script) as a:
        running = Router(recording(tmp_path, a.port, **router), {}, io.BytesIO())
        port = await running.start()
        try:
            await becomes(running, READY)
            for number, request in enumerate(requests):
                await ask(port, request.replace(b"%id%", b"r-%d" % number))
                await ended(running, f"r-{number}")
            await written(running)
        finally:
            await running.stop()
    return read(tmp_path)


async def test_a_conversation_is_recorded_as_it_was_served(tmp_path: Path) -> None:
    """Two turns: lengths, times and cached tokens of the answers, and ids that share the first turn's full
    blocks (16 tokens each here)."""
    first, second = list(range(40)), list(range(60))
    turns = [post("%id%", "x-session-id: talk-7\r\n", body(tokens)) for tokens in (first, second)]
    one, two = await record_of(tmp_path, turns, policy="round_robin")
    assert (one.input_length, one.output_length, one.cached) == (40, 4, 3)
    assert (one.model, one.scope, one.engine, one.block_size, one.status) == ("m", "default", "e0", 16, 200)
    assert (len(one.hash_ids), len(two.hash_ids)) == (3, 4)
    assert one.hash_ids[:2] == two.hash_ids[:2]
    assert set(one.hash_ids[2:]).isdisjoint(two.hash_ids[2:])
    assert one.session == two.session != ""
    assert one.ttft_ms is not None
    assert one.e2e_ms is not None
    assert 0 <= one.ttft_ms <= one.e2e_ms
    assert two.timestamp - one.timestamp >= 0
    assert one.timestamp > 1_700_000_000_000


async def test_a_conversation_is_known_by_header_user_or_opening(tmp_path: Path) -> None:
    """The header wins; then `user`; else what begins with the same block belongs together."""
    opening, other = list(range(40)), list(range(100, 140))
    talk = "x-session-id: t\r\n"
    requests = [
        post("%id%", talk, body(opening, user="u")),
        post("%id%", talk, body(other)),
        post("%id%", "", body(opening, user="u")),
        post("%id%", "", body(other, user="u")),
        post("%id%", "", body(opening)),
        post("%id%", "", body([*opening[:16], 7, 7, 7])),
        post("%id%", "", body(other)),
    ]
    a, b, c, d, e, f, g = (entry.session for entry in await record_of(tmp_path, requests))
    assert a == b
    assert c == d
    assert e == f
    assert len({a, c, e, g}) == 4


async def test_a_scope_has_one_name(tmp_path: Path) -> None:
    """Tenants of a group share blocks, others do not, and the same prompt has other ids for them; nobody's
    name is in the file."""
    tenants = {
        "header": "x-tenant",
        "by_name": {"ada": {"group": "lab"}, "grace": {"group": "lab"}, "shop": {}},
    }
    engine = Engine()
    async with scripted(engine.script) as a:
        config = AnbarConfig.model_validate(
            {**recording(tmp_path, a.port, policy="round_robin").model_dump(), "tenants": tenants}
        )
        router = Router(config, {}, io.BytesIO())
        port = await router.start()
        try:
            await becomes(router, READY)
            for tenant in ("ada", "grace", "shop"):
                await ask(port, post(tenant, f"x-tenant: {tenant}\r\n", body([1] * 40)))
                await ended(router, tenant)
            await written(router)
            _, page, _ = await get(port, "/metrics")
        finally:
            await router.stop()
    ada, grace, shop = read(tmp_path)
    assert ada.scope == grace.scope != shop.scope
    assert ada.hash_ids == grace.hash_ids
    assert set(ada.hash_ids).isdisjoint(shop.hash_ids)
    assert not {"lab", "shop"} & {ada.scope, shop.scope}
    assert b'anbar_router_scope_requests_total{outcome="ok",scope="other"} 3.0' in page


async def test_conversations_are_sampled_whole(tmp_path: Path) -> None:
    """Of 40 conversations of three turns at a rate of a half, each is there with all its turns or with
    none; the key is fixed, so that the choice is."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / KEY_FILE).write_bytes(b"k" * 32)
    (tmp_path / "state" / KEY_FILE).chmod(0o600)
    talks = [number for _ in range(3) for number in range(40)]
    requests = [post("%id%", f"x-session-id: t{number}\r\n", body([number] * 20)) for number in talks]
    found = await record_of(tmp_path, requests, rate=0.5)
    turns = {entry.session: 0 for entry in found}
    for entry in found:
        turns[entry.session] += 1
    assert set(turns.values()) == {3}
    assert 10 < len(turns) < 30


async def test_a_request_that_failed_is_recorded_with_its_status(tmp_path: Path) -> None:
    """Nothing could serve it: no engine, no time to the first byte; it was demand all the same."""
    engine = Engine()
    async with scripted(engine.script) as a:
        router = Router(recording(tmp_path, a.port), {}, io.BytesIO())
        port = await router.start()
        await becomes(router, READY)
        engine.status = b"500 Internal Server Error"
        await becomes(router, EngineState.UNHEALTHY)
        await ask(port, post("r-1", "", body([1] * 40)))
        await ended(router, "r-1")
        await written(router)
        await router.stop()
    (entry,) = read(tmp_path)
    assert (entry.status, entry.engine, entry.ttft_ms) == (503, "", None)


async def test_an_engine_that_left_meanwhile_is_recorded(tmp_path: Path) -> None:
    """A reload took it out while it answered: the request is counted and recorded all the same."""
    engine = Engine()
    quick, let_go = engine.complete, asyncio.Event()

    async def late(connection: Connection) -> None:
        await let_go.wait()
        await quick(connection)

    engine.complete = late
    async with scripted(engine.script) as a:
        router = Router(recording(tmp_path, a.port), {}, io.BytesIO())
        port = await router.start()
        await becomes(router, READY)
        waiting = asyncio.create_task(ask(port, post("r-1", "", body([1] * 40))))
        await until(lambda: any(e.load.num_in_flight for e in router.fleet))
        (served_by,) = router.fleet
        router.fleet.drop(served_by)
        let_go.set()
        await within(waiting)
        await ended(router, "r-1")
        router.fleet.put(served_by)
        await written(router)
        await router.stop()
    (entry,) = read(tmp_path)
    assert (entry.status, entry.engine, len(entry.hash_ids)) == (200, "e0", 3)


async def test_nothing_is_kept_of_a_prompt_when_the_request_is_over(tmp_path: Path) -> None:
    """Explanations live on; they must not keep the tokens that the record needed."""
    engine = Engine()
    async with scripted(engine.script) as a:
        router = Router(recording(tmp_path, a.port), {}, io.BytesIO())
        port = await router.start()
        await becomes(router, READY)
        await ask(port, post("r-1"))
        await ended(router, "r-1")
        (kept,) = router.explain.find("r-1")
        await router.stop()
    assert kept.record.pending is None


async def test_a_second_router_with_the_same_file_does_not_start(tmp_path: Path) -> None:
    """Instead of rotating the first one's lines away."""
    engine = Engine()
    async with scripted(engine.script) as a:
        first = Router(recording(tmp_path, a.port), {}, io.BytesIO())
        await first.start()
        second = Router(recording(tmp_path, a.port), {}, io.BytesIO())
        with pytest.raises(StackError, match="written by another process"):
            await second.start()
        await second.stop()
        await first.stop()


def all_files(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


SECRETS = (
    *(b"zanzibar", b"424242", b"hush-key", b"cookie-crumb", b"shalimar", b"person-9", b"salt-and-pepper"),
    *(b"outspoken", b"twice-told", b"engine-room"),
)


async def say(connection: Connection) -> None:
    """An answer with a text, whole or as a stream that breaks off."""
    usage = {"prompt_tokens": 40, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    whole = json.dumps({"choices": [{"index": 0, "text": "outspoken"}], "usage": usage}).encode()
    if b'"stream": true' not in connection.body:
        await answer(whole)(connection)
        return
    await connection.send(SSE)
    await connection.send_chunk(b"data: " + whole + b"\n\n")
    await die(connection)


async def test_no_text_key_or_header_is_ever_written(tmp_path: Path) -> None:
    """Requests that are served, refused, broken and unknown, with secrets in every field and header, in the
    engine's answers, whole, streamed and refusing, and in the engine's key: none of the secrets is in the
    log, the metrics, the explanations, the admin pages or any file the router left."""
    log = io.BytesIO()
    engine = Engine()
    secret_headers = (
        "authorization: Bearer hush-key\r\ncookie: c=cookie-crumb\r\nx-custom: shalimar\r\n"
        "x-session-id: person-9\r\nx-anbar-explain: 1\r\nidempotency-key: twice-told\r\n"
    )
    fields: dict[str, Any] = {"user": "person-9", "cache_salt": "salt-and-pepper"}
    bodies = [
        body([424242] * 40, **fields),
        json.dumps({"model": "m", "prompt": "zanzibar " * 30, **fields}).encode(),
        body([424242] * 41, stream=True, **fields),
        json.dumps({"model": "zanzibar", "prompt": "zanzibar", **fields}).encode(),
        json.dumps({"model": "m", "prompt": {"zanzibar": 1}, **fields}).encode(),
        b'{"model": "m", "prompt": "zanzibar',
    ]
    async with scripted(engine.script) as a:
        config = recording(tmp_path, a.port, client_kv_fields="allow")
        entry = config.engines[0].model_copy(update={"api_key_env": "KEY"})
        router = Router(config.model_copy(update={"engines": (entry,)}), {"KEY": "engine-room"}, log)
        port = await router.start()
        await becomes(router, READY)
        engine.complete = say
        for number, sent in enumerate(bodies):
            headers = secret_headers.replace("twice-told", f"twice-told-{number}")
            reply = await ask(port, post(f"r-{number}", headers, sent))
            assert (b"outspoken" in reply) == (number < 3)
        engine.complete = answer(b'{"error": {"message": "outspoken zanzibar"}}', b"400 Bad Request")
        reply = await ask(port, post("r-8", secret_headers.replace("told", "told-8"), bodies[0]))
        assert b"outspoken" in reply
        assert a.heads[-1].count(b"engine-room") == 1
        engine.complete = die
        await ask(port, post("r-9", secret_headers, bodies[0]))
        await ended(router, "r-9")
        pages = [
            (await get(port, path))[1]
            for path in ("/metrics", "/admin/engines", "/admin/explain", "/admin/explain/r-0")
        ]
        texts = [(await get(port, f"/admin/explain/r-{number}?format=text"))[1] for number in (0, 1, 2, 8, 9)]
        await written(router)
        await router.stop()
    left = all_files(tmp_path)
    shown = json.dumps([str(page) for page in (*pages, *texts)]).encode()
    everything = log.getvalue() + shown + left
    assert b'"event":"request"' in log.getvalue()
    assert b"hash_ids" in left
    assert b"r-9" in shown
    assert [secret for secret in SECRETS if secret in everything] == []
