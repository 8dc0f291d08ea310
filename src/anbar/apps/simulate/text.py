"""Reports as text: a table for people, rows for spreadsheets."""

import csv
from io import StringIO

from rich.console import Console
from rich.table import Table

from anbar.apps.simulate.report import Gain, Report, Run

_ROWS = (
    ("requests", "{r.num_requests:,}"),
    ("time, s", "{r.span_s:,.1f}"),
    ("answers/s", "{r.throughput:.3f}"),
    ("answer tokens/s", "{r.answer_tokens_per_s:,.1f}"),
    ("good answers/s", "{r.goodput:.3f}"),
    ("first token p50, s", "{r.ttft_s.p50:.3f}"),
    ("first token p90, s", "{r.ttft_s.p90:.3f}"),
    ("first token p99, s", "{r.ttft_s.p99:.3f}"),
    ("between tokens p50, ms", "{itl50:.1f}"),
    ("between tokens p99, ms", "{itl99:.1f}"),
    ("found in HBM", "{device:.1%}"),
    ("found in host RAM", "{host:.1%}"),
    ("found in the store", "{shared:.1%}"),
    ("prompt tokens", "{r.tokens.prompt:,}"),
    ("computed", "{r.tokens.computed:,}"),
    ("avoided", "{r.tokens.avoided:,}"),
    ("of that for preempted", "{r.tokens.recovered:,}"),
    ("preemptions", "{r.num_preemptions:,}"),
    ("HBM held by requests", "{r.hbm_mean:.0%}"),
    ("host RAM filled", "{r.host_peak:.0%}"),
    ("GPU time, s", "{r.busy_s:,.1f}"),
)


def as_text(report: Report, width: int) -> str:
    """A column for each mode, what follows, and what was assumed."""
    out = StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    console.print(f"{report.scenario}: {report.about}" if report.about else report.scenario)
    console.print(_table(report))
    for gain in report.gains:
        console.print(gain_in_words(gain))
    for text in report.incidents:
        console.print(text)
    if report.sweep:
        console.print()
        console.print(_sweep(report))
        for found in report.break_even:
            console.print(f"break-even: {found.text}")
    console.print()
    for assumption in report.assumptions:
        console.print(f"assumed: {assumption}")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def gain_in_words(gain: Gain) -> str:
    """A sentence."""
    gained = f"{_more(gain.throughput)} answer tokens/s, {_more(gain.goodput)} good answers/s"
    return f"{gain.mode} against none: {gained}, {gain.computed:,} prompt tokens computed less"


def _more(share: float) -> str:
    return f"{round(share, 3) + 0.0:+.1%}"  # no -0.0 %


def run_columns(report: Report) -> tuple[list[str], list[list[str]]]:
    """Names of figures, and of each run the figures in words."""
    names = [name for name, _ in _ROWS]
    columns = [_filled(run) for run in report.runs]
    if any(run.result.tokens.transferred for run in report.runs):
        names.append("transferred, tokens")
        for column, run in zip(columns, report.runs, strict=True):
            column.append(f"{run.result.tokens.transferred:,}")
    if len(report.runs[0].result.streams) > 1:
        names += [f"{stream.name}: first token p90, s" for stream in report.runs[0].result.streams]
        for column, run in zip(columns, report.runs, strict=True):
            column += [f"{stream.ttft_s.p90:.3f}" for stream in run.result.streams]
    return names, columns


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for run in report.runs:
        table.add_column(run.mode, justify="right", no_wrap=True)
    names, columns = run_columns(report)
    for row in zip(names, *columns, strict=True):
        table.add_row(*row)
    return table


def _filled(run: Run) -> list[str]:
    result, tokens = run.result, run.result.tokens
    values = {
        "r": result,
        "itl50": result.itl_s.p50 * 1e3,
        "itl99": result.itl_s.p99 * 1e3,
        "device": tokens.rate(tokens.device),
        "host": tokens.rate(tokens.host),
        "shared": tokens.rate(tokens.shared),
    }
    return [text.format(**values) for _, text in _ROWS]


def _sweep(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (
        "KV tokens in HBM",
        "HBM held, none",
        "mode",
        "answer tokens/s",
        "good answers/s",
        "computed less",
    ):
        table.add_column(name, justify="left" if name == "mode" else "right")
    for gain in report.sweep:
        table.add_row(
            f"{gain.kv_tokens:,}",
            f"{gain.utilisation:.0%}",
            gain.mode,
            _more(gain.throughput),
            _more(gain.goodput),
            f"{gain.computed:,}",
        )
    return table


def as_csv(report: Report) -> str:
    """A row for each run."""
    out = StringIO()
    rows = csv.writer(out, lineterminator="\n")
    names = ("p50", "p90", "p99")
    tokens = ("prompt", "device", "host", "shared", "computed", "recovered", "transferred", "answers")
    rows.writerow(
        ["scenario", "mode", "kv_tokens", "requests", "span_s", "answers_per_s", "good_answers_per_s"]
        + [f"ttft_{name}_s" for name in names]
        + [f"itl_{name}_s" for name in names]
        + [f"tokens_{name}" for name in tokens]
        + ["preemptions", "hbm_mean", "host_peak", "busy_s"]
    )
    for run in report.runs:
        result = run.result
        rows.writerow(
            [report.scenario, run.mode.value, run.kv_tokens, result.num_requests, result.span_s]
            + [result.throughput, result.goodput]
            + [getattr(result.ttft_s, name) for name in names]
            + [getattr(result.itl_s, name) for name in names]
            + [getattr(result.tokens, name) for name in tokens]
            + [result.num_preemptions, result.hbm_mean, result.host_peak, result.busy_s]
        )
    return out.getvalue()
