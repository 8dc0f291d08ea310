"""The metrics of the router's self-check: how engines' caches are known, and what comparing has found."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from anbar.adapters.telemetry.tallies import Counts
from anbar.core.outcome import FleetGauges


def families(fleet: FleetGauges) -> Iterator[Metric]:
    """What is read when somebody looks."""
    mode = GaugeMetricFamily(
        "anbar_router_engine_mode",
        "1 for how the engine's cache is known: precise, from its events, or approximate, and why.",
        labels=("engine", "mode", "reason"),
    )
    checked = CounterMetricFamily(
        "anbar_router_self_check_requests",
        "Answers compared with what the engine's events had told of its device cache, by finding.",
        labels=("engine", "finding"),
    )
    rebuilds = CounterMetricFamily(
        "anbar_router_index_rebuilds",
        "Times an engine's part of the prefix index was built anew because it was wrong.",
        labels=("engine",),
    )
    tokens = GaugeMetricFamily(
        "anbar_router_tokens_check",
        "1 for how the router's tokens compare with the engine's: agrees; differs, remote (the engine is "
        "asked); comparing, unverified.",
        labels=("engine", "result"),
    )
    for engine in fleet.engines:
        word = "approximate" if engine.degraded else "precise"
        mode.add_metric((engine.engine, word, engine.degraded), 1.0)
        for finding, number in engine.num_checked.items():
            checked.add_metric((engine.engine, finding), number)
        rebuilds.add_metric((engine.engine,), engine.num_rebuilds)
        tokens.add_metric((engine.engine, engine.tokens), 1.0)
    yield from (mode, checked, rebuilds, tokens)


def trust_counter() -> Counts:
    """Moved by `TrustChanged`."""
    return Counts(
        "anbar_router_trust_changes_total",
        "Times the index of an engine was found wrong (rebuilding), built anew (comparing), agreed again "
        "(precise).",
        ("engine", "trust"),
    )
