"""`anbar explain`: why a request went where it went."""

import asyncio
from typing import Annotated

import typer

from anbar.adapters.process.state import running
from anbar.apps.explain import explanation
from anbar.cli.options import ConfigOption, SetOption, load_options
from anbar.config.load import Loaded

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to ask a router that listens on all addresses."""


def explain(
    request_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The request's x-request-id. Without one: the last requests."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="The router's address. Default: the stack that runs here, else router.port."),
    ] = None,
    file: ConfigOption = None,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As the router's JSON.")] = False,
) -> None:
    """Say why a request went where it went.

    Each engine, what it was predicted to take or why it could not serve the request, the choice, and how it
    ended. Asks a router on this machine, which knows the last requests only (router.explain.keep).
    """
    base = url if url is not None else _address(load_options(file, settings))
    typer.echo(asyncio.run(explanation(base, request_id, as_json)), nl=False)


def _address(loaded: Loaded) -> str:
    state = running(loaded.config.state_dir)
    if state is not None:
        return state.endpoint
    host = loaded.config.router.host
    host = _ANY.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{loaded.config.router.port}"
