"""`anbar up`."""

import asyncio
import json
import os
import signal
from typing import Annotated

import typer
from rich.console import Console

from anbar.apps.stack.plan import StackPlan
from anbar.apps.stack.up import up as run_stack
from anbar.cli.options import (
    ConfigOption,
    CostOption,
    EmulatedOption,
    SetOption,
    SpeedOption,
    command_line,
    emulated,
    load_options,
)
from anbar.cli.progress import make_reporter
from anbar.config.emulate import Emulation

PortOption = Annotated[
    str | None, typer.Option("--port", metavar="PORT", help="Short for --set router.port=PORT.")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Short for --set router.host=HOST.")]


def up(  # noqa: PLR0913, PLR0917 (each is an option of the command line)
    file: ConfigOption = None,
    settings: SetOption = None,
    port: PortOption = None,  # a text: the configuration checks it, in its own words
    host: HostOption = None,
    emulation: EmulatedOption = False,
    speed: SpeedOption = None,
    cost: CostOption = None,
) -> None:
    """Start engines and router, and run until Ctrl-C.

    With --emulated engines compute nothing: the whole stack runs in seconds, without GPU and vLLM.
    """
    shorthands = {
        "router.port": ("--port", port),
        "router.host": ("--host", host),
    }
    loaded = load_options(file, settings, shorthands)
    loaded, assumptions = emulated(loaded, speed, cost, is_asked=emulation)
    given = [f"{key}={text}" for key, (_, text) in shorthands.items() if text is not None] + (settings or [])
    swapped = ("--emulated", *Emulation(speed, cost).arguments()) if emulation else ()
    to_show = command_line("config show", file, given, *swapped)
    to_stop = command_line("down", file, [setting for setting in given if setting.startswith("state_dir=")])
    config = f"{loaded.path if loaded.path is not None else 'defaults'} ({to_show})"
    console = Console(stderr=False)
    reporter = make_reporter(console)
    for assumption in assumptions:
        reporter.note(assumption)
    # Until the stack listens to it, SIGTERM must unwind like Ctrl-C instead of leaving files behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def announce(plan: StackPlan, seconds: float) -> None:
        reporter.close()
        text = _ready_text(plan, seconds, config, to_stop)
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        asyncio.run(run_stack(loaded.config, dict(os.environ), reporter, announce))
        console.print("stopped; nothing is left running")
    finally:
        reporter.close()


def _ready_text(plan: StackPlan, seconds: float, config: str, to_stop: str) -> str:
    """`config`: which one it is, and how to see it; `to_stop`: the command that ends the stack."""
    endpoint = plan.router.url
    model = plan.models[0] if plan.models else "MODEL"
    message = '{"role":"user","content":"What is a storehouse?"}'
    body = f'{{"model":{json.dumps(model, ensure_ascii=False)},"messages":[{message}],"max_tokens":64}}'
    first = f"ready after {seconds:.0f} s: {endpoint}/v1"
    if plan.models:
        first += f" serves {', '.join(plan.models)}"
    num_emulated = sum(part.kind == "emulated" for part in plan.engines)
    if num_emulated:
        first += f" ({num_emulated} of {len(plan.engines)} engines emulated: their answers are made up)"
    return (
        f"\n{first}\n\n"
        f"  curl {endpoint}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'\n\n"
        f"logs:    {plan.state_dir / 'logs'}\n"
        f"config:  {config}\n"
        f"to stop: Ctrl-C here, or `{to_stop}`\n"
    )
