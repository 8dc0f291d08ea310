"""Options that several commands share, and how they become a configuration."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from anbar.apps.calibrate.files import read_cost_file
from anbar.apps.stack.ports import can_listen
from anbar.config.emulate import Emulation, emulate
from anbar.config.load import Loaded, Override, load, replaced
from anbar.core.errors import ConfigError

DEFAULT_FILE = Path("anbar.yaml")
_NO_COST = "none"


def number_parser(option: str) -> Callable[[str], float]:
    """For a `typer.Option`: what is no number is refused in our words, in one line."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"command line {option}: is {text!r}; allowed: numbers") from None

    return parse


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The configuration. Default: ./anbar.yaml if there is one, else defaults."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value, e.g. --set router.policy=round_robin."
    ),
]


EmulatedOption = Annotated[
    bool,
    typer.Option(
        "--emulated", help="Swap every engine for an emulated one: no GPU, no vLLM, answers are made up."
    ),
]
SpeedOption = Annotated[
    float | None,
    typer.Option(
        "--speed",
        metavar="FACTOR",
        parser=number_parser("--speed"),
        help="With --emulated: time passes so many times faster for engines.",
    ),
]
CostOption = Annotated[
    str | None,
    typer.Option(
        "--cost",
        metavar="FILE",
        help="With --emulated: what steps cost, as `anbar calibrate` measured; none: nothing. "
        "Default: an 8B model on an H100, estimated.",
    ),
]


def config_file(file: Path | None) -> Path | None:
    """The file that is meant: without one, ./anbar.yaml if there is one."""
    return DEFAULT_FILE if file is None and DEFAULT_FILE.is_file() else file


def load_options(
    file: Path | None, settings: list[str] | None, shorthands: dict[str, tuple[str, str | None]] | None = None
) -> Loaded:
    """The configuration that the options mean. `shorthands` maps a key to (option, text or None)."""
    file = config_file(file)
    overrides = [
        Override(key, text, f"command line {option}")
        for key, (option, text) in (shorthands or {}).items()
        if text is not None
    ]
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"command line --set {setting!r}: write it as KEY=VALUE, e.g. router.port=8001")
        overrides.append(Override(key.strip(), text, f"command line --set {key.strip()}"))
    return load(file, environ=os.environ, overrides=overrides)


def emulated(
    loaded: Loaded, speed: float | None = None, cost: str | None = None, *, is_asked: bool = True
) -> tuple[Loaded, tuple[str, ...]]:
    """The configuration with every engine emulated, if that is asked for, and what was assumed for it."""
    if not is_asked:
        for option, value in (("--speed", speed), ("--cost", cost)):
            if value is not None:
                raise ConfigError(f"command line {option}: allowed with --emulated only")
        return loaded, ()
    if cost is not None and cost != _NO_COST:
        cost = str(Path(cost).resolve())
        try:
            read_cost_file(Path(cost))
        except ConfigError as error:
            raise ConfigError(f"command line --cost: {error}") from error
    found = emulate(loaded.config, Emulation(speed, cost), lambda port: can_listen("127.0.0.1", port))
    return replaced(loaded, found.config, "command line --emulated"), found.assumptions


def command_line(command: str, file: Path | None, settings: Sequence[str], *more: str) -> str:
    """`anbar COMMAND` with these options, as it can be typed where this program was started."""
    options = ["--config", str(file)] if file is not None else []
    for setting in settings:
        options += ["--set", setting]
    return shlex.join([_program(), *command.split(), *options, *more])


def _program() -> str:
    """How this program was called; `anbar` where the path finds it, or where it was no program of its own."""
    called, found = Path(sys.argv[0]), shutil.which("anbar")
    if called.name != "anbar" or (found is not None and called.exists() and called.samefile(found)):
        return "anbar"
    return str(called)
