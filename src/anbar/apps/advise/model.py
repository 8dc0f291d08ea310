"""Which model is meant: a name in the catalogue, or a config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anbar.core.errors import ConfigError
from anbar.plan.catalogue import MODELS, model_named


def read_model(text: str) -> tuple[str, Mapping[str, Any]]:
    """Name in the catalogue ("" of a file), and the model's configuration. `text` is a name, a directory with
    a config.json, or such a file.

    Raises ConfigError: there is no such model, or the file cannot be read.
    """
    path = Path(text)
    if path.is_dir():
        path /= "config.json"
    if path.suffix != ".json" and not path.is_file():
        found = model_named(text)
        return next(name for name, config in MODELS.items() if config is found), found
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be an object, as config.json of a model is")
    return "", content
