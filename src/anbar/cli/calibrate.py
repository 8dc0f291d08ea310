"""`anbar calibrate`: measures an engine and writes its cost file."""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from anbar.apps.calibrate.campaign import FULL, QUICK
from anbar.apps.calibrate.files import check_writable, write_cost_file
from anbar.apps.calibrate.given import parse_given
from anbar.apps.calibrate.live import calibrate_url, read_key
from anbar.apps.calibrate.run import Calibration

_DEFAULT_NAME = "MODEL-DEVICE.cost.json"
_UNFIT_FOR_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def calibrate(
    url: Annotated[
        str,
        typer.Argument(
            help="Base address of an idle vLLM engine, without /v1; it needs --enable-prompt-tokens-details."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help=f"File to write. Default: {_DEFAULT_NAME} here.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute, and less exact.")] = False,
    api_key_env: Annotated[
        str | None, typer.Option(help="Name of the environment variable that holds the engine's API key.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="What the engine does not tell: device, dtype, kv_bytes_per_token, max_num_batched_tokens.",
        ),
    ] = None,
) -> None:
    """Measure what an engine's steps cost, and write its cost file, for the emulator.

    Takes three to four minutes, --quick under one, of an engine that serves nobody else and fills its cache
    with random prompts. Nothing is written unless all of it worked.
    """
    check_writable(out or Path(_DEFAULT_NAME))
    settings, key = parse_given(given or ()), read_key(api_key_env, os.environ)
    console = Console()
    with _Shown(console) as shown:
        found = asyncio.run(calibrate_url(url, key, settings, QUICK if quick else FULL, shown.update))
    path = out if out is not None else _default_path(found)
    write_cost_file(path, found.content)
    _print(console, found)
    console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


def _default_path(found: Calibration) -> Path:
    engine = found.content.engine
    name = _UNFIT_FOR_NAMES.sub("-", f"{engine.model.rsplit('/', 1)[-1]}-{engine.device}").lower()
    return Path(f"{name}.cost.json")


class _Shown:
    """Progress: a bar on a terminal, a line per stage elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("connecting", total=1.0)
        self._started_s = time.monotonic()

    def __enter__(self) -> "_Shown":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, stage: str, share: float) -> None:
        if self._console.is_terminal:
            self._bar.update(self._task, description=stage, completed=share)
        else:
            elapsed_s = time.monotonic() - self._started_s
            self._console.print(f"{elapsed_s:4.0f} s  {stage}", markup=False, highlight=False, soft_wrap=True)


def _print(console: Console, found: Calibration) -> None:
    engine = found.content.engine
    console.print(
        f"{engine.model} · {engine.device} · {engine.dtype} · vLLM {engine.vllm} · "
        f"{engine.kv_bytes_per_token:,} bytes of KV per token",
        markup=False,
        highlight=False,
    )
    table = Table("coefficient", "value", "without one round", box=None, pad_edge=False)
    for row in found.coefficients:
        table.add_row(row.name, f"{row.value:.3g}", f"{row.low:.3g} … {row.high:.3g}")
    for name, value in _copies(found):
        table.add_row(name, f"{value:.3g}", "")
    console.print(table)
    errors = Table("measured", "count", "median error", "worst", "run to run", box=None, pad_edge=False)
    for residual in found.content.measured.residuals:
        shares = (residual.median_error, residual.worst_error, residual.spread)
        errors.add_row(residual.what, str(residual.count), *(f"{share:.1%}" for share in shares))
    console.print(errors)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)


def _copies(found: Calibration) -> list[tuple[str, float]]:
    cost = found.content.cost
    rows = [("tokenizing, s/token", cost.front_s_per_token)]
    for name, copy in (("load from host", cost.load), ("store to host", cost.store)):
        if copy.s_per_byte:
            rows += [(f"{name}, bytes/s", 1 / copy.s_per_byte), (f"{name}, s once", copy.latency_s)]
    return rows
