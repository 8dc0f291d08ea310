"""`anbar doctor`: checks a machine and a configuration before anything is started."""

import dataclasses
import json
import os

import typer
from rich.console import Console
from rich.table import Table

from anbar.apps.doctor import Finding, Level, diagnose
from anbar.cli.options import ConfigOption, EmulatedOption, SetOption, emulated, load_options

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(
    file: ConfigOption = None,
    settings: SetOption = None,
    emulation: EmulatedOption = False,
    as_json: bool = typer.Option(False, "--json", help="As a JSON list of findings."),
) -> None:
    """Check this machine and the configuration, and say what to do. Exit status 1 when something fails."""
    loaded, _ = emulated(load_options(file, settings), is_asked=emulation)
    findings = list(diagnose(loaded.config, os.environ))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    console = Console()
    if not console.is_terminal:
        for finding in findings:
            typer.echo(f"{finding.level:<5} {finding.topic}: {finding.detail}")
            if finding.fix:
                typer.echo(f"      fix: {finding.fix}")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        style = _STYLES[finding.level]
        table.add_row(f"[{style}]{finding.level}[/]", finding.topic, finding.detail)
        if finding.fix:
            table.add_row("", "", f"→ {finding.fix}", style="dim")
    console.print(table)
