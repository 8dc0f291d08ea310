"""The metrics pages of several workers as one, as if one process had counted.

Counters and histograms are added, and so are gauges of what each worker has for itself; of gauges that all
workers see of the same thing the greatest is taken, or the least where 1 means that all is well.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

ADDED = frozenset(
    (
        "anbar_router_in_flight_requests",
        "anbar_router_idle_connections",
        "anbar_router_client_connections",
        "anbar_router_lost_log_lines",
    )
)
LEAST = frozenset(
    (
        "anbar_router_kv_stream_connected",
        "anbar_router_kv_stream_sequence",
        "anbar_router_config_generation",
    )
)
_COUNTED = ("counter", "histogram")

Labels = tuple[tuple[str, str], ...]


class Totals:
    """What a number of pages say together."""

    def __init__(self, pages: Iterable[bytes] = ()) -> None:
        self._families: dict[str, Metric] = {}
        self._values: dict[str, dict[tuple[str, Labels], float]] = {}
        for page in pages:
            self.add(page)

    def add(self, page: bytes, *, only_counts: bool = False) -> None:
        """Take in one more page; `only_counts`: of a process that is no more, whose gauges are of no use."""
        for family in text_string_to_metric_families(page.decode()):
            if only_counts and family.type not in _COUNTED:
                continue
            self._families.setdefault(family.name, family)
            values = self._values.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                known = values.get(key)
                values[key] = sample.value if known is None else _together(family, known, sample.value)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Families(list(self._merged())))
        return generate_latest(registry)

    def _merged(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            merged = Metric(name, family.documentation, family.type)
            for (sample, labels), value in self._values[name].items():
                merged.add_sample(sample, dict(labels), value)
            yield merged


def _together(family: Metric, one: float, other: float) -> float:
    if family.type in _COUNTED or family.name in ADDED:
        return one + other
    return min(one, other) if family.name in LEAST else max(one, other)


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families


class WorkersPage:
    """The page of all workers, of whom some have died: what they had counted last stays counted, so that no
    sum goes down."""

    def __init__(self) -> None:
        self._last: dict[int, bytes] = {}
        self._gone = Totals()
        self._gone_pages: list[bytes] = []

    def heard(self, place: int, page: bytes) -> None:
        """A worker's page."""
        self._last[place] = page

    def gone(self, place: int) -> None:
        """The worker has ended; another one takes its place, and begins at zero."""
        page = self._last.pop(place, None)
        if page is not None:
            self._gone.add(page, only_counts=True)
            self._gone_pages = [self._gone.render()]

    def render(self) -> bytes:
        """The sum of what was heard last."""
        return Totals((*self._last.values(), *self._gone_pages)).render()
