"""The table of commands. A command's module is imported when it is asked for: `anbar status` should not wait
for a router's modules, nor should each of many emulated engines."""

import importlib
import signal
from collections import UserDict
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "up": "anbar.cli.up:up",
    "status": "anbar.cli.status:status",
    "down": "anbar.cli.status:down",
    "router": "anbar.cli.router:router",
    "explain": "anbar.cli.explain:explain",
    "emulate": "anbar.cli.emulate:app",
    "calibrate": "anbar.cli.calibrate:calibrate",
    "doctor": "anbar.cli.doctor:doctor",
    "model": "anbar.cli.model:model",
    "advise": "anbar.cli.advise:app",
    "simulate": "anbar.cli.simulate:simulate",
    "config": "anbar.cli.config:app",
    "cache": "anbar.cli.cache:app",
}
"""Each command's module, and in it the function or Typer application; in the order of `anbar --help`."""


RELOADING = frozenset({"router"})
"""Commands to which SIGHUP says: read the configuration again. Until they listen for it, it does nothing:
they have not read it yet. By default it would end them while they are imported."""


class Commands(TyperGroup):
    """The group of all commands, as click asks for them."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = _OnDemand(COMMANDS)


class _OnDemand(UserDict[str, Any]):
    """click commands by name; each is made when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name in RELOADING:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        module, _, attribute = self.data[name].partition(":")
        found: typer.Typer | Callable[..., None] = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(add_completion=False)
            found.command(name)(command)
        made = typer.main.get_command(found)
        made.name = name
        return made
