"""Every metric of the router: names, help texts, labels and buckets, and which event moves it.

Numbers of tokens by cache are what the router predicted and what the engine reported; the names say which.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anbar.adapters.telemetry import discovery_metrics, self_check_metrics
from anbar.adapters.telemetry.gone_engines import GoneEngines, PerEngine
from anbar.adapters.telemetry.request_metrics import RequestMetrics
from anbar.adapters.telemetry.tallies import Counts, Spreads
from anbar.adapters.telemetry.tenant_metrics import TenantMetrics
from anbar.core.fleet import EngineState
from anbar.core.outcome import (
    AttemptFailed,
    BreakerChanged,
    EngineStateChanged,
    Event,
    FleetGauges,
    KvStreamGap,
    KvStreamRestarted,
    LoadCorrected,
    PrefillEnded,
    RequestFinished,
    RequestMalformed,
    RetryRefused,
    SupervisorCaught,
    TrustChanged,
)

TOKENIZE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

PREFILL_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

BREAKER_STATES = ("closed", "open", "half_open")

ENGINE_GAUGES = {
    "anbar_router_in_flight_requests": "Requests sent to the engine and not finished.",
    "anbar_router_queued_prefill_tokens": "Prompt tokens sent to the engine, not predicted cached, not yet "
    "answered.",
    "anbar_router_decoding_requests": "Requests past their first byte.",
    "anbar_router_reported_requests": "Sequences that the engine says it runs or has waiting; NaN when it "
    "does not say.",
    "anbar_router_stranger_requests": "Of these, those beyond what was sent from here: other clients' "
    "requests, and more answers to one request. They count as load.",
    "anbar_router_ghost_requests": "Requests in flight that the engine has said for a minute not to have. "
    "They do not count as load.",
    "anbar_router_idle_connections": "Kept connections to the engine that are not in use.",
    "anbar_router_kv_stream_connected": "1 while KV events of the engine are followed without a gap.",
    "anbar_router_kv_stream_sequence": "Sequence number of the last KV batch taken in; -1 before the first.",
    "anbar_router_kv_stream_lag_seconds": "Age of the last live KV batch when it was taken in.",
    "anbar_router_prefill_overhead_seconds": "Learned: what a prompt takes beside its tokens.",
    "anbar_router_prefill_seconds_per_token": "Learned: linear part of computing a prompt.",
    "anbar_router_prefill_seconds_per_token_squared": "Learned: quadratic part of computing a prompt.",
    "anbar_router_prefill_mean_error_ratio": "How far predictions of the last requests' time to first token "
    "were off, as a share of them.",
    "anbar_router_host_load_seconds_per_token": "Learned: loading a token's KV from host memory.",
    "anbar_router_shared_load_seconds_per_token": "Learned: loading a token's KV from the shared store.",
}
FLEET_GAUGES = {
    "anbar_router_index_blocks": "Distinct KV blocks that the prefix index knows.",
    "anbar_router_index_parked_hashes": "Hashes of offload events that no device event has explained yet.",
    "anbar_router_index_orphan_blocks": "Device blocks dropped because their parent was unknown.",
    "anbar_router_index_rows": "Blocks that take memory in the prefix index: those that are somewhere, and "
    "names that are remembered for a while. At most router.index_max_blocks.",
    "anbar_router_index_refused_blocks": "Blocks not taken in since the start because the prefix index was "
    "full: they are not predicted.",
    "anbar_router_client_connections": "Open client connections.",
    "anbar_router_lost_log_lines": "Log lines that could not be written since the start.",
    "anbar_router_draining": "1 while the router finishes what runs and accepts nothing new.",
    "anbar_router_config_generation": "Number of the configuration in force; 1 is the one of the start.",
    "anbar_router_config_refused": "1 while the last configuration that was read is refused.",
    "anbar_router_config_needs_restart": "Keys of the file that apply only after a restart.",
    "anbar_router_followed_routers": "Other routers whose requests are counted here.",
}
FLEET_COUNTERS = {
    "anbar_router_recorded_requests": "Requests written to the block log.",
    "anbar_router_record_dropped_requests": "Requests not written to the block log because too many waited.",
    "anbar_router_record_failed_requests": "Requests that the file of the block log did not take.",
    "anbar_router_exchange_dropped_changes": "Changes that other routers did not get one by one, since they "
    "read too slowly.",
}


class _FleetCollector(Collector):
    """Gauges that are read when somebody looks, instead of being kept up to date with every request."""

    def __init__(self, look: Callable[[], FleetGauges]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        # Registering must not look at a fleet that is not built yet.
        return ()

    def collect(self) -> Iterable[Metric]:
        fleet = self._look()
        state = GaugeMetricFamily(
            "anbar_router_engine_state", "1 for the state the engine is in.", labels=("engine", "state")
        )
        breaker = GaugeMetricFamily(
            "anbar_router_breaker_state",
            "1 for the state of the engine's breaker.",
            labels=("engine", "state"),
        )
        stale = CounterMetricFamily(
            "anbar_router_stale_connections",
            "Requests sent again because the engine had closed a kept connection.",
            labels=("engine",),
        )
        gauges = {
            name: GaugeMetricFamily(name, text, labels=("engine",)) for name, text in ENGINE_GAUGES.items()
        }
        for engine in fleet.engines:
            for each in EngineState:
                state.add_metric((engine.engine, each.value), float(engine.state is each))
            for name in BREAKER_STATES:
                breaker.add_metric((engine.engine, name), float(engine.breaker == name))
            stale.add_metric((engine.engine,), engine.num_stale_connections)
            values = (
                engine.num_in_flight,
                engine.queued_prefill_tokens,
                engine.num_decoding,
                engine.num_reported,
                engine.num_strangers,
                engine.num_ghosts,
                engine.num_idle_connections,
                engine.kv_connected,
                engine.kv_seq,
                engine.kv_lag_s,
                engine.costs.overhead_s,
                engine.costs.s_per_token,
                engine.costs.s_per_token2,
                engine.costs.mean_error,
                engine.costs.host_s_per_token,
                engine.costs.shared_s_per_token,
            )
            for family, value in zip(gauges.values(), values, strict=True):
                family.add_metric((engine.engine,), float(value))
        yield from (state, breaker, stale, *gauges.values())
        yield from self_check_metrics.families(fleet)
        yield from discovery_metrics.families(fleet)
        for (name, text), value in zip(FLEET_GAUGES.items(), _totals(fleet), strict=True):
            yield GaugeMetricFamily(name, text, value=float(value))
        counts = (
            fleet.num_recorded,
            fleet.num_record_dropped,
            fleet.num_record_failed,
            fleet.num_exchange_dropped,
        )
        for (name, text), value in zip(FLEET_COUNTERS.items(), counts, strict=True):
            yield CounterMetricFamily(name, text, value=float(value))


def _totals(fleet: FleetGauges) -> tuple[float, ...]:
    return (
        fleet.num_index_blocks,
        fleet.num_index_parked,
        fleet.num_index_orphans,
        fleet.num_index_rows,
        fleet.num_index_refused,
        fleet.num_connections,
        fleet.num_lost_log_lines,
        fleet.draining,
        fleet.config_generation,
        fleet.config_refused,
        fleet.num_config_needs_restart,
        fleet.num_followed,
    )


class RouterMetrics:
    """Subscribes with `on`; `render` is the page that Prometheus reads. `now_s` never goes back."""

    def __init__(
        self, registry: CollectorRegistry, look: Callable[[], FleetGauges], now_s: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._look = look
        self._gone = GoneEngines(now_s)
        self._families: list[PerEngine] = []
        registry.register(_FleetCollector(look))

        self._declare_counters()
        self._declare_retries()
        self._trust = self._registered(self_check_metrics.trust_counter())
        self._of_requests = RequestMetrics(registry)
        self._families.append(self._of_requests)
        self.of_tenants = TenantMetrics(registry)
        self._tokenize = Spreads(
            "anbar_router_tokenize_seconds",
            "From handing a prompt to the tokenizer threads to its tokens.",
            ("model",),
            TOKENIZE_BUCKETS_S,
        )
        registry.register(self._tokenize)

    def render(self) -> bytes:
        """The metrics page, in Prometheus' text format."""
        self._gone.sweep(self._families, {engine.engine for engine in self._look().engines})
        return generate_latest(self._registry)

    def on(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case RequestFinished():
                self._finished(event)
            case RequestMalformed(status):
                self._malformed.labels(str(status)).inc()
            case AttemptFailed(engine, failure):
                self._failures.labels(engine, failure.value).inc()
            case PrefillEnded(engine, verdict, seconds):
                self._prefills.labels(engine, verdict).observe(seconds)
            case RetryRefused():
                self._refused_retries.labels().inc()
            case LoadCorrected(engine, num_ghosts):
                self._ghosts.labels(engine).inc(num_ghosts)
            case BreakerChanged(engine, breaker):
                self._breaker_changes.labels(engine, breaker).inc()
            case EngineStateChanged(engine=engine, after=after):
                self._changes.labels(engine, after.value).inc()
            case KvStreamGap(engine, num_missing):
                self._gaps.labels(engine).inc()
                self._missing.labels(engine).inc(num_missing)
            case KvStreamRestarted(engine):
                self._restarts.labels(engine).inc()
            case TrustChanged(engine=engine, after=after):
                self._trust.labels(engine, after).inc()
            case SupervisorCaught(where=where, error=error):
                self._defects.labels(where, error).inc()

    def _registered(self, family: Counts) -> Counts:
        self._registry.register(family)
        self._families.append(family)
        return family

    def _declare_counters(self) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counts:
            return self._registered(Counts(name, text, labels))

        self._malformed = counter(
            "anbar_router_malformed_total", "Refused before they were requests.", ("status",)
        )
        self._failures = counter(
            "anbar_router_attempt_failures_total",
            "Tries of an engine that gave no answer.",
            ("engine", "failure"),
        )
        self._changes = counter(
            "anbar_router_engine_state_changes_total", "Changes of an engine's state.", ("engine", "state")
        )
        self._gaps = counter(
            "anbar_router_kv_stream_gaps_total", "Gaps that replay did not fill.", ("engine",)
        )
        self._missing = counter(
            "anbar_router_kv_stream_missing_batches_total", "KV batches lost in gaps.", ("engine",)
        )
        self._ghosts = counter(
            "anbar_router_ghost_requests_found_total",
            "Requests in flight that turned out not to be at their engine.",
            ("engine",),
        )
        self._restarts = counter(
            "anbar_router_kv_stream_restarts_total", "Times an engine's event stream began anew.", ("engine",)
        )
        self._defects = counter(
            "anbar_router_defects_total",
            "Errors nobody expected, caught by a supervisor.",
            ("where", "error"),
        )
        self._degraded = counter(
            "anbar_router_degraded_total", "Requests that were not routed precisely.", ("model", "reason")
        )

    def _declare_retries(self) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counts:
            return self._registered(Counts(name, text, labels))

        self._retries = counter(
            "anbar_router_retries_total",
            "Tries of an engine after another one failed, by the engine that was asked then.",
            ("engine",),
        )
        self._refused_retries = counter(
            "anbar_router_retries_refused_total", "Retries that were possible, but beyond the budget.", ()
        )
        self._breaker_changes = counter(
            "anbar_router_breaker_changes_total",
            "Changes of an engine's circuit breaker.",
            ("engine", "state"),
        )
        self._continued = counter(
            "anbar_router_continued_streams_total", "Streams that another engine went on with.", ()
        )
        self._refusals = counter(
            "anbar_router_refusals_total",
            "Requests that the router refused, by the code in its answer: `overloaded` and `engines_busy` "
            "are what there was no room for.",
            ("reason",),
        )
        self._splits = counter(
            "anbar_router_split_requests_total",
            "Requests where prefill and decode are split, by what became of that.",
            ("model", "outcome"),
        )
        self._prefills = Spreads(
            "anbar_router_split_prefill_seconds",
            "First legs of split requests, by the engine that was asked last.",
            ("engine", "outcome"),
            PREFILL_BUCKETS_S,
        )
        self._registry.register(self._prefills)
        self._families.append(self._prefills)
        self._replays = counter(
            "anbar_router_idempotent_replays_total", "Repeated requests that got the first one's answer.", ()
        )

    def _finished(self, event: RequestFinished) -> None:
        self._of_requests.on(event)
        self.of_tenants.on(event)
        model = self._of_requests.label_of(event.model)
        if event.split:
            self._splits.labels(model, event.split).inc()
        if event.continued:
            self._continued.labels().inc()
        if event.refusal:
            self._refusals.labels(event.refusal).inc()
        if event.replayed:
            self._replays.labels().inc()
        for engine in event.retried:
            self._retries.labels(engine).inc()
        if event.degraded:
            self._degraded.labels(model, event.degraded).inc()
        if event.tokenize_s > 0.0:
            self._tokenize.labels(model).observe(event.tokenize_s)
