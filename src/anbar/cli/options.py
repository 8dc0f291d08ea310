"""Options that several commands share, and how they become a configuration."""

import os
from pathlib import Path
from typing import Annotated

import typer

from anbar.config.load import Loaded, Override, load
from anbar.core.errors import ConfigError

DEFAULT_FILE = Path("anbar.yaml")

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


def load_options(
    file: Path | None, settings: list[str] | None, shorthands: dict[str, tuple[str, str | None]] | None = None
) -> Loaded:
    """The configuration that the options mean. `shorthands` maps a key to (option, text or None)."""
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
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
