"""`anbar config`: what is in force and where it came from, and whether a file is right."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import yaml

from anbar.apps.references import unmet
from anbar.cli.options import (
    ConfigOption,
    CostOption,
    EmulatedOption,
    SetOption,
    SpeedOption,
    emulated,
    load_options,
)
from anbar.config.load import Loaded
from anbar.core.errors import ConfigError

app = typer.Typer(help="Show or check the configuration.", no_args_is_help=True, add_completion=False)

_SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_HIDDEN = "(hidden)"


@app.command("show")
def show(
    file: ConfigOption = None,
    settings: SetOption = None,
    emulation: EmulatedOption = False,
    speed: SpeedOption = None,
    cost: CostOption = None,
    as_json: bool = typer.Option(False, "--json", help="As JSON, with origins beside it."),
) -> None:
    """Print the effective configuration, with where each value came from."""
    loaded, _ = emulated(load_options(file, settings), speed, cost, is_asked=emulation)
    data = _without_secrets(loaded.config.model_dump(mode="json"))
    if as_json:
        origins = dict(loaded.origins)
        typer.echo(json.dumps({"config": data, "origins": origins}, indent=2, ensure_ascii=False))
        return
    lines = list(_lines(data, loaded.origins, "", 0))
    width = min(60, max(len(text) for text, _ in lines))
    for text, origin in lines:
        typer.echo(f"{text:<{width}}  # {origin}" if origin else text)


@app.command("check")
def check(file: ConfigOption = None, settings: SetOption = None) -> None:
    """Check the configuration, and that the keys, cost files and secrets it names can be had here; says every
    problem at once."""
    loaded = load_options(file, settings)
    problems = [f"{loaded.origins[key]}: {why}" for key, why in unmet(loaded.config, os.environ)]
    if problems:
        several = [] if len(problems) == 1 else [f"{_name(loaded)}: {len(problems)} problems"]
        raise ConfigError("\n  ".join([*several, *problems]))
    typer.echo(f"{_name(loaded)}: fine")


def _name(loaded: Loaded) -> str:
    return str(loaded.path) if loaded.path is not None else "defaults"


def _without_secrets(data: dict[str, Any]) -> dict[str, Any]:
    for engine in data["engines"]:
        environment = (engine.get("launch") or {}).get("env", {})
        for name in environment:
            if _SECRET.search(name):
                environment[name] = _HIDDEN
    return data


def _lines(
    data: Mapping[str, Any], origins: Mapping[str, str], path: str, depth: int
) -> Iterator[tuple[str, str]]:
    """YAML, a line per value, with the origin of each."""
    for key, value in data.items():
        here = f"{path}.{key}" if path else key
        margin = "  " * depth
        if isinstance(value, Mapping) and value:
            yield f"{margin}{key}:", ""
            yield from _lines(value, origins, here, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{margin}{key}:", ""
            for index, item in enumerate(value):
                inner = list(_lines(item, origins, f"{here}[{index}]", depth + 2))
                (first, origin), *rest = inner
                yield f"{margin}  - {first.lstrip()}", origin
                yield from rest
        else:
            origin = origins.get(here) or origins.get(f"{here}[0]", "")
            yield f"{margin}{key}: {_scalar(value)}", origin


def _scalar(value: object) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True)
        .split("\n...")[0]
        .strip()
    )
