"""What is asked of one router and answered by several: explanations, metrics, and what their indexes hold."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from anbar.adapters.http.message import Answer, error_answer
from anbar.adapters.http.server import Exchange
from anbar.adapters.peers.channel import Channel
from anbar.adapters.peers.connect import Local
from anbar.adapters.vllm.kv_sequence import StreamPosition
from anbar.apps.router.changes import read_message
from anbar.apps.router.engine import Fleet
from anbar.apps.router.exchange import Answers, PeerExchange
from anbar.apps.router.explain_endpoint import MAX_LISTED, ExplainEndpoint
from anbar.apps.router.explain_page import Explanations, LastRequests
from anbar.apps.router.failures import internal
from anbar.apps.router.kv import KvFeed
from anbar.apps.tasks import Tasks
from anbar.core.errors import RequestError, WireError
from anbar.core.ids import EngineId
from anbar.core.outcome import Emit, SupervisorCaught

METRICS, EXPLAIN, LAST, POSITION, SNAPSHOT = "metrics", "explain", "last", "position", "snapshot"
POSITION_S = 2.0
"""How long an engine waits to be told which sibling knows it."""
SNAPSHOT_S = 10.0
_EXPLAIN_PATH = b"/admin/explain"
_NO_METRICS = RequestError(
    "The workers' parent does not answer: one worker's own numbers would look as if all had begun anew.",
    status=503,
    kind="server_error",
    code="no_metrics",
)
_encode = msgspec.msgpack.encode
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Own:
    """What this router answers others from."""

    fleet: Fleet
    feed: KvFeed
    explain: ExplainEndpoint
    render_metrics: Callable[[], bytes]


def answers_of(own: Own) -> Mapping[str, Answers]:
    """By the name of the question."""

    async def metrics(channel: Channel, body: bytes) -> None:
        channel.send(own.render_metrics())

    async def explain(channel: Channel, body: bytes) -> None:
        channel.send(_encode(own.explain.explanations(body.decode(errors="replace"))))

    async def last(channel: Channel, body: bytes) -> None:
        channel.send(_encode(own.explain.latest()))

    async def position(channel: Channel, body: bytes) -> None:
        engine = own.fleet.get(EngineId(body.decode(errors="replace")))
        found = own.feed.position(engine) if engine is not None else None
        channel.send(_encode(None if found is None else (found.seq, found.partial)))

    async def snapshot(channel: Channel, body: bytes) -> None:
        engine = own.fleet.get(EngineId(body.decode(errors="replace")))
        channel.send((own.feed.snapshot(engine) if engine is not None else None) or b"")

    return {METRICS: metrics, EXPLAIN: explain, LAST: last, POSITION: position, SNAPSHOT: snapshot}


class Together:
    """Asks the others. `parent` is the socket of the process that has the metrics of all workers; None, or
    not there: this router has its own."""

    def __init__(self, exchange: PeerExchange, own: Own, parent: Path | None, emit: Emit) -> None:
        self._exchange = exchange
        self._own = own
        self._parent = parent
        self._emit = emit
        self._tasks = Tasks()

    def takes(self, exchange: Exchange) -> bool:
        """Whether others have a part in this request's answer."""
        path, method = exchange.request.path, exchange.request.method
        if method not in (b"GET", b"HEAD"):
            return False
        has_parent = self._parent is not None and self._parent.exists()
        return path.startswith(_EXPLAIN_PATH) or (path == b"/metrics" and has_parent)

    def start(self, exchange: Exchange, own: Answer, reply: Callable[[Exchange, Answer], None]) -> None:
        """Answer it in a task; `own` is what this router alone would say."""

        async def run() -> None:
            try:
                answer = await self._answer(exchange, own) if own.status in (200, 404) else own
            except Exception as error:  # noqa: BLE001 - the supervisor of an answer of several routers
                self._emit(SupervisorCaught.of("endpoint", error))
                answer = internal(())
            reply(exchange, answer)

        exchange.on_gone = self._tasks.start(run()).cancel

    async def stop(self) -> None:
        await self._tasks.give_up()

    async def _answer(self, exchange: Exchange, own: Answer) -> Answer:
        path = exchange.request.path
        if path == b"/metrics":
            return await self._metrics(own)
        if path == _EXPLAIN_PATH:
            return self._own.explain.shown(exchange.request, await self._last())
        page = await self._explanations(self._own.explain.asked(exchange.request))
        return self._own.explain.shown(exchange.request, page) if page.requests else own

    async def _metrics(self, own: Answer) -> Answer:
        assert self._parent is not None, "a router alone is not asked"
        page = await self._exchange.ask(Local(self._parent), METRICS, b"")
        return Answer(200, page, own.headers) if page is not None else error_answer(_NO_METRICS)

    async def _last(self) -> LastRequests:
        own = self._own.explain.latest()
        found = list(own.requests)
        for _, data in await self._exchange.ask_all(LAST, b""):
            found += _read(data, LastRequests, LastRequests(0, [])).requests
        found.sort(key=lambda brief: brief.at, reverse=True)
        return LastRequests(own.kept, found[:MAX_LISTED])

    async def _explanations(self, request_id: str) -> Explanations:
        found = list(self._own.explain.explanations(request_id).requests)
        for _, data in await self._exchange.ask_all(EXPLAIN, request_id.encode()):
            found += _read(data, Explanations, Explanations("", [])).requests
        found.sort(key=lambda one: one.at, reverse=True)
        return Explanations(request_id, found)

    async def snapshot(self, engine: EngineId) -> bytes | None:
        """What the sibling that knows most of an engine knows; None if nobody does: for `KvFeed.join`."""
        asked = self._exchange.addresses()
        body = engine.encode()
        told = await asyncio.gather(*(self._exchange.ask(a, POSITION, body, POSITION_S) for a in asked))
        best: tuple[bool, int, int] | None = None
        for place, data in enumerate(told):
            position = _read_position(data)
            if position is not None:
                rank = (not position.partial, position.seq, place)
                best = rank if best is None else max(best, rank)
        if best is None:
            return None
        return await self._exchange.ask(asked[best[2]], SNAPSHOT, body, SNAPSHOT_S) or None


def _read_position(data: bytes | None) -> StreamPosition | None:
    if data is None:
        return None
    try:
        found = msgspec.msgpack.decode(data, type=tuple[int, bool] | None)
    except msgspec.DecodeError:
        return None
    return None if found is None else StreamPosition(found[0], 0, found[1])


def _read(data: bytes, kind: type[_T], none: _T) -> _T:
    """A peer's page; `none` if it has another form, as another version may."""
    try:
        return read_message(data, kind)
    except WireError:
        return none
