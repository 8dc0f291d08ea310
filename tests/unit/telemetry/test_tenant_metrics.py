"""What is counted by scope, under labels that stay few."""

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from anbar.adapters.telemetry.tenant_metrics import TenantMetrics
from anbar.core.ids import EngineId, RequestId
from anbar.core.outcome import Outcome, RequestFinished

SERVED = RequestFinished(
    request_id=RequestId("r"),
    endpoint="/v1/completions",
    outcome=Outcome.OK,
    engine=EngineId("e"),
    num_prompt_tokens=100,
    reported_cached_tokens=80,
    scope="bank",
)


def test_scopes_without_an_entry_are_one() -> None:
    """Those that the configuration names have a label, thousands of others one, and a request that is
    nobody's none; one that no engine was asked for moves no tokens."""
    registry = CollectorRegistry()
    metrics = TenantMetrics(registry)
    metrics.named = frozenset({"bank"})
    many = [msgspec.structs.replace(SERVED, scope=f"t{number}") for number in range(1000)]
    refused = msgspec.structs.replace(SERVED, engine=None, outcome=Outcome.NO_ENGINE)
    nobody = msgspec.structs.replace(SERVED, scope=None)
    for event in (SERVED, refused, nobody, *many):
        metrics.on(event)
    lines = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    assert sorted(line for line in lines if "_created" not in line) == [
        'anbar_router_scope_cached_tokens_total{scope="bank"} 80.0',
        'anbar_router_scope_cached_tokens_total{scope="other"} 80000.0',
        'anbar_router_scope_prompt_tokens_total{scope="bank"} 100.0',
        'anbar_router_scope_prompt_tokens_total{scope="other"} 100000.0',
        'anbar_router_scope_requests_total{outcome="no_engine",scope="bank"} 1.0',
        'anbar_router_scope_requests_total{outcome="ok",scope="bank"} 1.0',
        'anbar_router_scope_requests_total{outcome="ok",scope="other"} 1000.0',
    ]
