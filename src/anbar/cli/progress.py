"""How a starting stack looks: a live table on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

_PLAIN_INTERVAL_S = 15.0
"""On a log, an unchanged phase is said again this often: silence would look like a hang."""


class PlainReporter:
    """A line per change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, tuple[str, float]] = {}

    def phase(self, part: str, text: str, elapsed_s: float) -> None:
        last, at = self._said.get(part, ("", 0.0))
        if text != last or elapsed_s - at >= _PLAIN_INTERVAL_S:
            self._said[part] = (text, elapsed_s)
            self._say(f"{part}: {text} … {elapsed_s:.0f} s")

    def ready(self, part: str, elapsed_s: float) -> None:
        self._said.pop(part, None)
        self._say(f"{part}: ready after {elapsed_s:.0f} s")

    def note(self, text: str) -> None:
        self._say(text)

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}")

    def close(self) -> None:
        """Nothing is held."""

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveReporter:
    """A table of parts with spinners while something starts; notes scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, tuple[str, float, float]] = {}
        self._live: Live | None = None

    def phase(self, part: str, text: str, elapsed_s: float) -> None:
        self._rows[part] = (text, elapsed_s, time.monotonic())
        if self._live is None:
            self._live = Live(get_renderable=self._table, console=self._console, transient=True)
            self._live.start()

    def ready(self, part: str, elapsed_s: float) -> None:
        self._rows.pop(part, None)
        self._print(f"[green]✓[/] {part} ready after {elapsed_s:.0f} s")
        if not self._rows:
            self.close()

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the screen as plain text."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._rows.clear()

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        now = time.monotonic()
        for part, (text, elapsed_s, at) in self._rows.items():
            table.add_row(Spinner("dots", style="cyan"), part, text, f"{elapsed_s + now - at:.0f} s")
        return table


def make_reporter(console: Console) -> PlainReporter | LiveReporter:
    """The one that fits where `console` goes."""
    return LiveReporter(console) if console.is_terminal else PlainReporter(console)
