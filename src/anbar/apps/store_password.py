"""The password of a store, from where its configuration says."""

from collections.abc import Callable, Mapping

from anbar.config.valkey import ValkeyStoreConfig
from anbar.core.errors import ConfigError


def password_of(valkey: ValkeyStoreConfig, environ: Mapping[str, str]) -> Callable[[], str | None]:
    """Gives the password, None when none is configured; a file is read anew each time. Raises ConfigError,
    which never shows the password: here for a variable that is not set or a file that cannot be read, and
    later for a file that cannot be read any more."""

    key = "password_env" if valkey.password_env is not None else "password_file"

    def password() -> str | None:
        if valkey.password_env is not None:
            found = environ.get(valkey.password_env)
            if found is None:
                raise ConfigError(
                    f"store.valkey.password_env: the environment variable {valkey.password_env} is not set"
                )
        elif valkey.password_file is not None:
            try:
                found = valkey.password_file.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
                raise ConfigError(
                    f"store.valkey.password_file: {valkey.password_file} cannot be read: {why}"
                ) from None
        else:
            return None
        if not (found := found.strip()):
            raise ConfigError(f"store.valkey.{key}: the password is empty")
        return found

    password()
    return password
