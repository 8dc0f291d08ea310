"""`anbar router`: the endpoint in front of engines that already run. Needs neither torch nor vLLM."""

import os
import sys
from typing import Annotated

import typer

from anbar.apps.router.reload import Source
from anbar.apps.router.serve import run
from anbar.cli.options import ConfigOption, config_file, load_options


def router(
    file: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of router.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, instead of router.port.")] = None,
) -> None:
    """Serve one OpenAI endpoint in front of vLLM engines that already run.

    Logs one JSON object per line on standard error. SIGTERM or Ctrl-C lets running answers finish for
    router.drain_timeout_s; a second one ends at once. SIGHUP, or a change of the file, takes the
    configuration in anew; a bad one is refused and the old one goes on. With router.workers this process
    starts that many, which share the port, and passes signals on.
    """
    shorthands = {
        "router.host": ("--host", host),
        "router.port": ("--port", str(port) if port is not None else None),
    }
    file = config_file(file)
    source = Source(lambda: load_options(file, None, shorthands), file, os.environ)
    given = (("--config", file), ("--host", host), ("--port", port))
    options = [text for name, value in given if value is not None for text in (name, str(value))]
    worker = (sys.executable, "-m", "anbar.cli.main", "router", *options)
    raise typer.Exit(run(source, os.environ, sys.stderr.buffer, worker))
