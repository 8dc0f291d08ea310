"""Answers as text."""

from io import StringIO

from rich.console import Console
from rich.table import Table

from anbar.plan.answer import Answer, in_words


def as_text(answer: Answer, width: int, *, with_arithmetic: bool) -> str:
    """A table of figures, what follows from them, and what was assumed."""
    out = StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("quantity")
    table.add_column("value", justify="right", no_wrap=True)
    if with_arithmetic:
        table.add_column("how", style="dim")
    for figure in answer.figures:
        cells = [figure.name, in_words(figure.value, figure.unit)]
        table.add_row(*cells, *([f"= {figure.how}"] if with_arithmetic else []))
    console.print(answer.title)
    console.print(table)
    console.print()
    console.print(answer.conclusion)
    for assumption in answer.assumptions:
        console.print(f"assumed: {assumption}")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
