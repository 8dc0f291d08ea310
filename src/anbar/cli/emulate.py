"""`anbar emulate`: vLLM servers that compute nothing. Needs neither a GPU nor torch nor vLLM."""

import os
import sys

import typer

from anbar.apps.emulator.flags import parse
from anbar.apps.emulator.fleet import run

app = typer.Typer(add_completion=False)


@app.command(
    "emulate",
    # The command line is vLLM's: its parser, not this one, says what is allowed and what --help shows.
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def emulate(context: typer.Context) -> None:
    """Serve vLLM's API without a GPU: emulated engines, by vLLM's own command line."""
    run(parse(context.args), os.environ, _say)


def _say(line: str) -> None:
    sys.stderr.write(f"anbar emulate: {line}\n")
    sys.stderr.flush()
