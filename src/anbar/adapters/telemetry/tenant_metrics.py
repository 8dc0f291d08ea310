"""What requests of each scope come to, where there are tenants."""

from prometheus_client import CollectorRegistry

from anbar.adapters.telemetry.tallies import Counts
from anbar.core.outcome import RequestFinished

OTHER_SCOPES = "other"


class TenantMetrics:
    """Declares them in `registry`; `on` takes in a finished request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.named: frozenset[str] = frozenset()
        """Scopes with a label of their own; may be replaced at any time."""
        self._requests = Counts(
            "anbar_router_scope_requests_total",
            "Requests of a scope that has an entry in tenants.scopes, by how they ended; all others are "
            "`other`.",
            ("scope", "outcome"),
        )
        self._prompt = Counts(
            "anbar_router_scope_prompt_tokens_total", "Prompt tokens of a scope.", ("scope",)
        )
        self._cached = Counts(
            "anbar_router_scope_cached_tokens_total",
            "Prompt tokens of a scope that engines reported as served from a cache.",
            ("scope",),
        )
        for family in (self._requests, self._prompt, self._cached):
            registry.register(family)

    def on(self, event: RequestFinished) -> None:
        """Count a request that has a scope."""
        if event.scope is None:
            return
        label = event.scope if event.scope in self.named else OTHER_SCOPES
        self._requests.labels(label, event.outcome.value).inc()
        if event.engine is not None:
            self._prompt.labels(label).inc(event.num_prompt_tokens)
            self._cached.labels(label).inc(event.reported_cached_tokens or 0)
