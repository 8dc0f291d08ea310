"""`docs/concepts/validation.md` and its plots, made from the last result: every figure is from there."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from benchmarks.validation.plot import Chart, Line
from benchmarks.validation.table import ASSUMED

DOCS = Path(__file__).parents[2] / "docs" / "concepts"
NAME = "validation"

_CONFIGS = {"baseline": "no offload", "native": "vLLM's own", "lmcache": "LMCache"}
_SCENARIOS = {"high_30k": "30,000 tokens", "low_8k": "8,000 tokens"}

HEAD = """# Validation: how far off is the model?

The simulator and the advisor rest on a model of engines and on miss-ratio curves. This page holds both
against figures that others published. It is written by `make bench NAME=sim-validation`, which also writes
[the result](../../benchmarks/results/sim-validation.json) that every figure here is from. The published
figures are in [benchmarks/data](../../benchmarks/data/README.md), each file with its source.

The model is fitted to vLLM's curves (the next two sections) and to AIConfigurator's profiles. The table of
16 H100s is never fitted: it is predicted.
"""

FIT = """
How the fit is made (`benchmarks/validation/fitting.py`): the two coefficients of prefill are least squares
over the curve of computed prompts and the throughput without a host tier; copies are least squares over the
bandwidth by size; the constant outside of steps is what loads take longer than that; the share by which
copies delay the computing beside them is the one that misses the curve by hit rate least. Decode steps are
AIConfigurator's.
"""


def result(directory: Path = RESULTS) -> dict[str, Any]:
    """The last one."""
    content: dict[str, Any] = json.loads((directory / "sim-validation.json").read_text(encoding="utf-8"))
    return content


def write(directory: Path) -> list[Path]:
    """The page and its plots, from the last result; their paths."""
    written = []
    for name, text in files(result()).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def files(content: Mapping[str, Any]) -> dict[str, str]:
    """Texts by their names below `DOCS`."""
    setup = content["setup"]
    charts = {f"{NAME}/{name}.svg": chart.svg() for name, chart in _charts(setup)}
    return {f"{NAME}.md": "\n".join(_page(setup)) + "\n", **charts}


def row_name(row: Mapping[str, Any]) -> str:
    """Of the table, in words."""
    return f"{_SCENARIOS[row['scenario']]}, {_CONFIGS[row['config']]}"


def _page(setup: Mapping[str, Any]) -> Iterator[str]:
    yield HEAD
    yield "## What is off\n"
    yield from [f"- {miss}" for miss in setup["misses"]] or ["Nothing."]
    yield from _curves(setup)
    yield from _table(setup)
    yield from _hit_rates(setup)
    yield from _user_cases(setup)
    yield from _emulated(setup)


def _curves(setup: Mapping[str, Any]) -> Iterator[str]:
    llama, fitted = setup["fitted"]["llama"], setup["fitted"]
    yield "\n## Time to first token: computed or loaded\n"
    yield "Llama-3.1-8B on one H100, one request at a time (vLLM's blog of 2026-01-08, figure 1). Allowed:"
    yield "10 %. The point of 1,000 tokens is left out: it is read off a plot by 10 ms, of 30.\n"
    yield f"![Time to first token]({NAME}/ttft.svg)\n"
    pairs = zip(setup["ttft_computed"], setup["ttft_loaded"], strict=True)
    yield from _rows(
        ("prompt, tokens", "computed, ms", "model", "", "loaded, ms", "model", ""),
        [(f"{a['at']:,.0f}", *_ms(a), *_ms(b)) for a, b in pairs],
    )
    yield "\n## Throughput by hit rate\n"
    yield "Prompts of 512 tokens that all come at once, no cache on the device (figure 2). Allowed: 10 %.\n"
    yield f"![Throughput by hit rate]({NAME}/hits.svg)\n"
    yield from _rows(
        ("found in host RAM", "tokens/s", "model", ""),
        [
            (
                "no host tier" if point["at"] < 0 else f"{point['at']:.0%}",
                f"{point['published']:,.0f}",
                f"{point['model']:,.0f}",
                _error(point),
            )
            for point in setup["throughput_by_hits"]
        ],
    )
    yield FIT
    yield (
        f"That share is {llama['copy_delay']:.0%}; the constant is {1e3 * llama['front_s']:.1f} ms; vLLM's "
        f"computed prompts take {fitted['scale']:.2f} times what AIConfigurator's profile of the same model "
        "and GPU says."
    )
    yield "\n## Bandwidth between host and device by size\n"
    yield "A thousand pieces at once (figures 3 and 4, read off by 0.3 GB/s, which is a third of the rate at"
    yield "4 KiB), against a constant for each piece and a rate: t0 + bytes / B. Allowed: 10 %; what is"
    yield "beyond is in the list above. To the host a piece of 4 KiB is read off as slower than one of 16,"
    yield "and no curve of that form falls.\n"
    yield f"![Bandwidth by size]({NAME}/bandwidth.svg)\n"
    both = zip(setup["to_device"], setup["to_host"], strict=True)
    yield from _rows(
        ("piece, KiB", "to the device, GB/s", "model", "", "to the host, GB/s", "model", ""),
        [(f"{a['at'] / 1024:,.0f}", *_gb(a), *_gb(b)) for a, b in both],
    )


def _table(setup: Mapping[str, Any]) -> Iterator[str]:
    yield "\n## Predicted: 16 H100s, eight engines of Qwen3-32B\n"
    yield "llm-d's table of November 2025. Allowed: 10 % of throughput, 5 points of gain, and the same"
    yield "verdict (a gain of 5 % or more is worth a tier).\n"
    yield from _rows(
        (
            "",
            "tokens/s",
            "model",
            "",
            "mean TTFT, s",
            "model",
            "mean latency, s",
            "model",
            "on the device",
            "in host RAM",
        ),
        [
            (
                row_name(one["row"]),
                f"{one['row']['tokens_per_s']:,.0f}",
                f"{one['tokens_per_s']:,.0f}",
                _percent(one["tokens_per_s"] / one["row"]["tokens_per_s"] - 1),
                f"{one['row']['mean_ttft_s']:.2f}",
                f"{one['mean_ttft_s']:.2f}",
                f"{one['row']['mean_e2e_s']:.1f}",
                f"{one['mean_e2e_s']:.1f}",
                f"{one['device_share']:.0%}",
                f"{one['host_share']:.0%}",
            )
            for one in setup["table"]
        ],
    )
    yield ""
    yield from _rows(
        ("gain", "published", "model", "points", "verdict"),
        [
            (
                row_name(one),
                _percent(one["published"]),
                _percent(one["model"]),
                f"{100 * (one['model'] - one['published']):+.1f}",
                "the same" if one["agrees"] else "the other",
            )
            for one in setup["table_gains"]
        ],
    )
    yield "\nAssumed, since the source does not say it:\n"
    yield from [f"- {assumption}" for assumption in ASSUMED]
    for package, reason in setup["oracles_left_out"].items():
        yield f"\n`{package}`, which was to predict the same rows, is left out here: {reason}"


def _hit_rates(setup: Mapping[str, Any]) -> Iterator[str]:
    yield "\n## Hit rates of the public Mooncake traces\n"
    yield "Accounting: blocks of 512 tokens as the trace names them, also a prompt's last one that is not"
    yield "full; the leading blocks that are held are hits; then the whole prompt is used, its end first; one"
    yield "LRU cache, cold at the start; every request counts, every block the same. Allowed: 0.1 point.\n"
    yield from _by_trace(
        setup,
        "hit_rates",
        ("capacity, tokens", "simulated elsewhere", "from stack distances"),
        lambda r: (f"{r['capacity']:,.0f}", f"{r['other']:.4f}", f"{r['ours']:.4f}"),
    )
    yield "`kvcache-simulator` (PyPI) counts the later half of the requests only, and tokens, not blocks:\n"
    yield from _by_trace(
        setup,
        "kvcache-simulator",
        ("capacity, blocks", "kvcache-simulator", "from stack distances"),
        lambda r: (f"{r['capacity']:,.0f}", f"{r['other']:.5f}", f"{r['ours']:.5f}"),
    )
    yield "Figure 9 of the Mooncake paper beside the same accounting of the public traces:\n"
    yield f"![Hit rate by capacity]({NAME}/mooncake.svg)\n"
    yield from _paper(setup)
    yield "\n### Of a sample\n"
    yield "Shares of tokens, at 41 capacities from 128 blocks to all. Allowed: 1 point at 1 % of blocks.\n"
    yield from _by_trace(
        setup,
        "sampled",
        ("blocks followed", "worst, points", "mean, points"),
        lambda r: (f"{r['followed']:.1%}", f"{100 * r['worst']:.1f}", f"{100 * r['mean']:.1f}"),
    )


def _by_trace(
    setup: Mapping[str, Any],
    name: str,
    head: tuple[str, ...],
    cells: Callable[[Mapping[str, Any]], tuple[str, ...]],
) -> Iterator[str]:
    """A table for each trace, empty where nothing was measured (`kvcache-simulator` may be left out)."""
    for trace in ("conversation", "synthetic"):
        found = setup.get(f"{name}, {trace}", [])
        yield from _rows((f"{trace}: {head[0]}", *head[1:]), [cells(one) for one in found])
        yield ""


def _paper(setup: Mapping[str, Any]) -> Iterator[str]:
    last = {trace: setup[f"paper, {trace}"][-1] for trace in ("conversation", "synthetic")}
    off = {trace: 100 * (one["other"] - one["ours"]) for trace, one in last.items()}
    full = {trace: setup[f"full blocks alone, {trace}"] for trace in last}
    left = {trace: 100 * (one["other"] - full[trace]) for trace, one in last.items()}
    yield (
        f"The paper's curves end {off['conversation']:.1f} points (conversation) and "
        f"{off['synthetic']:.1f} points (synthetic) higher. With unlimited capacity no policy matters: the "
        "hit rate is one less the share of first uses, which the file and the accounting alone decide. If a "
        "prompt's last block counts only when it is full, the public files end at "
        f"{full['conversation']:.4f} and {full['synthetic']:.4f}, and the paper "
        f"{left['conversation']:.1f} and {left['synthetic']:.1f} points higher than that. What then is left "
        "is in the files, which are not quite the paper's."
    )


def _user_cases(setup: Mapping[str, Any]) -> Iterator[str]:
    yield "## What people have reported\n"
    yield "Twelve situations (`benchmarks/validation/user_cases.py`), some of them in two settings. Each"
    yield "should get its verdict, for the right main reason, with the figure that the report turns on.\n"
    yield from _rows(
        ("case", "expected", "got", "main reason"),
        [
            (one["name"], one["expected"], one["got"] + ("" if one["agrees"] else " (off)"), one["reason"])
            for one in setup["user_cases"]
        ],
    )
    yield ""


def _emulated(setup: Mapping[str, Any]) -> Iterator[str]:
    yield "## Simulated and emulated\n"
    yield "The trace of `make bench NAME=emulator-fidelity`, shortened, at the cost that was calibrated"
    yield "there: in the engine model in virtual time, and on an emulated engine over HTTP in real time."
    yield "Allowed: 15 %.\n"
    yield from _rows(
        ("", "model", "emulated", ""),
        [
            (
                one["figure"],
                f"{one['model']:.3f}",
                f"{one['emulated']:.3f}",
                _percent(one["emulated"] / one["model"] - 1),
            )
            for one in setup["emulated"]
        ],
    )


def _charts(setup: Mapping[str, Any]) -> Iterator[tuple[str, Chart]]:
    lines = []
    for name, key in (("computed", "ttft_computed"), ("loaded", "ttft_loaded")):
        points = setup[key]
        lines.append(Line(f"{name}, published", _xy(points, "published"), dots=True))
        lines.append(Line(f"{name}, model", _xy(points, "model")))
    yield (
        "ttft",
        Chart("Time to first token, Llama-3.1-8B on an H100", "tokens of the prompt", "seconds", lines),
    )
    points = [point for point in setup["throughput_by_hits"] if point["at"] >= 0]
    hits = [Line("published", _xy(points, "published"), dots=True), Line("model", _xy(points, "model"))]
    yield "hits", Chart("Prefill throughput by hit rate", "share found in host RAM", "tokens a second", hits)
    copies = []
    for name, key in (("to device", "to_device"), ("to host", "to_host")):
        copies.append(Line(f"{name}, published", _xy(setup[key], "published", 1e9), dots=True))
        copies.append(Line(f"{name}, model", _xy(setup[key], "model", 1e9)))
    yield (
        "bandwidth",
        Chart("Bandwidth by the size of pieces", "bytes of a piece", "GB/s", copies, log_x=True),
    )
    rates = []
    for trace in ("conversation", "synthetic"):
        paper = [(r["capacity"], r["other"]) for r in setup[f"paper, {trace}"]]
        ours = [(r["capacity"], r["ours"]) for r in setup[f"paper, {trace}"]]
        rates += [Line(f"{trace}, paper", paper, dots=True), Line(f"{trace}, public", ours)]
    yield "mooncake", Chart("Hit rate by capacity, LRU", "tokens", "hit rate by blocks", rates, log_x=True)


def _xy(points: Sequence[Mapping[str, float]], key: str, unit: float = 1.0) -> list[tuple[float, float]]:
    return [(point["at"], point[key] / unit) for point in points]


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _ms(point: Mapping[str, float]) -> tuple[str, str, str]:
    return f"{1e3 * point['published']:,.0f}", f"{1e3 * point['model']:,.0f}", _error(point)


def _gb(point: Mapping[str, float]) -> tuple[str, str, str]:
    return f"{point['published'] / 1e9:.1f}", f"{point['model'] / 1e9:.1f}", _error(point)


def _error(point: Mapping[str, float]) -> str:
    return _percent(point["model"] / point["published"] - 1)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
