"""The API key of an engine, from where its configuration says. For the router and for the doctor."""

from collections.abc import Mapping

from anbar.config.models import EngineConfig
from anbar.core.errors import ConfigError

_KEY_CHARACTERS = frozenset(map(chr, range(33, 127)))


def engine_key(engine: EngineConfig, environ: Mapping[str, str]) -> str | None:
    """The key without the blanks and line ends around it, fit for a header; None when none is configured.

    Raises ConfigError, which never shows the key.
    """
    key = _read(engine, environ)
    if key is None:
        return None
    key = key.strip()
    if not key or not _KEY_CHARACTERS.issuperset(key):
        raise ConfigError(
            f"engines: the API key of {engine.name!r} is empty or contains blanks, line breaks or characters "
            "outside ASCII; allowed: one word"
        )
    return key


def _read(engine: EngineConfig, environ: Mapping[str, str]) -> str | None:
    if engine.api_key_env is not None:
        key = environ.get(engine.api_key_env)
        if key is None:
            raise ConfigError(
                f"engines: {engine.name!r} takes its API key from the environment variable "
                f"{engine.api_key_env}, which is not set"
            )
        return key
    if engine.api_key_file is not None:
        try:
            return engine.api_key_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"engines: the API key file of {engine.name!r}, {engine.api_key_file}, cannot be read: "
                f"{_why(error)}"
            ) from error
    return None


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return (error.strerror or type(error).__name__).lower()
