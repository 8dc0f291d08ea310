"""What a configuration refers to outside itself, tried before anything is started."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from anbar.apps.engine_key import engine_key
from anbar.apps.router.exchange_setup import secret_of
from anbar.apps.router.priors import Priors
from anbar.apps.store_password import password_of
from anbar.config.models import AnbarConfig, CacheMode
from anbar.config.problems import dotted
from anbar.config.stores import StoreConfig, members_of
from anbar.config.valkey import ValkeyStoreConfig
from anbar.core.errors import ConfigError


def unmet(config: AnbarConfig, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The key of each reference that leads nowhere, or to what cannot be used, and why, in the words that the
    router would have for it. `environ` may hold engines' API keys. Reads files, changes nothing."""
    for key, read in _references(config, environ):
        try:
            read()
        except ConfigError as error:
            yield key, str(error)


def _references(
    config: AnbarConfig, environ: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], object]]]:
    priors = Priors()
    for index, engine in enumerate(config.engines):
        key = "api_key_env" if engine.api_key_env is not None else "api_key_file"
        yield f"engines[{index}].{key}", partial(engine_key, engine, environ)
        where = f"engines: {engine.name!r}: cost_file"
        yield f"engines[{index}].cost_file", partial(priors.costs, engine.cost_file, where)
    yield "router.exchange.secret_file", partial(secret_of, config.router)
    if config.cache.mode is CacheMode.SHARED:
        for path, store in members_of(config.cache.store):
            yield from _of_store(store, dotted(path), environ)


def _of_store(
    store: StoreConfig, path: str, environ: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """What it needs to log in, and to know its server."""
    if (valkey := store.valkey) is not None and (valkey.password_env or valkey.password_file):
        key = f"{path}.valkey.{'password_env' if valkey.password_env else 'password_file'}"
        yield key, partial(_password, key, valkey, environ)
    for section in ("valkey", "s3"):
        for name in ("credentials_file", "ca_file", "cert_file", "key_file"):
            file = getattr(getattr(store, section), name, None)
            if file is not None:
                key = f"{path}.{section}.{name}"
                yield key, partial(_readable, key, file)


def _password(key: str, valkey: ValkeyStoreConfig, environ: Mapping[str, str]) -> None:
    try:
        password_of(valkey, environ)
    except ConfigError as error:
        raise ConfigError(f"{key}: {str(error).partition(': ')[2]}") from None


def _readable(key: str, file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error.strerror}") from None
