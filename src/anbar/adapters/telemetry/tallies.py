"""Counters and histograms that cost an addition: what a request moves, of which there are a dozen.

prometheus_client's own take a lock and check their labels with every move, for programs with threads; these
are moved by one event loop and read by it. They are registered and exposed like the others.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_Child = TypeVar("_Child")


class Count:
    """One counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1) -> None:
        self.value += by


class Spread:
    """One histogram."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values up to each bound and above the one before; the last are above all."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Values counted elsewhere, by the same bounds, whose sum is `total`."""
        for place, count in enumerate(counts):
            if count:
                self.counts[place] += count
        self.total += total


class Family(Collector, Generic[_Child]):
    """What is counted apart for each set of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._describe = name, text, tuple(labels)
        self._children: dict[tuple[str, ...], _Child] = {}

    def values(self, label: str) -> set[str]:
        """The values that a label has; none if there is no such label."""
        place = self._place(label)
        return set() if place is None else {values[place] for values in self._children}

    def forget(self, label: str, value: str) -> None:
        """Drop all that has this value. A caller that keeps a child of it moves it in vain."""
        place = self._place(label)
        if place is not None:
            for values in [values for values in self._children if values[place] == value]:
                del self._children[values]

    def _place(self, label: str) -> int | None:
        labels = self._describe[2]
        return labels.index(label) if label in labels else None


class Counts(Family[Count]):
    """A family of counters, one for each set of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        super().__init__(name, text, labels)
        if not labels:
            self.labels()

    def labels(self, *values: str) -> Count:
        """The counter with these values, made if need be: a caller that moves it often keeps it."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Count()
        return child

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._describe
        family = CounterMetricFamily(name, text, labels=labels)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class Spreads(Family[Spread]):
    """A family of histograms, one for each set of labels. `bounds` ascend; above them there is one more."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = bounds

    def labels(self, *values: str) -> Spread:
        """As `Counts.labels`."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Spread(self._bounds)
        return child

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._describe
        family = HistogramMetricFamily(name, text, labels=labels)
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, child in self._children.items():
            so_far, buckets = 0, []
            for bound, count in zip(names, child.counts, strict=True):
                so_far += count
                buckets.append((bound, float(so_far)))
            family.add_metric(values, buckets, child.total)
        yield family
