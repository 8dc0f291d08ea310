"""The router as a whole in front of scripted engines: probes, endpoints, drain, and configuration errors."""

import asyncio
import io
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted import Connection, ask, no_more_descriptors, post, scripted
from tests.ports import free_port
from tests.waiting import PATIENCE_S, settled, until, within

from anbar.apps.clock import SystemClock
from anbar.apps.router.app import Router
from anbar.apps.router.endpoints import Life
from anbar.apps.router.monitor import AttachedEngine
from anbar.apps.router.serve import allow_descriptors
from anbar.config.models import AnbarConfig
from anbar.core.cost import PrefillWork
from anbar.core.errors import ConfigError, StackError
from anbar.core.fleet import EngineState
from anbar.route.breaker import BreakerState, Signal
from anbar.route.costs import Finished

MODELS = {"data": [{"id": "m", "root": "m", "parent": None, "max_model_len": 100, "created": 5}]}
PAGES: Mapping[str, object] = {
    "/health": {},
    "/v1/models": MODELS,
    "/version": {"version": "0.32.0"},
    "/kv_event_sources": {},
}
METRICS = b'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="9"} 1.0\n'


class Pages:
    """A scripted engine's status pages; `status` makes all of them fail, `hang` makes them hang. Completions
    take until `computed`."""

    def __init__(self, pages: Mapping[str, object] = PAGES) -> None:
        self.pages = dict(pages)
        self.metrics = METRICS
        self.headers = b""
        self.status = b"200 OK"
        self.hang = False
        self.computed = asyncio.Event()

    async def script(self, connection: Connection) -> None:
        path = connection.head.split(b" ")[1].partition(b"?")[0].decode()
        if self.hang:
            await connection.gone()
            return
        if path == "/v1/completions":
            body, status = b'{"choices":[]}', b"200 OK"
            await self.computed.wait()
        elif path == "/metrics":
            body, status = self.metrics, self.status
        else:
            found = self.pages.get(path)
            body = json.dumps(found).encode()
            status = self.status if found is not None else b"404 Not Found"
        head = b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n" % (status, self.headers, len(body))
        await connection.send(head + body)


def configured(*ports: int, **router: Any) -> AnbarConfig:
    engines = [{"name": f"e{i}", "url": f"http://127.0.0.1:{port}"} for i, port in enumerate(ports)]
    settings = {"port": free_port(), "health_interval_s": 0.03, **router}
    settings |= {"connect_timeout_s": PATIENCE_S, "drain_timeout_s": PATIENCE_S}
    return AnbarConfig.model_validate({"engines": engines, "router": settings})


@asynccontextmanager
async def running(config: AnbarConfig) -> AsyncIterator[tuple[Router, int]]:
    router = Router(config, {}, io.BytesIO())
    port = await router.start()
    try:
        yield router, port
    finally:
        await router.stop()


async def becomes(router: Router, *states: EngineState) -> None:
    await until(lambda: tuple(engine.health.state for engine in router.fleet) == states)


async def get(port: int, path: str, method: str = "GET", extra: str = "") -> tuple[int, Any, bytes]:
    text = await ask(
        port, f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{extra}\r\n".encode()
    )
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body[:1] == b"{" else body, head


async def test_engine_is_discovered_and_described() -> None:
    """A good probe: READY, with its models, context and block size; all pages of the router say so."""
    async with scripted(Pages().script) as engine, running(configured(engine.port)) as (router, port):
        await becomes(router, EngineState.READY)
        facts = router.fleet["e0"].facts
        assert (facts.names, facts.max_model_len, facts.block_size) == ({"m"}, 100, 16)
        assert (await get(port, "/v1/models"))[1] == {"object": "list", "data": MODELS["data"]}
        assert (await get(port, "/ready"))[0] == 200
        status, page, _ = await get(port, "/admin/engines")
        (described,) = page["engines"]
        assert (status, described["state"], described["models"]) == (200, "ready", ["m"])
        assert described["degraded"] == "no_kv_events"
        status, text, _ = await get(port, "/metrics")
        assert b'anbar_router_engine_state{engine="e0",state="ready"} 1.0' in text


async def test_card_of_one_model() -> None:
    """A model's card by its name, whose slash may be escaped or not; HEAD too, and nothing under the card."""
    card = {"id": "org/مدل", "root": "m", "parent": None, "max_model_len": 100, "created": 5}
    pages = Pages({**PAGES, "/v1/models": {"data": [card]}})
    async with scripted(pages.script) as engine, running(configured(engine.port)) as (router, port):
        await becomes(router, EngineState.READY)
        for name in ("org/%D9%85%D8%AF%D9%84", "org%2F%D9%85%D8%AF%D9%84?x=1"):
            assert (await get(port, f"/v1/models/{name}"))[:2] == (200, card)
            assert (await get(port, f"/v1/models/{name}", method="HEAD"))[:2] == (200, b"")
        for name in ("org", "org/", "org/%D9%85%D8%AF%D9%84/x", "%FF"):
            status, page, _ = await get(port, f"/v1/models/{name}")
            assert (status, page["error"]["code"]) == (404, "model_not_found")


async def test_before_any_engine_is_ready() -> None:
    """Nothing listens at the engine's address: alive, not ready and why, no models, 503 for requests."""
    async with running(configured(free_port())) as (router, port):
        await until(lambda: "no connection" in router.fleet["e0"].health.reason)
        assert (await get(port, "/health"))[0] == 200
        status, page, _ = await get(port, "/ready")
        assert (status, page["reason"]) == (503, "no engine is ready")
        assert page["others"]["e0"].startswith("starting: /health: no connection")
        assert (await get(port, "/v1/models"))[1]["data"] == []
        body = b'{"model":"m","prompt":"x"}'
        text = await ask(
            port,
            post(body),
        )
        assert text.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in text


async def test_engine_that_dies_and_comes_back() -> None:
    """Its port is closed: UNHEALTHY within a probe; something answers there again: READY within a probe. What
    was learned of its speed is forgotten, for it may be another one."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted(Pages().script))
        router, _ = await stack.enter_async_context(running(configured(engine.port)))
        await becomes(router, EngineState.READY)
        costs = router.fleet["e0"].costs
        costs.observe(Finished(PrefillWork.of(1000, 0), 0.5))
        assert costs.learner.num_samples == 1
        await engine.stop()
        await becomes(router, EngineState.UNHEALTHY)
        await until(lambda: "no connection" in router.fleet["e0"].health.reason)
        await engine.start()
        await becomes(router, EngineState.READY)
        assert costs.learner.num_samples == 0


async def test_a_good_look_half_opens_a_breaker() -> None:
    """An engine that failed too often is tried again without a request having to be risked on it before."""
    async with (
        scripted(Pages().script) as server,
        running(configured(server.port, breaker_pause_s=0.01)) as (router, _),
    ):
        await becomes(router, EngineState.READY)
        breaker = router.fleet["e0"].breaker
        breaker.end(breaker.begin(), Signal.STALLED, SystemClock().now_s())
        await until(lambda: breaker.state is BreakerState.HALF_OPEN)


async def test_looks_are_cheap() -> None:
    """An engine is asked for pages, never for a generation, and once it is known for two short ones a look.
    One that was away gets requests from the first look on that it answers."""
    pages = Pages()
    async with (
        scripted(pages.script) as server,
        running(configured(server.port, load_check_interval_s=0)) as (router, _),
    ):
        await becomes(router, EngineState.READY)
        num_first = len(server.heads)
        await until(lambda: len(server.heads) >= num_first + 8)
        known = {head.split(b" HTTP")[0] for head in server.heads[num_first:]}
        pages.status = b"500 Internal Server Error"
        await becomes(router, EngineState.UNHEALTHY)
        pages.status = b"200 OK"
        num_away = len(server.heads)
        await becomes(router, EngineState.READY)
        looks = [head for head in server.heads[num_away:] if head.startswith(b"GET /version ")]
    assert known == {b"GET /health", b"GET /v1/models"}
    assert {head.partition(b" ")[0] for head in server.heads} == {b"GET"}
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("pages", "metrics", "follows"),
    [
        ({"/kv_event_sources": {}}, METRICS, False),
        ({}, METRICS.replace(b"True", b"False"), False),
        ({}, METRICS.replace(b"16", b"32"), True),
    ],
    ids=["no events", "no prefix cache", "other blocks"],
)
async def test_engine_that_comes_back_another(
    tmp_path: Path, pages: Mapping[str, object], metrics: bytes, follows: bool
) -> None:
    """What the engine published before is followed no longer once it is ready again and publishes nothing,
    or has no cache; one with other blocks is followed from the beginning."""
    source = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{tmp_path}/events"}
    served = Pages({**PAGES, "/kv_event_sources": {"0": source}})
    async with scripted(served.script) as end, running(configured(end.port)) as (router, _):
        engine = router.fleet["e0"]
        await becomes(router, EngineState.READY)
        assert engine.kv.address == source["endpoint"]
        before = engine.kv.status
        served.status = b"500 Broken"
        await becomes(router, EngineState.UNHEALTHY)
        served.pages.update(pages)
        served.metrics = metrics
        served.status = b"200 OK"
        await becomes(router, EngineState.READY)
        assert engine.kv.address == (source["endpoint"] if follows else "")
        assert engine.kv.status is not before
        assert (engine.degraded() == "kv_events_incomplete") is follows


async def test_events_that_cannot_be_taken_in_are_told() -> None:
    """A defect while an engine's events are taken in is in the log and in the metrics; what its stream has
    seen of trouble is in /admin/engines."""
    sink = io.BytesIO()
    router = Router(configured(free_port()), {}, sink)
    port = await router.start()
    engine = router.fleet["e0"]
    router._feed.on_error(engine.id, KeyError("hash"))
    engine.kv.status.num_errors, engine.kv.status.num_malformed = 1, 2
    (described,) = (await get(port, "/admin/engines"))[1]["engines"]
    metrics = (await get(port, "/metrics"))[1]
    await router.stop()
    assert (described["kv_events"]["errors"], described["kv_events"]["malformed"]) == (1, 2)
    assert b'anbar_router_defects_total{error="KeyError",where="kv"} 1.0' in metrics
    assert b'"where":"kv","error":"KeyError"' in sink.getvalue()


async def test_probes_without_file_descriptors_blame_no_engine() -> None:
    """The router may open no more files: its engines stay READY, and the log tells of it."""
    sink = io.BytesIO()
    pages = Pages()
    pages.headers = b"connection: close\r\n"
    async with scripted(pages.script) as end:
        router = Router(configured(end.port, health_interval_s=3600.0), {}, sink)
        await router.start()
        await becomes(router, EngineState.READY)
        assert await settled(lambda: len(end.open)) == 0  # no connection whose end would free descriptors
        with no_more_descriptors():
            router._monitor.watch(router.fleet["e0"], AttachedEngine())
            await until(lambda: b"NoDescriptor" in sink.getvalue())
        assert router.fleet["e0"].health.state is EngineState.READY
        await router.stop()
    assert b'"where":"probe","error":"NoDescriptor"' in sink.getvalue()


def test_router_may_open_as_many_files_as_it_can() -> None:
    """A soft limit below the hard one is raised to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_hanging_engine_delays_no_other_probe() -> None:
    """One engine accepts and never answers: the other is READY at once and stays so."""
    hanging = Pages()
    hanging.hang = True
    async with (
        scripted(hanging.script) as a,
        scripted(Pages().script) as b,
        running(configured(a.port, b.port)) as (router, _),
    ):
        await becomes(router, EngineState.STARTING, EngineState.READY)


@pytest.mark.parametrize(
    ("status", "pages", "reason"),
    [
        (b"401 Unauthorized", PAGES, "set api_key_env or api_key_file"),
        (b"500 Broken", PAGES, "answered 500"),
        (b"200 OK", {**PAGES, "/v1/models": {"data": []}}, "lists no model"),
        (b"200 OK", {**PAGES, "/v1/models": {"data": 5}}, "/v1/models"),
    ],
)
async def test_wrong_probes_say_what_is_wrong(
    status: bytes, pages: Mapping[str, object], reason: str
) -> None:
    """An engine that refuses the key, fails, or lists nothing is not READY, and /ready says why."""
    wrong = Pages(pages)
    wrong.status = status
    async with scripted(wrong.script) as engine, running(configured(engine.port)) as (router, _):
        health = router.fleet["e0"].health
        await until(lambda: reason in health.reason)
        assert health.state is EngineState.STARTING


async def test_models_that_change_are_noticed() -> None:
    """An adapter is loaded into a running engine: the next probe makes it known."""
    pages = Pages()
    async with scripted(pages.script) as engine, running(configured(engine.port)) as (router, _):
        await becomes(router, EngineState.READY)
        adapter = {"id": "lora", "root": "/x", "parent": "m"}
        pages.pages["/v1/models"] = {"data": [*MODELS["data"], adapter]}
        await until(lambda: "lora" in router.fleet["e0"].facts.names)
        facts = router.fleet["e0"].facts
        assert (facts.names, facts.adapters, facts.root) == ({"m", "lora"}, {"lora"}, "m")


async def test_other_paths_and_methods() -> None:
    """404 and 405 in OpenAI's shape, HEAD without a body, ids on every answer."""
    async with running(configured(free_port())) as (_, port):
        status, page, head = await get(port, "/nope?x=1")
        assert (status, page["error"]["code"]) == (404, "not_found")
        assert b"x-request-id: " in head
        status, page, head = await get(port, "/v1/completions")
        assert (status, page["error"]["code"]) == (405, "method_not_allowed")
        assert b"allow: POST\r\n" in head
        status, _, head = await get(port, "/health", method="DELETE")
        assert status == 405
        assert b"allow: GET, HEAD\r\n" in head
        status, body, _ = await get(port, "/health", method="HEAD", extra="x-request-id: id-1\r\n")
        assert (status, body) == (200, b"")
        assert (await get(port, "/version"))[1].keys() == {"version"}


async def test_drain_lets_a_request_finish() -> None:
    """While a request runs, the router drains: /ready says so on an open connection, the answer arrives."""
    pages = Pages()
    async with scripted(pages.script) as engine, running(configured(engine.port)) as (router, port):
        await becomes(router, EngineState.READY)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(ask(port, post(b'{"model":"m","prompt":[1]}', b"")))
        await until(lambda: router.fleet["e0"].load.num_in_flight == 1)
        await until(lambda: len(router._server.connections) == 2)
        draining = asyncio.create_task(router.drain())
        await until(lambda: router.state.life is Life.DRAINING)
        writer.write(b"GET /ready HTTP/1.1\r\nhost: r\r\n\r\n")
        text = await within(reader.read())
        assert text.startswith(b"HTTP/1.1 503 ")
        assert b'"reason":"draining"' in text
        writer.transport.abort()
        assert not draining.done()
        pages.computed.set()
        assert (await asking).endswith(b'{"choices":[]}')
        await within(draining)


async def test_taken_port_names_port_and_fix(tmp_path: Path) -> None:
    """Something listens there already: StackError with the port and what to do. Its block log, which may be
    the one of a router that runs there, is not touched."""
    log = tmp_path / "log.jsonl"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        router = Router(configured(free_port(), port=port, record={"path": log}), {}, io.BytesIO())
        with pytest.raises(StackError, match=rf"port {port} .* in use: .* router\.port or --port"):
            await router.start()
        await router.stop()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("engine", "match"),
    [
        ({"name": "a", "launch": {}}, "'a' has no `url`.*anbar up"),
        ({"name": "a", "url": "http://h:1", "api_key_env": "NOT_SET"}, "NOT_SET, which is not set"),
        ({"name": "a", "url": "http://h:1", "api_key_env": "ODD"}, "allowed: one word"),
        (
            {"name": "a", "url": "http://h:1", "api_key_file": "/nonexistent/key"},
            "/nonexistent/key.*cannot be",
        ),
    ],
)
def test_configuration_that_is_no_routers(engine: dict[str, Any], match: str) -> None:
    """Launched engines, missing and odd keys: ConfigError with the engine and the fix, never the key."""
    config = AnbarConfig.model_validate({"engines": [engine]})
    with pytest.raises(ConfigError, match=match) as caught:
        Router(config, {"ODD": "two words"}, io.BytesIO())
    assert "two words" not in str(caught.value)


def test_key_file_is_read(tmp_path: Path) -> None:
    """The file's content without its line end is the key."""
    (tmp_path / "key").write_text("k3y\n")
    config = AnbarConfig.model_validate(
        {"engines": [{"name": "a", "url": "http://h:1", "api_key_file": str(tmp_path / "key")}]}
    )
    assert Router(config, {}, io.BytesIO()).fleet["a"].auth == ((b"authorization", b"Bearer k3y"),)


def test_command_needs_neither_torch_nor_vllm() -> None:
    """With both made unimportable, the command's module and all it needs can be imported."""
    code = "import sys; sys.modules['torch'] = sys.modules['vllm'] = None; import anbar.cli.router"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
