"""What a configuration refers to outside itself, tried before anything is started."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from anbar.apps.engine_key import engine_key
from anbar.apps.router.exchange_setup import secret_of
from anbar.apps.router.priors import Priors
from anbar.config.models import AnbarConfig
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
