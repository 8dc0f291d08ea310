"""Our counters and histograms say what prometheus_client's say."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from anbar.adapters.telemetry.tallies import Counts, Spreads

BOUNDS = (0.005, 0.1, 1, 2.5)
_VALUES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from((0, 0.005, 0.0050001, 0.1, 0.7, 1, 2.5, 3, 1e9)))
)


def page(registry: CollectorRegistry) -> list[str]:
    """The lines of a metrics page, but for the times at which series began."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(_VALUES)
def test_pages_are_equal(values: list[tuple[str, float]]) -> None:
    """Any values, bounds themselves among them, in any order, under two labels."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts, spreads = Counts("c_total", "C.", ("x",)), Spreads("h_seconds", "H.", ("x", "y"), BOUNDS)
    ours.register(counts)
    ours.register(spreads)
    counter = Counter("c_total", "C.", ("x",), registry=theirs)
    histogram = Histogram("h_seconds", "H.", ("x", "y"), buckets=BOUNDS, registry=theirs)
    for label, value in values:
        counts.labels(label).inc(value)
        spreads.labels(label, "y").observe(value)
        counter.labels(label).inc(value)
        histogram.labels(label, "y").observe(value)
    assert page(ours) == page(theirs)


def test_a_counter_without_labels_begins_at_zero() -> None:
    """It is on the page before it moves, as it should be for a rate."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    ours.register(Counts("c_total", "C.", ()))
    Counter("c_total", "C.", registry=theirs)
    assert page(ours) == page(theirs)
