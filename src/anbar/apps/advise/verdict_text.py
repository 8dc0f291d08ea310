"""A verdict as text."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from anbar.plan.answer import in_words
from anbar.plan.capacities import Capacity
from anbar.plan.verdict import Verdict


def verdict_as_text(verdict: Verdict, width: int, *, with_arithmetic: bool) -> str:
    """The verdict first, then why, the figures, what would change it, and what was assumed."""
    out = StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    console.print(f"Verdict: {verdict.choice} (confidence: {verdict.confidence})")
    for number, reason in enumerate(verdict.reasons):
        console.print(f"{'because' if number == 0 else 'also'}: {reason.text}")
    console.print()
    console.print(_figures(verdict, with_arithmetic))
    if verdict.capacities:
        console.print()
        console.print(_curve(verdict.capacities))
    if verdict.tenants:
        console.print()
        console.print(_tenants(verdict))
    console.print()
    for doubt in verdict.doubts:
        console.print(f"doubt: {doubt}")
    for change in verdict.changes:
        console.print(f"would change it: {change.what} -> {change.choice} ({change.kind})")
    if verdict.lmcache:
        console.print(f"LMCache rather than Anbar's store: {verdict.lmcache}")
    for label, texts in (
        ("warning", verdict.warnings),
        ("not said", verdict.missing),
        ("assumed", verdict.assumptions),
    ):
        for text in texts:
            console.print(f"{label}: {text}")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _figures(verdict: Verdict, with_arithmetic: bool) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("quantity")
    table.add_column("value", justify="right", no_wrap=True)
    if with_arithmetic:
        table.add_column("how", style="dim")
    for figure in verdict.figures:
        how = [f"= {figure.how}"] if with_arithmetic else []
        table.add_row(figure.name, in_words(figure.value, figure.unit), *how)
    return table


_BAR = 20
"""Characters of the best hit rate there is."""


def _curve(capacities: Sequence[Capacity]) -> Table:
    """The miss-ratio curve at a few sizes."""
    best = max(row.found for row in capacities) or 1.0
    is_apart = capacities[0].found_apart is not None
    table = Table(box=None, pad_edge=False)
    table.add_column("a cache of", justify="right", no_wrap=True)
    table.add_column("finds", justify="right", no_wrap=True)
    if is_apart:
        table.add_column("each engine's own", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for row in capacities:
        apart = [] if row.found_apart is None else [in_words(row.found_apart, "share")]
        bar = "█" * round(_BAR * row.found / best)
        table.add_row(in_words(row.num_bytes, "bytes"), in_words(row.found, "share"), *apart, bar, row.name)
    return table


def _tenants(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("scope")
    for name in ("requests", "tokens saved", "GPU time saved"):
        table.add_column(name, justify="right")
    for tenant in verdict.tenants:
        saved = in_words(tenant.saved_tokens, "count"), in_words(tenant.saved_s, "s")
        table.add_row(tenant.scope or "(none)", f"{tenant.num_requests:,}", *saved)
    return table
