"""A report as one page that needs nothing else: tables, and plots as inline SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from anbar.apps.simulate.report import Report, Run
from anbar.apps.simulate.result import Samples
from anbar.apps.simulate.setup import Mode
from anbar.apps.simulate.svg import Axes, Line, plot
from anbar.apps.simulate.text import gain_in_words, run_columns

_STYLE = """
:root{--ink:#1c2024;--soft:#5b6570;--edge:#d8dee4;--page:#fff;--card:#f7f9fb;
--c0:#3a6ea5;--c1:#d1702a;--c2:#3d8f5f}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa5b1;--edge:#363d45;--page:#15191d;
--card:#1d2328;--c0:#74a9df;--c1:#ef9a5b;--c2:#6cc592}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px 20px 48px;max-width:1240px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{margin:0 0 2px;font-size:25px}h2{margin:34px 0 10px;font-size:18px}p{margin:4px 0}.soft{color:var(--soft)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:4px 14px 4px 0;text-align:right;border-bottom:1px solid var(--edge)}
th:first-child,td:first-child{text-align:left}th{font-weight:600}
.scroll{overflow-x:auto}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:18px}
figure{margin:0;padding:14px 14px 10px;background:var(--card);border:1px solid var(--edge);border-radius:8px}
figcaption{margin-bottom:6px;font-weight:600}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
svg text.name{fill:var(--ink)}.grid{stroke:var(--edge);stroke-width:1}.zero{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}
.mark.c0{fill:var(--c0)}.mark.c1{fill:var(--c1)}.mark.c2{fill:var(--c2)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;padding:4px 0 0 10px;font-size:13px}
.legend i{display:inline-block;width:14px;height:3px;margin:0 6px 4px 0;border-radius:2px}
.legend .c0{background:var(--c0)}.legend .c1{background:var(--c1)}.legend .c2{background:var(--c2)}
"""

_COLOURS = {Mode.NONE: 0, Mode.NATIVE: 1, Mode.SHARED: 2}
"""A mode has the same one in all plots."""
_WINDOWS = 30
"""Spans over which what is shown over time is counted."""


def as_html(report: Report) -> str:
    """The whole page."""
    title = escape(report.scenario)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{title}: anbar simulate</title><style>{_STYLE}</style></head><body>",
        f'<h1>{title}</h1><p class="soft">{escape(report.about)}</p>',
        *_summary(report),
        '<h2>Plots</h2><div class="plots">',
        *_figures(report),
        "</div><h2>Assumed</h2>",
        *(f"<p>{escape(text)}</p>" for text in report.assumptions),
        f'<p class="soft">anbar simulate {title} --seed {report.seed}</p></body></html>\n',
    ]
    return "".join(parts)


def _summary(report: Report) -> Iterator[str]:
    names, columns = run_columns(report)
    head = "".join(f"<th>{escape(run.mode)}</th>" for run in report.runs)
    yield f'<h2>Runs</h2><div class="scroll"><table><tr><th></th>{head}</tr>'
    for index, name in enumerate(names):
        cells = "".join(f"<td>{escape(column[index])}</td>" for column in columns)
        yield f"<tr><td>{escape(name)}</td>{cells}</tr>"
    yield "</table></div>"
    for gain in report.gains:
        yield f"<p>{escape(gain_in_words(gain))}</p>"
    for text in report.incidents:
        yield f"<p>{escape(text)}</p>"
    for found in report.break_even:
        yield f"<p><strong>Break-even: {escape(found.text)}</strong></p>"


def _figures(report: Report) -> Iterator[str]:
    runs = report.runs
    cdf = [
        _line(run, [(max(at_s, 1e-3), share / 100) for share, at_s in enumerate(run.result.ttft_cdf_s)])
        for run in runs
    ]
    axes = Axes("seconds", "requests", percent=True, log=True, most=1.0)
    yield _figure("Time to first token: share of requests within", plot(axes, cdf))
    done = [_line(run, _rate(run.result.samples, run.result.samples.num_done)) for run in runs]
    yield _figure("Throughput over time", plot(Axes("seconds", "answers/s"), done))
    found = Axes("seconds", "of prompt tokens", percent=True, most=1.0)
    for run in runs:
        yield _figure(f"Hit rate by tier over time, by tokens: {run.mode}", plot(found, _hits(run)))
    share = Axes("seconds", "share", percent=True, most=1.0)
    yield _figure("HBM blocks that requests hold", plot(share, _levels(runs, "hbm")))
    tiered = [run for run in runs if run.mode is not Mode.NONE]
    if tiered:
        yield _figure("Host RAM filled", plot(share, _levels(tiered, "host")))
    counts = Axes("seconds", "preemptions")
    yield _figure("Preemptions, all so far", plot(counts, _levels(runs, "num_preemptions")))
    yield _figure("Requests that wait", plot(Axes("seconds", "requests"), _levels(runs, "num_waiting")))
    if report.sweep:
        yield _figure("Gain in answer tokens/s by HBM utilisation without offload", _sweep(report))


def _line(run: Run, points: Sequence[tuple[float, float]]) -> Line:
    return Line(run.mode, points, _COLOURS[run.mode])


def _levels(runs: Sequence[Run], what: str) -> list[Line]:
    """A field of the samples, of each run."""
    return [
        _line(run, list(zip(run.result.samples.at_s, getattr(run.result.samples, what), strict=True)))
        for run in runs
    ]


def _sweep(report: Report) -> str:
    modes = list(dict.fromkeys(gain.mode for gain in report.sweep))
    lines = [
        Line(
            mode,
            sorted((gain.utilisation * 100, gain.throughput) for gain in report.sweep if gain.mode == mode),
            _COLOURS[mode],
            has_marks=True,
        )
        for mode in modes
    ]
    return plot(Axes("HBM blocks that requests hold, %", "gain", percent=True), lines)


def _figure(caption: str, content: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{content}</figure>"


def _windows(samples: Samples) -> list[int]:
    """Places of samples between which is counted: what is left over at the end is part of the last one."""
    last = len(samples.at_s) - 1
    step = max(1, round(last / _WINDOWS))
    places = list(range(0, last, step))
    if len(places) > 1 and samples.at_s[last] - samples.at_s[places[-1]] < step * samples.every_s:
        places.pop()
    return [*places, last]


def _rate(samples: Samples, total: list[int]) -> list[tuple[float, float]]:
    """By how much a total grows a second."""
    at_s = samples.at_s
    return [
        ((at_s[a] + at_s[b]) / 2, (total[b] - total[a]) / (at_s[b] - at_s[a]))
        for a, b in pairwise(_windows(samples))
        if at_s[b] > at_s[a]
    ]


def _hits(run: Run) -> list[Line]:
    samples = run.result.samples
    tiers = (("HBM", samples.device), ("host RAM", samples.host_hits), ("store", samples.shared))
    lines = []
    for colour, (name, total) in enumerate(tiers):
        if colour and not total[-1]:
            continue
        points = [
            ((samples.at_s[a] + samples.at_s[b]) / 2, min(1.0, (total[b] - total[a]) / asked))
            for a, b in pairwise(_windows(samples))
            if (asked := samples.prompt[b] - samples.prompt[a]) > 0
        ]
        lines.append(Line(name, points, colour))
    return lines
