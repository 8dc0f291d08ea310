"""From a configuration to values: engines, limits, keys. Complains about what a router cannot work with."""

from collections.abc import Callable, Mapping

from anbar.adapters.http.limits import ServerLimits, UpstreamLimits
from anbar.adapters.http.message import Header
from anbar.adapters.http.upstream import UpstreamPool, parse_endpoint
from anbar.apps.engine_key import engine_key
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.exchange import PeerExchange
from anbar.apps.router.handover import SplitSetup
from anbar.apps.router.health import Health
from anbar.apps.router.idempotency import Idempotency, IdempotencyConfig
from anbar.apps.router.monitor import AttachedEngine, CacheSetup
from anbar.apps.router.priors import Priors
from anbar.apps.router.shared_claims import SharedIdempotency
from anbar.apps.router.sharing import SharedCaches, Told
from anbar.apps.router.worker import Worker
from anbar.config.models import AnbarConfig, CacheMode, EngineConfig, RouterConfig
from anbar.config.record import RecordConfig
from anbar.config.stores import store_settings
from anbar.core.clock import Clock
from anbar.core.errors import ConfigError
from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId
from anbar.core.outcome import BreakerChanged, Emit, EngineStateChanged
from anbar.route import Placements, Policy, PolicyOptions, PrefixIndex, PromptChains, ResidencyLimits
from anbar.route.admission import AdmissionConfig
from anbar.route.breaker import Breaker, BreakerConfig
from anbar.route.drift import DriftCheck, DriftLimits
from anbar.route.retry_budget import RetryBudget, RetryConfig
from anbar.route.split import SplitRule
from anbar.route.targets import Target, Targets


def server_limits(router: RouterConfig) -> ServerLimits:
    return ServerLimits(max_body_bytes=router.max_body_bytes, body_timeout_s=router.idle_timeout_s)


def upstream_limits(router: RouterConfig) -> UpstreamLimits:
    return UpstreamLimits(
        connect_timeout_s=router.connect_timeout_s,
        first_byte_timeout_s=router.first_byte_timeout_s,
        idle_timeout_s=router.idle_timeout_s,
    )


def made_caches(router: RouterConfig, fleet: Fleet, clock: Clock, told: Told | None) -> Caches:
    """The index and the placements, which hash each prompt once for both; `told`: for other routers."""
    chains = PromptChains()
    index = PrefixIndex(limits=ResidencyLimits(max_blocks=router.index_max_blocks), chains=chains)
    placements, max_age_s = Placements(chains=chains), router.prefix.max_age_s
    if told is None:
        return Caches(fleet, index, placements, clock, max_age_s)
    return SharedCaches(told, fleet, index, placements, clock, max_age_s)


def policy_options(router: RouterConfig) -> PolicyOptions:
    return PolicyOptions(
        session_bound=router.session.bound,
        prefix_min_match=router.prefix.min_match,
        prefix_spill_ratio=router.prefix.spill_ratio,
    )


def drift_limits(router: RouterConfig) -> DriftLimits:
    return DriftLimits(**router.self_check.model_dump())


def own_record(record: RecordConfig, worker: Worker | None) -> RecordConfig:
    """The block log as one of several workers writes it: each has its own file."""
    if worker is None or record.path is None:
        return record
    return record.model_copy(update={"path": worker.own_file(record.path)})


def targets(router: RouterConfig, groups: Mapping[str, frozenset[EngineId]]) -> Targets:
    """What the names of `router.models` stand for; `groups` are engines that were found, by the names of
    their entries."""
    return Targets(
        {
            name: [Target(t.model, _members(t.engines, groups), t.weight) for t in listed]
            for name, listed in router.models.items()
        }
    )


def _members(names: tuple[str, ...], groups: Mapping[str, frozenset[EngineId]]) -> frozenset[EngineId]:
    """The engines that are named. A group's own name stays among them: without it a group of nobody would be
    no group, which means all."""
    return frozenset(map(EngineId, names)).union(*(groups.get(name, ()) for name in names))


def cache_setup(config: AnbarConfig) -> CacheSetup:
    """What all engines of the file have in common."""
    if config.cache.mode in (CacheMode.NONE, CacheMode.LMCACHE):
        return CacheSetup()  # LMCache announces nothing: what it had is seen in the answers
    if config.cache.mode is CacheMode.NATIVE:
        return CacheSetup(config.cache.chunk_blocks)
    store_id = store_settings(config.cache.store, config.state_dir)["id"]
    return CacheSetup(config.cache.chunk_blocks, frozenset((f"anbar:{store_id}",)))


def breaker_config(router: RouterConfig) -> BreakerConfig:
    return BreakerConfig(router.breaker_failures, router.breaker_pause_s)


def retry_config(router: RouterConfig) -> RetryConfig:
    return RetryConfig(router.retry_share, router.retry_floor)


def idempotency_config(router: RouterConfig) -> IdempotencyConfig:
    return IdempotencyConfig(router.idempotency_window_s, router.idempotency_max_bytes)


def breaker(router: RouterConfig, engine: EngineId, emit: Emit) -> Breaker:
    """A closed breaker that tells of its changes."""
    return Breaker(breaker_config(router), lambda state: emit(BreakerChanged(engine, state.value)))


def split_setup(router: RouterConfig, policy: Policy) -> SplitSetup:
    split = router.split
    return SplitSetup(
        via=split.via,
        rule=SplitRule(split.min_uncached_tokens, split.min_gain_s),
        wait_ms=split.wait_ms,
        policy=policy,
        admission=AdmissionConfig(router.max_waiting, router.slo_ttft_s),
    )


def retry_budget(router: RouterConfig) -> RetryBudget:
    return RetryBudget(retry_config(router))


def idempotency(
    router: RouterConfig, clock: Clock, worker: Worker | None, exchange: Callable[[], PeerExchange]
) -> Idempotency:
    """What is kept for repeated requests, here or at the worker whose key it is."""
    config = idempotency_config(router)
    if worker is None:
        return Idempotency(config, clock)
    return SharedIdempotency(config, clock, worker, exchange)


def attach(
    engine: EngineConfig, router: RouterConfig, environ: Mapping[str, str], priors: Priors, emit: Emit
) -> Engine:
    """An engine as the configuration has it, not looked at yet.

    Raises ConfigError.
    """
    if engine.url is None:
        raise ConfigError(
            f"engines: {engine.name!r} has no `url`: the router attaches to engines that run already. "
            "Give it the engine's `url`, or start engine and router together with `anbar up`."
        )
    engine_id = EngineId(engine.name)

    def changed(before: EngineState, after: EngineState, reason: str) -> None:
        emit(EngineStateChanged(engine_id, before, after, reason))

    return Engine(
        id=engine_id,
        url=engine.url,
        pool=UpstreamPool(parse_endpoint(engine.url), upstream_limits(router)),
        auth=_auth(engine, environ),
        health=Health(changed),
        costs=priors.costs(engine.cost_file, f"engines: {engine.name!r}: cost_file"),
        breaker=breaker(router, engine_id, emit),
        drift=DriftCheck(drift_limits(router)),
        role=engine.role,
    )


def attached(engine: EngineConfig) -> AttachedEngine:
    return AttachedEngine(engine.events, engine.replay, engine.tokenizer)


def _auth(engine: EngineConfig, environ: Mapping[str, str]) -> tuple[Header, ...]:
    key = engine_key(engine, environ)
    return () if key is None else ((b"authorization", b"Bearer " + key.encode()),)
