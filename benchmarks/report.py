"""What every benchmark writes: ratios first, the raw runs behind them, and where they were measured."""

import importlib.metadata
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Series:
    """One measured quantity in seconds, one value a round."""

    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Report:
    """A benchmark's result. `ratios` are medians over rounds of two values from the same round."""

    name: str
    command: str
    setup: dict[str, object]
    series: list[Series] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    """Whatever else is a number; its unit is in its name."""
    notes: list[str] = field(default_factory=list)

    def ratio(self, name: str, above: Series, below: Series) -> None:
        """Record the median over rounds of `above / below`, each pair from one round."""
        pairs = zip(above.seconds, below.seconds, strict=True)
        self.ratios[name] = statistics.median(a / b for a, b in pairs)

    def write(self, directory: Path = RESULTS) -> Path:
        """Write `<name>.json`; returns its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.name}.json"
        content = asdict(self) | {"machine": machine(), "versions": versions()}
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return path

    def show(self) -> None:
        """Print the table."""
        table = Table(title=f"{self.name}: {self.command}")
        for column in ("quantity", "median", "min", "max", "rounds"):
            table.add_column(column, justify="left" if column == "quantity" else "right")
        for series in self.series:
            values = series.seconds
            cells = [duration(value) for value in (series.median, min(values), max(values))]
            table.add_row(series.name, *cells, str(len(values)))
        for name, value in self.ratios.items():
            table.add_row(name, f"{value:.2f} ×", "", "", "", style="bold")
        for name, value in self.figures.items():
            table.add_row(name, f"{value:,g}", "", "", "", style="bold")
        console = Console()
        console.print(table)
        for note in self.notes:
            console.print(note)


def duration(seconds: float) -> str:
    """In words, of which no more than a benchmark can tell."""
    if seconds < 1e-5:
        return f"{seconds * 1e6:.2f} µs"
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1e6:,.0f} µs"


def machine() -> dict[str, object]:
    """Processor, cores and memory: enough to judge a figure, nothing that names a host."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    names = ("anbar", "uvloop", "httptools", "msgspec", "pyzmq", "transformers", "tokenizers")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}
