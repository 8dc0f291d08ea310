"""`anbar status`, `anbar down`."""

import asyncio
import time
from pathlib import Path

import typer

from anbar.adapters.process.cleanup import ending
from anbar.adapters.process.state import running
from anbar.apps.stack.status import status_of
from anbar.apps.stack.up import down as stop_stack
from anbar.cli.options import ConfigOption, SetOption, load_options

_DOWN_LIMIT_S = 120.0


def status(file: ConfigOption = None, settings: SetOption = None) -> None:
    """Say what runs on this configuration's state directory. Exit status 1 when nothing does."""
    state_dir = load_options(file, settings).config.state_dir
    state = running(state_dir)
    if state is None:
        typer.echo(_ending_text(state_dir) or f"nothing runs on {state_dir}")
        raise typer.Exit(1)
    typer.echo(f"{state.endpoint} (process {state.launcher.pid})")
    rows = [("name", "kind", "pid", "port", "url", "state", "log")]
    for part in asyncio.run(status_of(state)):
        pid = str(part.pid) if part.pid is not None else "-"
        rows.append((part.name, part.kind, pid, str(part.port), part.url, part.state, part.log or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo(f"  {'  '.join(cells)}".rstrip())


def down(file: ConfigOption = None, settings: SetOption = None) -> None:
    """Stop the stack that runs on this configuration's state directory."""
    config = load_options(file, settings).config
    state_dir, drain_s = config.state_dir, config.router.drain_timeout_s
    deadline = time.monotonic() + drain_s + _DOWN_LIMIT_S

    def wait() -> bool:
        time.sleep(0.1)
        return time.monotonic() < deadline

    state = running(state_dir)
    if state is not None:
        who = f"stopping the stack (process {state.launcher.pid})"
        typer.echo(f"{who}: running answers get up to {drain_s:g} s to finish")
        stop_stack(state_dir, wait)
        typer.echo("stopped")
        return
    text = _ending_text(state_dir)
    typer.echo(text or f"nothing runs on {state_dir}")
    while text is not None and wait() and ending(state_dir) is not None:
        continue


def _ending_text(state_dir: Path) -> str | None:
    """What to say while processes of a killed launcher still live."""
    found = ending(state_dir)
    if found is None:
        return None
    state, parts = found
    names = ", ".join(f"{part.name} ({part.pid or part.guard.pid})" for part in parts)
    return f"the launcher (process {state.launcher.pid}) was killed; its processes are ending: {names}"
