"""The router as a whole: makes the parts, starts and stops them in order, and obeys signals."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from prometheus_client import CollectorRegistry

from anbar.adapters.http.openai import ClientKv
from anbar.adapters.http.server import HttpServer
from anbar.adapters.keys.files import KEYS_DIR, KeyFiles
from anbar.adapters.telemetry import EventLog, RouterMetrics
from anbar.adapters.telemetry.request_log import LineSink
from anbar.apps.clock import SystemClock
from anbar.apps.looks import look_at
from anbar.apps.router.build import (
    attach,
    cache_setup,
    idempotency,
    made_caches,
    own_record,
    policy_options,
    retry_budget,
    server_limits,
    split_setup,
    targets,
)
from anbar.apps.router.caches import Caches
from anbar.apps.router.changes import Change
from anbar.apps.router.cost_page import cost_gauges
from anbar.apps.router.discovery import Discovery, DiscoveryParts
from anbar.apps.router.drains import DrainWords
from anbar.apps.router.endpoints import EndpointParts, Endpoints, Life, RouterState
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.exchange import ExchangeParts, PeerExchange
from anbar.apps.router.exchange_setup import Addresses, is_shared, listens_at, ports_of, secret_of
from anbar.apps.router.explain import ExplainLog
from anbar.apps.router.explain_endpoint import ExplainEndpoint
from anbar.apps.router.flow import Flow, FlowParts
from anbar.apps.router.handover import Handover, HandoverParts
from anbar.apps.router.headers import id_headers, request_id
from anbar.apps.router.kv import KvFeed
from anbar.apps.router.listening import cannot_listen, check_free
from anbar.apps.router.load_watch import LoadWatch
from anbar.apps.router.members import Members, MembersParts
from anbar.apps.router.monitor import Monitor, MonitorParts
from anbar.apps.router.naming import Naming
from anbar.apps.router.priors import Priors
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.recorder import Recorder
from anbar.apps.router.reload import Reloader, ReloadParts, Source
from anbar.apps.router.retune import retune_engines, retuned
from anbar.apps.router.self_check import SelfCheck
from anbar.apps.router.sharing import PeerShare, SharedLoad, Told
from anbar.apps.router.standing import Standing
from anbar.apps.router.tenancy import Table, Tenancy
from anbar.apps.router.tenant_watch import TenantWatch
from anbar.apps.router.together import Own, Together, answers_of
from anbar.apps.router.token_probe import TokenProbe
from anbar.apps.router.worker import Worker
from anbar.config.load import Loaded
from anbar.config.models import AnbarConfig, EngineConfig, RouterConfig
from anbar.core.clock import Clock
from anbar.core.errors import ConfigError, StackError
from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId
from anbar.core.outcome import EngineGauges, Event, FleetGauges, RequestMalformed
from anbar.route import Policy, make_policy
from anbar.route.admission import AdmissionConfig
from anbar.route.retry_budget import RetryBudget

TOKENIZER_THREADS = 2
"""Tokenizers run outside the interpreter's lock, so a second one helps; more would starve the event loop."""

LOG_DELAY_S = 0.05
"""How long log lines may be gathered before they are written together."""

JUDGED_S = 30.0
"""How long a worker waits for its engines before it listens: a look at one that does not answer takes 5 s,
and the events of one that does may take as long as this to be replayed."""

LISTED_S = 10.0
"""Of this, how long for what lists its engines: time to ask a silent name server twice. Without a list
nothing can be served, and somebody may ask whether the process is alive."""

INTRODUCED_S = 3.0
"""How long a router looks for others before it begins to learn of its engines by itself."""

FAREWELL_S = 1.0
"""How long clients whose answers are cut have to take the last words about that."""


class Router:
    """One router. `environ` is where engines' API keys are looked up, `sink` takes the log.

    Raises ConfigError when the configuration is not one for a router.
    """

    def __init__(
        self,
        config: AnbarConfig,
        environ: Mapping[str, str],
        sink: LineSink,
        source: Source | None = None,
        worker: Worker | None = None,
    ) -> None:
        self._config = config
        self.worker = worker
        """Its place, when it is one of several processes on its port."""
        self._environ = environ
        router = config.router
        clock = SystemClock()
        self._log = EventLog(sink, time.time, _soon)
        self._log.about = b"" if worker is None else b',"worker":%d' % worker.place
        self._metrics = RouterMetrics(CollectorRegistry(), self.look, clock.now_s)
        self._priors = Priors()
        self._told = Told() if is_shared(router, worker) else None
        self._drains = DrainWords(time.time, self._tell)
        self._together: Together | None = None
        self.fleet = Fleet([self._attach(engine) for engine in config.engines if engine.discover is None])
        self._standing = Standing(self.fleet, clock, router.max_ejected_share)
        self.naming = Naming(targets(router, {}), self.fleet, self._standing)
        caches = made_caches(router, self.fleet, clock, self._told)
        self.index = caches.index
        self._executor = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        prompts = Prompts(self._executor)
        self._feed = KvFeed(self.fleet, caches, self.emit, clock, time.time)
        self._check = SelfCheck(self.index, self._feed, self.emit)
        self._monitor = Monitor(
            MonitorParts(
                caches=caches,
                feed=self._feed,
                probe=TokenProbe(prompts, self._executor, self.emit),
                executor=self._executor,
                emit=self.emit,
                clock=clock,
                cache=cache_setup(config),
                interval_s=router.health_interval_s,
            )
        )
        self.discovery = Discovery(config.engines, self._discovery_parts(caches, clock))
        self._loads = LoadWatch(self.fleet, clock, self.emit, router.load_check_interval_s)
        self._reloading: asyncio.Task[None] | None = None
        self.reloader = Reloader(config, self._reload_parts(source))
        budget = retry_budget(router)
        self._idempotency = idempotency(router, clock, worker, self._own_exchange)
        self.explain = ExplainLog(router.explain, time.time)
        self.recorder = Recorder(own_record(router.record, worker), self.fleet, time.time)
        self.handover = self._handover(caches, budget, clock)
        self._tenancy = Tenancy()
        keys = KeyFiles(config.state_dir / KEYS_DIR)
        self._tenants = TenantWatch(keys, self._tenancy, self._log.line, self.emit)
        self.flow = Flow(self._flow_parts(caches, prompts, budget, clock))
        self.state = RouterState()
        self.explanations = ExplainEndpoint(self.explain)
        self.exchange = self._made_exchange(self._told, caches, clock) if self._told is not None else None
        self._server = self._listener()

    def _tell(self, change: Change) -> None:
        if self._told is not None:
            self._told.tell(change)

    def _own_exchange(self) -> PeerExchange:
        assert self.exchange is not None, "workers have one"
        return self.exchange

    def _made_exchange(self, told: Told, caches: Caches, clock: Clock) -> PeerExchange:
        router, worker = self._config.router, self.worker
        secret = secret_of(router)
        port, num_ports = ports_of(router)
        parts = ExchangeParts(
            told=told,
            share=lambda: PeerShare(self.fleet, caches.placements, clock),
            listen=listens_at(router, worker, secret),
            resolve=Addresses(router, worker, secret, self._peer_failed),
            drained=self._drains.all,
            on_drains=lambda word: self._drains.heard(word, self.fleet, self.emit),
            emit=self.emit,
            port=port,
            num_ports=num_ports,
            on_failure=self._peer_failed,
        )
        own = Own(self.fleet, self._feed, self.explanations, self._metrics.render)
        exchange = PeerExchange(parts, {**answers_of(own), **self._idempotency.answers()})
        self._together = Together(exchange, own, worker.parent if worker is not None else None, self.emit)
        self._feed.siblings = self._together.snapshot
        return exchange

    def _peer_failed(self, peer: str, failure: str) -> None:
        self._log.line("peer_failed", {"peer": peer, "error": failure})

    def _handover(self, caches: Caches, budget: RetryBudget, clock: Clock) -> Handover:
        parts = HandoverParts(self.fleet, caches, self._check, self._standing, budget, self.emit, clock)
        return Handover(parts, split_setup(self._config.router, _policy(self._config.router)))

    def _flow_parts(self, caches: Caches, prompts: Prompts, budget: RetryBudget, clock: Clock) -> FlowParts:
        router = self._config.router
        return FlowParts(
            fleet=self.fleet,
            caches=caches,
            check=self._check,
            policy=_policy(router),
            prompts=prompts,
            emit=self.emit,
            clock=clock,
            client_kv=ClientKv(router.client_kv_fields.value),
            session_header=router.session.header.encode(),
            naming=self.naming,
            explain=self.explain,
            standing=self._standing,
            budget=budget,
            idempotency=self._idempotency,
            admission=AdmissionConfig(router.max_waiting, router.slo_ttft_s),
            continues=router.continue_streams,
            total_timeout_s=router.total_timeout_s,
            recorder=self.recorder,
            handover=self.handover,
            awaited=self.discovery.awaited,
            tenancy=self._tenancy,
        )

    def _listener(self) -> HttpServer:
        endpoints = Endpoints(
            EndpointParts(
                self.flow,
                self.fleet,
                self.index,
                self.state,
                self._metrics.render,
                self.emit,
                self.explanations,
                self.reloader.state,
                self.naming,
                self._standing,
                self.discovery,
                self._drains.told,
                self._together,
            )
        )
        return HttpServer(
            endpoints.handle,
            server_limits(self._config.router),
            on_refusal=lambda refusal: self.emit(RequestMalformed(refusal.status)),
            refusal_headers=lambda headers: id_headers(request_id(headers)),
        )

    async def start(self) -> int:
        """Listen and begin to watch the engines; returns the port. Raises StackError when that fails."""
        host, port = self._config.router.host, self._config.router.port
        loop = asyncio.get_running_loop()

        def on_trouble(trouble: str) -> None:
            loop.call_soon_threadsafe(self._record_trouble, trouble)

        if self.worker is None:  # for workers their parent has looked
            check_free(host, port)
        self.recorder.start(self._config.state_dir, on_trouble)
        self._use_tenants(self._config, await self._tenants.read(self._config.tenants))
        self._tenants.start()
        await self._join()
        if self.worker is not None:
            self.discovery.start()
            await self._all_judged()
        try:
            port = await self._server.start(host, port, shared=self.worker is not None)
        except OSError as error:
            raise StackError(cannot_listen(host, port, error)) from error
        if self.worker is not None:
            self.worker.serves.touch()
        else:
            self.discovery.start()
        self._log.line("listening", {"host": host, "port": port, "policy": self._config.router.policy.value})
        self._loads.start()
        self._reloading = asyncio.get_running_loop().create_task(self.reloader.run())
        return port

    async def _join(self) -> None:
        """Begin to tell other routers, and to hear them. Raises StackError."""
        if self.exchange is None:
            return
        try:
            await self.exchange.start()
            await self.exchange.introduced(INTRODUCED_S)
        except OSError as error:
            at = self._config.router.exchange.listen or "a socket for the other workers"
            raise StackError(f"cannot listen for other routers on {at}: {error.strerror or error}") from error

    async def _all_judged(self) -> None:
        """Wait, within reason, until every engine was found and looked at: a worker that starts again gets
        its part of the connections as soon as it listens, and would refuse them while others serve."""
        await _becomes_false(self.discovery.awaited, LISTED_S)
        await _becomes_false(lambda: any(map(_is_unknown, self.fleet)), JUDGED_S - LISTED_S)

    async def _apply(self, config: AnbarConfig) -> None:
        """Put the parts of a configuration that are live into effect. Raises ConfigError, having changed
        nothing."""
        router, before = config.router, self._config
        tenants = await self._tenants.read(config.tenants)
        self._config = config
        try:
            await self.discovery.apply(config.engines)
        except ConfigError:
            self._config = before
            raise
        policy = self.flow.parts.policy
        splits_by = self.handover.setup.policy
        if (router.policy, policy_options(router)) != (before.router.policy, policy_options(before.router)):
            policy = _policy(router)  # a policy that goes on remembers whose turn it is
            splits_by = _policy(router)
        self.handover.setup = split_setup(router, splits_by)
        self.flow.retune(retuned(replace(self.flow.parts, policy=policy), router))
        self._use_tenants(config, tenants)
        self._name_targets()
        self._monitor.interval_s = router.health_interval_s
        self._loads.interval_s = router.load_check_interval_s
        self._server.limits = server_limits(router)
        retune_engines(self.fleet, router)

    def _use_tenants(self, config: AnbarConfig, table: Table | None) -> None:
        self._tenants.use(config.tenants, table)
        self._metrics.of_tenants.named = frozenset(
            config.tenants.scopes if config.tenants is not None else ()
        )

    def _discovery_parts(self, caches: Caches, clock: Clock) -> DiscoveryParts:
        members = Members(
            MembersParts(self.fleet, self._monitor, self._feed, caches, self._attach, self._drains.left)
        )
        return DiscoveryParts(
            members=members,
            look_at=look_at,
            check=self._attach,
            answers=self._answers,
            changed=self._name_targets,
            log=self._log.line,
            emit=self.emit,
            clock=clock,
            wall_s=time.time,
        )

    def _answers(self, engine: EngineId) -> bool:
        known = self.fleet.get(engine)
        return known is not None and known.health.state is EngineState.READY

    def _name_targets(self) -> None:
        """What clients' names stand for, now that the configuration or what was found may be another."""
        self.naming.targets = targets(self._config.router, self.discovery.groups())

    def _attach(self, engine: EngineConfig) -> Engine:
        made = attach(engine, self._config.router, self._environ, self._priors, self.emit)
        made.draining = self._drains.is_drained(made.id)
        if self._told is not None:
            made.load = SharedLoad(made.id, self._told)
        return made

    def _reload_parts(self, source: Source | None) -> ReloadParts:
        config = self._config
        source = source if source is not None else Source(lambda: Loaded(config, {}, None), None, {})
        return ReloadParts(source, self._apply, self._log_reload, self.emit, time.time)

    def _log_reload(self, kind: str, fields: Mapping[str, object]) -> None:
        self._log.generation = self.reloader.state.generation
        self._log.line(kind, fields)

    async def drain(self) -> None:
        """Accept nothing more and let what runs finish, for at most drain_timeout_s."""
        self.state.life = Life.DRAINING
        num_cut = await self._server.drain(self._config.router.drain_timeout_s)
        self._log.line("drained", {"cut": num_cut})

    async def stop(self) -> None:
        """Stop everything at once; what still runs is cut."""
        if self._reloading is not None:
            self._reloading.cancel()
        await self.flow.stop()
        await self._server.drain(FAREWELL_S)
        await self._server.stop()
        if self.exchange is not None and self._together is not None:
            await self._together.stop()
            await self._idempotency.stop()
            await self.exchange.stop()
        await self.discovery.stop()
        await self._tenants.stop()
        await self._loads.stop()
        await self._monitor.stop()
        await self._check.stop()
        await self._feed.stop()
        for engine in self.fleet:
            engine.pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.recorder.stop)
        self._log.flush()

    def emit(self, event: Event) -> None:
        """Where all events go."""
        self._metrics.on(event)
        self._log.on(event)

    def _record_trouble(self, trouble: str) -> None:
        """The block log cannot be written any more, or can again: said once."""
        self._log.line("record_failing" if trouble else "record_works", {"error": trouble} if trouble else {})

    def look(self) -> FleetGauges:
        """The state of the router now."""
        stats = self.index.stats()
        return FleetGauges(
            engines=tuple(_gauges(engine, self._standing) for engine in self.fleet),
            num_index_blocks=stats.num_blocks,
            num_index_parked=stats.num_parked,
            num_index_orphans=stats.num_orphans,
            num_index_rows=stats.num_rows,
            num_index_refused=stats.num_refused,
            num_connections=len(self._server.connections),
            num_lost_log_lines=self._log.num_lost,
            num_recorded=self.recorder.stats.num_written,
            num_record_dropped=self.recorder.stats.num_dropped,
            num_record_failed=self.recorder.stats.num_failed,
            num_followed=len(self.exchange.followed) if self.exchange is not None else 0,
            num_exchange_dropped=self.exchange.num_dropped if self.exchange is not None else 0,
            draining=self.state.life is Life.DRAINING,
            config_generation=self.reloader.state.generation,
            config_refused=bool(self.reloader.state.refusal),
            num_config_needs_restart=len(self.reloader.state.needs_restart),
            discovery=self.discovery.gauges(),
        )


def _is_unknown(engine: Engine) -> bool:
    """Whether it was not looked at yet."""
    return engine.health.state is EngineState.STARTING and not engine.health.last_error


async def _becomes_false(condition: Callable[[], object], patience_s: float) -> None:
    """Wait for that, or for `patience_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while condition():  # noqa: ASYNC110 - what is known of engines are plain values
                await asyncio.sleep(0.02)


def _policy(router: RouterConfig) -> Policy:
    return make_policy(router.policy.value, random.Random(), policy_options(router))


def _soon(flush: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(LOG_DELAY_S, flush)


def _gauges(engine: Engine, standing: Standing) -> EngineGauges:
    return EngineGauges(
        engine=engine.id,
        state=standing.state(engine),
        num_in_flight=engine.load.num_in_flight,
        queued_prefill_tokens=engine.load.queued_prefill_tokens,
        num_decoding=engine.load.num_decoding,
        num_idle_connections=engine.pool.num_idle,
        num_stale_connections=engine.pool.num_stale,
        kv_connected=engine.kv.status.complete,
        kv_seq=engine.kv.seq,
        kv_lag_s=engine.kv.lag_s,
        breaker=engine.breaker.state.value,
        costs=cost_gauges(engine.costs),
        degraded=engine.degraded(),
        num_checked={
            "agreed": engine.checks.agreed,
            "over": engine.checks.over,
            "unknown_content": engine.checks.unknown_content,
            "evicted": engine.checks.evicted,
        },
        num_rebuilds=engine.checks.rebuilds,
        tokens=engine.tokens.value,
        num_reported=math.nan if engine.load.reported is None else engine.load.reported.total,
        num_strangers=engine.load.strangers.total,
        num_ghosts=engine.load.num_ghosts,
    )
