"""What must agree where prefill and decode are split. Pure."""

from collections.abc import Iterator

from anbar.config.models import AnbarConfig, CacheMode, EngineConfig
from anbar.config.problems import KeyPath, Problem
from anbar.config.split import Role, SplitVia

_CACHE_MODE = {SplitVia.SHARED: CacheMode.SHARED, SplitVia.NIXL: CacheMode.NONE}


def check_roles(config: AnbarConfig) -> Iterator[Problem]:
    """Problems of `engines[].role` and `router.split`."""
    via = config.router.split.via
    if via is SplitVia.NONE:
        for index, engine in enumerate(config.engines):
            if engine.role is not Role.BOTH:
                text = f"is {engine.role}, but nothing is split; allowed: both, or set router.split.via"
                yield Problem(("engines", index, "role"), f"{text} (shared, nixl)")
        return
    where: KeyPath = ("router", "split", "via")
    wanted = _CACHE_MODE[via]
    if config.cache.mode is not wanted:
        text = f"is {via}, with cache.mode {config.cache.mode}; allowed: cache.mode {wanted}"
        yield Problem(where, text)
    if not any(engine.role is Role.PREFILL for engine in config.engines):
        yield Problem(where, f"is {via}, but no engine has `role: prefill`")
    yield from _lonely(config)


def _lonely(config: AnbarConfig) -> Iterator[Problem]:
    """Prefill engines whose model nobody answers for. What an attached engine serves is not known here."""
    answering = [engine for engine in config.engines if engine.role is not Role.PREFILL]
    names = {_served(engine) for engine in answering}
    for index, engine in enumerate(config.engines):
        if engine.role is not Role.PREFILL:
            continue
        name = _served(engine)
        if not answering or (name is not None and None not in names and name not in names):
            text = "is prefill, but no other engine is there to answer"
            yield Problem(
                ("engines", index, "role"),
                f"{text} for {name!r}: one needs role decode or both"
                if name is not None
                else f"{text}: one needs role decode or both",
            )


def _served(engine: EngineConfig) -> str | None:
    """None: not known before the engine is asked."""
    launch = engine.launch
    if launch is None:
        return None
    return launch.served_name or launch.model.rstrip("/").rsplit("/", 1)[-1]
