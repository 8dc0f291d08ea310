"""Puts the figures of a changed configuration into a running router's parts."""

from dataclasses import replace

from anbar.adapters.http.openai import ClientKv
from anbar.apps.router.build import (
    breaker_config,
    drift_limits,
    idempotency_config,
    retry_config,
    upstream_limits,
)
from anbar.apps.router.engine import Fleet
from anbar.apps.router.flow import FlowParts
from anbar.config.models import RouterConfig
from anbar.route.admission import AdmissionConfig


def retuned(parts: FlowParts, router: RouterConfig) -> FlowParts:
    """The parts of a flow as `router` says. What they have counted and kept so far stays."""
    parts.budget.config = retry_config(router)
    parts.idempotency.config = idempotency_config(router)
    parts.standing.max_ejected_share = router.max_ejected_share
    parts.caches.max_age_s = router.prefix.max_age_s
    return replace(
        parts,
        admission=AdmissionConfig(router.max_waiting, router.slo_ttft_s),
        client_kv=ClientKv(router.client_kv_fields.value),
        continues=router.continue_streams,
        total_timeout_s=router.total_timeout_s,
        session_header=router.session.header.encode(),
    )


def retune_engines(fleet: Fleet, router: RouterConfig) -> None:
    """Breakers, self-checks and connections; those that are open have the limits of when they were made."""
    for engine in fleet:
        engine.breaker.config = breaker_config(router)
        engine.drift.limits = drift_limits(router)
        engine.pool.limits = upstream_limits(router)
        engine.pool.close()
