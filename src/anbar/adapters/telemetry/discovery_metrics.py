"""The metrics of discovery: what was found for each entry with `discover`, and what went wrong."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from anbar.core.outcome import FleetGauges


def families(fleet: FleetGauges) -> Iterator[Metric]:
    """What is read when somebody looks."""
    engines = GaugeMetricFamily(
        "anbar_discovery_engines", "Engines of the entry that were found and are used.", labels=("entry",)
    )
    success = GaugeMetricFamily(
        "anbar_discovery_last_success_timestamp_seconds",
        "When a look at the entry's source last succeeded, in seconds since 1970; 0: never.",
        labels=("entry",),
    )
    failing = GaugeMetricFamily(
        "anbar_discovery_failing",
        "1 while looks at the entry's source fail: the engines are those of the last good one.",
        labels=("entry",),
    )
    unused = GaugeMetricFamily(
        "anbar_discovery_unused_engines",
        "Engines that were found and are not used: duplicate (another entry has them), refused (they cannot "
        "be attached), too_many (beyond max_engines).",
        labels=("entry", "reason"),
    )
    failures = CounterMetricFamily(
        "anbar_discovery_failures",
        "Looks that failed: missing, invalid (a file); nxdomain, empty, timeout, servfail (the DNS).",
        labels=("entry", "kind"),
    )
    changes = CounterMetricFamily(
        "anbar_discovery_changes", "Engines that have joined and left.", labels=("entry", "change")
    )
    for found in fleet.discovery:
        engines.add_metric((found.entry,), found.num_engines)
        success.add_metric((found.entry,), found.last_success_s)
        failing.add_metric((found.entry,), float(found.failing))
        for reason, number in found.num_unused.items():
            unused.add_metric((found.entry, reason), number)
        for kind, number in found.num_failed.items():
            failures.add_metric((found.entry, kind), number)
        changes.add_metric((found.entry, "joined"), found.num_joined)
        changes.add_metric((found.entry, "left"), found.num_left)
    yield from (engines, success, failing, unused, failures, changes)
