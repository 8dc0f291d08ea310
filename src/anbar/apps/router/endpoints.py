"""Which path does what. The routed endpoints start a flow; the others are answered at once from memory."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes

from anbar import __version__
from anbar.adapters.http.message import JSON_TYPE, Answer, error_answer, json_answer
from anbar.adapters.http.openai import Endpoint
from anbar.adapters.http.server import Exchange
from anbar.apps.router.admin_calls import ADMIN_CALLS
from anbar.apps.router.cost_page import costs_page
from anbar.apps.router.discovery import Discovery
from anbar.apps.router.discovery_page import discovery_page
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.engine_admin import PREFIX as ENGINES
from anbar.apps.router.engine_admin import EngineAdmin
from anbar.apps.router.explain_endpoint import ExplainEndpoint
from anbar.apps.router.failures import internal
from anbar.apps.router.flow import Flow
from anbar.apps.router.headers import id_headers, request_id
from anbar.apps.router.load import EngineLoad
from anbar.apps.router.local import must_be_local
from anbar.apps.router.naming import Naming
from anbar.apps.router.openapi import rendered
from anbar.apps.router.readiness import ready_page
from anbar.apps.router.reload import ReloadState
from anbar.apps.router.standing import Standing
from anbar.apps.router.together import Together
from anbar.core.errors import RequestError
from anbar.core.fleet import EngineState
from anbar.core.outcome import Emit, SupervisorCaught
from anbar.core.refusals import unknown_model
from anbar.route import PrefixIndex

_MODEL = b"/v1/models/"
_EXPLAIN = b"/admin/explain/"
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class Life(Enum):
    """Whether the router takes on work."""

    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True)
class RouterState:
    """What changes in a router's life; shared by the endpoints and the shutdown."""

    life: Life = Life.SERVING


@dataclass(frozen=True, slots=True)
class EndpointParts:
    """What the endpoints answer from."""

    flow: Flow
    fleet: Fleet
    index: PrefixIndex
    state: RouterState
    render_metrics: Callable[[], bytes]
    emit: Emit
    explain: ExplainEndpoint
    reload: ReloadState
    naming: Naming
    standing: Standing
    discovery: Discovery
    on_drain: Callable[[Engine], None]
    """Hears of each engine that a call has drained, or ended to drain."""
    together: Together | None
    """Where there are other routers."""


class Endpoints:
    """The handler of the HTTP server."""

    def __init__(self, parts: EndpointParts) -> None:
        self._parts = parts
        self._engine_admin = EngineAdmin(parts.fleet, parts.emit, parts.on_drain)
        self._routed = {endpoint.value.encode(): endpoint for endpoint in Endpoint}
        self._answered: dict[bytes, Callable[[Exchange], Answer]] = {
            b"/v1/models": self._models,
            b"/health": self._health,
            b"/ready": self._ready,
            b"/metrics": self._metrics,
            b"/admin": self._admin,
            b"/admin/engines": self._engines,
            b"/admin/explain": parts.explain.last,
            b"/admin/config": self._config,
            b"/admin/discovery": self._discovery,
            b"/version": self._version,
            b"/openapi.json": self._openapi,
        }

    def handle(self, exchange: Exchange) -> None:
        """Serve one exchange, now or in a task."""
        request = exchange.request
        path = request.path
        routed = self._routed.get(path)
        if routed is not None and request.method == b"POST":
            self._parts.flow.start(exchange, routed)
            return
        try:
            answer = self._answer(exchange, path, routed)
        except RequestError as error:
            answer = error_answer(error)
        except Exception as error:  # noqa: BLE001 - the supervisor of a cold endpoint
            self._parts.emit(SupervisorCaught.of("endpoint", error))
            answer = internal(())
        together = self._parts.together
        if together is not None and together.takes(exchange):
            together.start(exchange, answer, _reply)
        else:
            _reply(exchange, answer)

    def _answer(self, exchange: Exchange, path: bytes, routed: Endpoint | None) -> Answer:
        if path.startswith(ENGINES):
            return self._engine_admin.answer(exchange.request)
        answered = self._answered.get(path)
        if answered is None and path.startswith(_MODEL) and path != _MODEL:
            answered = self._model
        if answered is None and path.startswith(_EXPLAIN) and path != _EXPLAIN:
            answered = self._parts.explain.one
        method = exchange.request.method
        if answered is not None and method in (b"GET", b"HEAD"):
            return answered(exchange)
        if answered is None and routed is None:
            shown = path[:200].decode("ascii", "replace")
            raise RequestError(f"There is no {shown} here.", status=404, code="not_found")
        allowed = b"POST" if routed is not None else b"GET, HEAD"
        wrong = RequestError(
            f"{method.decode()} is not allowed here, {allowed.decode()} is.",
            status=405,
            code="method_not_allowed",
        )
        return error_answer(wrong, ((b"allow", allowed),))

    def _models(self, exchange: Exchange) -> Answer:
        """All models of the ready engines, each once, as the first engine describes it."""
        return json_answer(200, {"object": "list", "data": list(self._parts.naming.cards().values())})

    def _model(self, exchange: Exchange) -> Answer:
        """One model's card. A name may contain slashes, and clients may send them as `%2F`."""
        name = unquote_to_bytes(exchange.request.path[len(_MODEL) :]).decode("utf-8", "replace")
        card = self._parts.naming.cards().get(name)
        if card is None:
            raise unknown_model(name)
        return json_answer(200, card)

    def _health(self, exchange: Exchange) -> Answer:
        return json_answer(200, {"status": "alive"})

    def _ready(self, exchange: Exchange) -> Answer:
        parts = self._parts
        draining = parts.state.life is Life.DRAINING
        awaited = parts.discovery.awaited()
        return ready_page(parts.fleet, parts.naming.targets, parts.standing, draining, awaited)

    def _metrics(self, exchange: Exchange) -> Answer:
        return Answer(200, self._parts.render_metrics(), (_METRICS_TYPE,))

    def _admin(self, exchange: Exchange) -> Answer:
        must_be_local(exchange.request)
        return json_answer(200, {"calls": ADMIN_CALLS})

    def _engines(self, exchange: Exchange) -> Answer:
        must_be_local(exchange.request)
        stats = self._parts.index.stats()
        index = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
        engines = [_describe(engine, self._parts.standing) for engine in self._parts.fleet]
        return json_answer(200, {"engines": engines, "index": index})

    def _config(self, exchange: Exchange) -> Answer:
        must_be_local(exchange.request)
        return json_answer(200, self._parts.reload)

    def _discovery(self, exchange: Exchange) -> Answer:
        must_be_local(exchange.request)
        return json_answer(200, discovery_page(self._parts.discovery))

    def _version(self, exchange: Exchange) -> Answer:
        return json_answer(200, {"version": __version__})

    def _openapi(self, exchange: Exchange) -> Answer:
        return Answer(200, rendered(), (JSON_TYPE,))


def _reply(exchange: Exchange, answer: Answer) -> None:
    ids = id_headers(request_id(exchange.request.headers))
    exchange.answer(Answer(answer.status, answer.body, (*answer.headers, *ids)))


def _describe(engine: Engine, standing: Standing) -> dict[str, object]:
    load, kv = engine.load, engine.kv
    return {
        "id": engine.id,
        "url": engine.url,
        "state": standing.state(engine).value,
        "role": engine.role.value,
        "breaker": engine.breaker.state.value,
        "reason": standing.reason(engine),
        "last_error": engine.health.last_error,
        "models": sorted(engine.facts.names),
        "version": engine.facts.version,
        "max_model_len": engine.facts.max_model_len,
        "block_size": engine.facts.block_size,
        "tokenizer": engine.tokenizer_note,
        "tokens": engine.tokens.value,
        "degraded": engine.degraded() if engine.health.state is EngineState.READY else "",
        "adapters": {
            "loaded": sorted(engine.adapters.loaded),
            "running": sorted(engine.adapters.running),
            "slots": engine.adapters.told.num_slots,
        },
        "in_flight": load.num_in_flight,
        "in_flight_elsewhere": load.num_elsewhere,
        "queued_prefill_tokens": load.queued_prefill_tokens,
        "decoding": load.num_decoding,
        "reported": _describe_reported(load),
        "costs": costs_page(engine.costs),
        "self_check": _describe_check(engine),
        "kv_events": {
            "address": kv.address,
            "connected": kv.status.connected,
            "complete": kv.status.complete,
            "partial": kv.status.partial,
            "last_sequence": kv.seq,
            "lag_s": round(kv.lag_s, 6),
            "waiting": kv.status.num_waiting,
            "dropped": kv.status.num_dropped,
            "gaps": kv.status.num_gaps,
            "restarts": kv.status.num_restarts,
            "lost": kv.status.num_lost,
            "malformed": kv.status.num_malformed,
            "replays": kv.status.num_replays,
            "failed_replays": kv.status.num_failed_replays,
            "errors": kv.status.num_errors,
        },
    }


def _describe_reported(load: EngineLoad) -> dict[str, object]:
    """What the engine says of its load, and what the router makes of the difference."""
    told = load.reported
    return {
        "running": told.num_running if told is not None else None,
        "waiting": told.num_waiting if told is not None else None,
        "strangers": load.strangers.total,
        "ghosts": load.num_ghosts,
    }


def _describe_check(engine: Engine) -> dict[str, object]:
    """What the router's comparison with the engine's own counts has found."""
    checks, drift = engine.checks, engine.drift
    return {
        "trust": drift.trust.value,
        "share_absent": round(drift.share, 3),
        "compared": drift.num_in_window,
        "agreed": checks.agreed,
        "over": checks.over,
        "unknown_content": checks.unknown_content,
        "evicted": checks.evicted,
        "rebuilds": checks.rebuilds,
        "usage_option": engine.usage.value,
    }
