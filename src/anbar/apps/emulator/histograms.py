"""Histograms and the text form of metrics: what Prometheus reads, at the cost of an addition."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

REQUEST_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TIME_TO_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_LATENCY = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
NUM_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


def request_tokens(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to the context's length."""
    buckets: list[int] = []
    scale = 1
    while scale <= max_model_len:
        buckets += (step * scale for step in (1, 2, 5) if step * scale <= max_model_len)
        scale *= 10
    return tuple(buckets)


class Histogram:
    """Counts of observations by bucket; bounds are inclusive."""

    __slots__ = ("_bounds", "_counts", "_sum", "help", "name")

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help_text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        """Suffix, labels and value of each sample."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield "_bucket", {"le": _bound(bound)}, total
        yield "_count", {}, total
        yield "_sum", {}, self._sum


class Page:
    """The text form of metrics; `base` are labels of all of them."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = base
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help_text: str) -> None:
        """Begin a metric."""
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """A value of the metric begun last."""
        shown = ",".join(
            f'{key}="{_escaped(text)}"' for key, text in {**self._base, **(labels or {})}.items()
        )
        self._lines.append(f"{name}{{{shown}}} {float(value)}")

    def bare(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A value with these labels only."""
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{name}{{{shown}}} {float(value)}")

    def histogram(self, histogram: Histogram) -> None:
        """A whole histogram."""
        self.family(histogram.name, "histogram", histogram.help)
        for suffix, labels, value in histogram.samples():
            self.sample(histogram.name + suffix, value, labels)

    def render(self) -> bytes:
        """The page."""
        return ("\n".join(self._lines) + "\n").encode()


def _bound(value: float) -> str:
    """As Prometheus' client writes it: large numbers as 1.5e+08."""
    if value == float("inf"):
        return "+Inf"
    digits, _, rest = repr(float(value)).partition(".")
    if len(digits) <= 6 or "e" in rest:
        return repr(float(value))
    return f"{f'{digits[0]}.{digits[1:]}{rest}'.rstrip('0.')}e+{len(digits) - 1:02d}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
