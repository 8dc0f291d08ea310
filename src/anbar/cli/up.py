"""`anbar up`, `anbar status`, `anbar down`."""

import asyncio
import os
import signal
import time
from typing import Annotated

import typer
from rich.console import Console

from anbar.adapters.process.proc import is_alive
from anbar.adapters.process.state import running
from anbar.adapters.vllm.launch import answers
from anbar.apps.stack.plan import StackPlan
from anbar.apps.stack.up import down as stop_stack
from anbar.apps.stack.up import up as run_stack
from anbar.cli.options import ConfigOption, SetOption, load_options
from anbar.cli.progress import make_reporter
from anbar.config.load import Loaded

PortOption = Annotated[int | None, typer.Option("--port", help="Short for --set router.port=PORT.")]
HostOption = Annotated[str | None, typer.Option("--host", help="Short for --set router.host=HOST.")]

_DOWN_LIMIT_S = 120.0


def up(
    file: ConfigOption = None, settings: SetOption = None, port: PortOption = None, host: HostOption = None
) -> None:
    """Start engines and router, and run until Ctrl-C."""
    shorthands = {
        "router.port": ("--port", str(port) if port is not None else None),
        "router.host": ("--host", host),
    }
    loaded = load_options(file, settings, shorthands)
    console = Console(stderr=False)
    reporter = make_reporter(console)
    # Until the stack listens to it, SIGTERM must unwind like Ctrl-C instead of leaving files behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def announce(plan: StackPlan, seconds: float) -> None:
        reporter.close()
        console.print(_ready_text(plan, seconds, loaded), markup=False, highlight=False, soft_wrap=True)

    try:
        asyncio.run(run_stack(loaded.config, dict(os.environ), reporter, announce))
        console.print("stopped; nothing is left running")
    finally:
        reporter.close()


def status(file: ConfigOption = None, settings: SetOption = None) -> None:
    """Say what runs on this configuration's state directory. Exit status 1 when nothing does."""
    state_dir = load_options(file, settings).config.state_dir
    state = running(state_dir)
    if state is None:
        typer.echo(f"nothing runs on {state_dir}")
        raise typer.Exit(1)
    typer.echo(f"{state.endpoint} (process {state.launcher.pid})")
    for part in state.parts:
        path = "/ready" if part.name == "router" else "/health"
        serves = is_alive(part.guard) and asyncio.run(answers(part.url, path))
        typer.echo(f"  {part.name:<20} {'serves' if serves else 'does not serve':<15} {part.url}  {part.log}")


def down(file: ConfigOption = None, settings: SetOption = None) -> None:
    """Stop the stack that runs on this configuration's state directory."""
    state_dir = load_options(file, settings).config.state_dir
    deadline = time.monotonic() + _DOWN_LIMIT_S

    def wait() -> bool:
        time.sleep(0.1)
        return time.monotonic() < deadline

    typer.echo("stopped" if stop_stack(state_dir, wait) else f"nothing runs on {state_dir}")


def _ready_text(plan: StackPlan, seconds: float, loaded: Loaded) -> str:
    endpoint = plan.router.url
    model = plan.models[0] if plan.models else "MODEL"
    message = '{"role":"user","content":"What is a storehouse?"}'
    body = f'{{"model":"{model}","messages":[{message}],"max_tokens":64}}'
    first = f"ready after {seconds:.0f} s: {endpoint}/v1"
    if plan.models:
        first += f" serves {', '.join(plan.models)}"
    return (
        f"\n{first}\n\n"
        f"  curl {endpoint}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'\n\n"
        f"logs:    {plan.state_dir / 'logs'}\n"
        f"config:  {loaded.path if loaded.path is not None else 'defaults'} (anbar config show)\n"
        f"to stop: Ctrl-C here, or `anbar down`\n"
    )
