"""How numbers are read from a model's config.json."""

from collections.abc import Mapping
from typing import Any

from anbar.core.errors import ConfigError


def text_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What describes the language model: models of several media have it below `text_config`."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def whole(model: Mapping[str, Any], key: str) -> int:
    """A number that must be there. Raises ConfigError, which names it."""
    value = model.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json: {key} is {value!r}, must be a whole number of at least 1")
    return value
