"""`anbar router`: the endpoint in front of engines that already run. Needs neither torch nor vLLM."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from anbar.apps.router.app import run
from anbar.config.load import Override, load


def router(
    config: Annotated[Path, typer.Option("--config", "-c", help="The anbar.yaml that names the engines.")],
    host: Annotated[str | None, typer.Option(help="Address to listen on, instead of router.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, instead of router.port.")] = None,
) -> None:
    """Serve one OpenAI endpoint in front of vLLM engines that already run.

    Logs one JSON object per line on standard error. SIGTERM or Ctrl-C lets running answers finish for
    router.drain_timeout_s; a second one ends at once.
    """
    overrides = [
        Override(key, str(value), f"command line --{name}")
        for name, key, value in (("host", "router.host", host), ("port", "router.port", port))
        if value is not None
    ]
    loaded = load(config, environ=os.environ, overrides=overrides)
    raise typer.Exit(run(loaded.config, os.environ, sys.stderr.buffer))
