"""`anbar simulate`: a load on a fleet in virtual time."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.status import Status

from anbar.apps.simulate.html import as_html
from anbar.apps.simulate.report import Progress, run_scenario
from anbar.apps.simulate.scenario_file import Found, bundled, parse_scenario, read_scenario
from anbar.apps.simulate.text import as_csv, as_text
from anbar.core.errors import ConfigError


def simulate(
    scenario: Annotated[
        str | None, typer.Argument(help="A YAML file, or the name of a scenario that --list shows.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Which scenarios there are.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the scenario itself, to begin from.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="In place of the scenario's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="A row for each run.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.")
    ] = None,
) -> None:
    """Run a load on engines that are not there, in virtual time: the router's own decisions, the tiers' own
    rules. Same scenario and seed, same output, byte by byte."""
    texts = bundled()
    if list_them:
        width = max(map(len, texts))
        for name, text in texts.items():
            typer.echo(f"{name:{width}}  {parse_scenario(text, name).about}")
        return
    if scenario is None:
        raise ConfigError(f"command line: which scenario? A file, or one of {', '.join(texts)}")
    if as_json and csv:
        raise ConfigError("command line: --json and --csv; allowed: one of them")
    if show:
        read_scenario(scenario)
        typer.echo(texts.get(scenario) or Path(scenario).read_text(encoding="utf-8"), nl=False)
        return
    found = read_scenario(scenario)
    if seed is not None:
        found = Found(found.name, found.scenario.model_copy(update={"seed": seed}), found.directory)
    with _progress() as tell:
        report = run_scenario(found, tell)
    if html is not None:
        _write(html, as_html(report))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    elif csv:
        typer.echo(as_csv(report), nl=False)
    else:
        width = shutil.get_terminal_size((110, 24)).columns
        typer.echo(as_text(report, max(40, width)), nl=False)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """On a terminal alone, and away again afterwards."""
    if not sys.stderr.isatty():
        yield None
        return
    with Status("simulating", console=Console(stderr=True)) as status:

        def tell(what: str, at_s: float, num_done: int) -> None:
            status.update(f"{what}: {at_s:,.0f} s, {num_done:,} answers")

        yield tell


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written: {error.strerror}") from error
