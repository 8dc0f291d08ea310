"""Engines that answer by script, and a router's data path in front of them, on real loopback sockets."""

import asyncio
import gc
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from tests.ports import free_port
from tests.waiting import until, within

from anbar.adapters.http.limits import ServerLimits, UpstreamLimits
from anbar.adapters.http.openai import ClientKv, Endpoint
from anbar.adapters.http.server import HttpServer
from anbar.adapters.http.upstream import Endpoint as Address
from anbar.adapters.http.upstream import UpstreamPool
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, EngineFacts, Fleet
from anbar.apps.router.explain import ExplainLog
from anbar.apps.router.flow import Flow, FlowParts
from anbar.apps.router.handover import Handover, HandoverParts, SplitSetup
from anbar.apps.router.health import Health
from anbar.apps.router.idempotency import Idempotency, IdempotencyConfig
from anbar.apps.router.kv import KvFeed
from anbar.apps.router.naming import Naming
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.recorder import Recorder
from anbar.apps.router.self_check import SelfCheck
from anbar.apps.router.standing import Standing
from anbar.config.models import ExplainConfig
from anbar.config.record import RecordConfig
from anbar.config.split import SplitVia
from anbar.core.clock import ManualClock
from anbar.core.errors import NoEngine
from anbar.core.fleet import EngineState, EngineView, Prediction, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import Event, RequestFinished
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.core.request import RouteQuery
from anbar.route import CostGroup, Placements, PrefixIndex, Sight
from anbar.route.admission import AdmissionConfig
from anbar.route.filters import in_group
from anbar.route.retry_budget import RetryBudget, RetryConfig
from anbar.route.split import SplitRule
from anbar.route.targets import Targets

LIMITS = UpstreamLimits(
    connect_timeout_s=60.0, first_byte_timeout_s=60.0, idle_timeout_s=60.0, keep_idle_s=60.0
)
"""No stall of the machine takes so long."""
RETRIES = RetryConfig()
ADMISSION = AdmissionConfig()
IMPATIENT = replace(LIMITS, first_byte_timeout_s=0.1)
"""For engines that never answer."""
AS_NAMED = Targets({})
"""No name stands for another."""
SERVER_LIMITS = ServerLimits(header_timeout_s=60.0, linger_s=60.0)
SSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"

Script = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    """One connection to a scripted engine, with the request that came on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes = b""
    body: bytes = b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def gone(self) -> None:
        """Until the router closes the connection."""
        while await self.reader.read(1000):
            pass


def answer(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> Script:
    """Answer each request with a JSON body."""

    async def script(connection: Connection) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            status,
            len(body),
        )
        await connection.send(head + extra + b"\r\n" + body)

    return script


async def die(connection: Connection) -> None:
    """Close without an answer."""
    connection.writer.transport.abort()


async def hang(connection: Connection) -> None:
    """Never answer."""
    await connection.gone()


@dataclass
class ScriptedEngine:
    """Answers by `script`, which may be replaced; keeps what it saw."""

    script: Script
    port: int
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    server: asyncio.Server | None = None
    open: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)
    """Connections."""
    failures: list[BaseException] = field(default_factory=list)
    """Of the script."""

    async def start(self) -> None:
        """Listen on `port`."""
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self.server is not None:
            self.server.close()
        for task, writer in self.open.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self.open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self.open[task] = writer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self.open[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failures.append(failure)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                connection = Connection(reader, writer)
                connection.head = await reader.readuntil(b"\r\n\r\n")
                for line in connection.head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        connection.body = await reader.readexactly(int(line[15:]))
                self.heads.append(connection.head)
                self.bodies.append(connection.body)
                await self.script(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[ScriptedEngine]:
    """A running scripted engine."""
    engine = ScriptedEngine(script, free_port())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
    for failure in engine.failures:
        raise failure


class InOrder:
    """A policy that tries engines in the order of the fleet and predicts a match it was told."""

    name = "in_order"
    sight = Sight.CACHES

    def __init__(self, num_predicted: int = 0, match: PrefixMatch | None = None) -> None:
        self.match = match or PrefixMatch(num_predicted, num_predicted, num_predicted)

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        ready = [engine for engine in engines if engine.state is EngineState.READY]
        if not any(in_group(query, engine) for engine in ready):
            raise NoEngine("none is ready")
        target, *rest = [engine.id for engine in ready if in_group(query, engine)]
        meant = [engine.id for engine in engines if in_group(query, engine)]
        predictions = dict.fromkeys(meant, Prediction(self.match))
        return Route(target, tuple(rest), predictions, self.name, "it is the first")


@dataclass
class Path:
    """A router's data path: where it listens, and what it did."""

    port: int
    server: HttpServer
    fleet: Fleet
    flow: Flow
    events: list[Event]
    clock: ManualClock

    async def finished(self) -> RequestFinished:
        """The event of the one request that was made; all accounting is back at zero then."""
        await until(lambda: not self.flow._tasks and self._finished())
        (event,) = self._finished()
        for engine in self.fleet:
            load = engine.load
            assert (load.num_in_flight, load.queued_prefill_tokens, load.num_decoding) == (0, 0, 0)
        return event

    def _finished(self) -> list[RequestFinished]:
        return [event for event in self.events if isinstance(event, RequestFinished)]


def engine_at(port: int, name: str, key: str = "", limits: UpstreamLimits = LIMITS) -> Engine:
    """A ready engine with the model `m`, never probed."""
    health = Health(lambda before, after, reason: None)
    health.probe_succeeded()
    auth = ((b"authorization", b"Bearer " + key.encode()),) if key else ()
    pool = UpstreamPool(Address("127.0.0.1", port), limits)
    facts = EngineFacts(names=frozenset({"m"}), root="m", max_model_len=1000, block_size=16)
    return Engine(
        EngineId(name),
        f"http://127.0.0.1:{port}",
        pool,
        auth,
        health,
        CostGroup(PREFILL_PRIOR).join(),
        facts=facts,
    )


@asynccontextmanager
async def path_to(
    engines: Sequence[Engine],
    num_predicted: int = 0,
    *,
    retries: RetryConfig = RETRIES,
    admission: AdmissionConfig = ADMISSION,
    continues: bool = True,
    total_timeout_s: float = 3600.0,
    targets: Targets = AS_NAMED,
    via: SplitVia = SplitVia.NONE,
) -> AsyncIterator[Path]:
    """A server whose every request flows to `engines`."""
    events: list[Event] = []
    clock = ManualClock()
    fleet = Fleet(engines)
    async with AsyncExitStack() as stack:
        clock = ManualClock()
        index = PrefixIndex()
        caches = Caches(fleet, index, Placements(), clock)
        check = SelfCheck(index, KvFeed(fleet, caches, events.append, clock, time.time), events.append)
        executor = stack.enter_context(ThreadPoolExecutor(1))
        standing = Standing(fleet, clock, max_ejected_share=0.5)
        budget = RetryBudget(retries)
        parts = FlowParts(
            fleet=fleet,
            caches=caches,
            check=check,
            policy=InOrder(num_predicted),
            prompts=Prompts(executor),
            emit=events.append,
            clock=clock,
            client_kv=ClientKv.REFUSE,
            session_header=b"x-session-id",
            recorder=Recorder(RecordConfig(), fleet, lambda: 1_000_000.0),
            naming=Naming(targets, fleet, standing),
            explain=ExplainLog(ExplainConfig(), lambda: 1_000_000.0),
            standing=standing,
            budget=budget,
            idempotency=Idempotency(IdempotencyConfig(), clock),
            admission=admission,
            continues=continues,
            total_timeout_s=total_timeout_s,
            handover=Handover(
                HandoverParts(fleet, caches, check, standing, budget, events.append, clock),
                SplitSetup(via, SplitRule(1), 1000, InOrder(num_predicted), admission),
            ),
        )
        flow = Flow(parts)
        server = HttpServer(lambda exchange: flow.start(exchange, Endpoint.COMPLETIONS), SERVER_LIMITS)
        port = await server.start("127.0.0.1", free_port())
        try:
            yield Path(port, server, fleet, flow, events, clock)
        finally:
            await server.stop()
            await flow.stop()
            await check.stop()
            for engine in engines:
                engine.pool.close()
            await until(lambda: not server.connections)


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Takes all descriptors that the process may have, after lowering their number to something quick."""
    gc.collect()  # what it frees later would be found free
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    taken = [lowest]
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


REQUEST = b'{"model": "m", "prompt": [1, 2, 3, 4, 5],  "max_tokens": 4}'
STREAM = (
    b'{"model": "m", "prompt": [1, 2, 3, 4, 5], "stream": true, "stream_options": {"include_usage": true}}'
)


def post(body: bytes, extra: bytes = b"connection: close\r\n") -> bytes:
    """A request, on a connection that ends with its answer."""
    head = b"POST /v1/completions?x=1 HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n"
    return b"%bcontent-length: %d\r\n%b\r\n%b" % (head, len(body), extra, body)


async def ask(port: int, request: bytes) -> bytes:
    """The whole of what comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await within(reader.read())
    finally:
        writer.transport.abort()
