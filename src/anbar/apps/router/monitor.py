"""Finds out what engines are and whether they serve. Each has its own task: one that hangs delays none."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from anbar.adapters.http.fetch import Fetched, fetch
from anbar.adapters.http.upstream import NoDescriptor
from anbar.adapters.vllm.probe import (
    CacheFacts,
    EventSource,
    parse_adapters,
    parse_event_sources,
    parse_metrics,
    parse_models,
    parse_version,
)
from anbar.adapters.vllm.tokens import Tokenizer
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, EngineFacts, TokenCheck, UsageOption, facts_of
from anbar.apps.router.kv import KvFeed
from anbar.apps.router.token_probe import TokenProbe
from anbar.apps.router.tokenizers import Tokenizers
from anbar.core.clock import Clock
from anbar.core.errors import ConfigError, UpstreamTimeout, UpstreamUnreachable, WireError
from anbar.core.fleet import EngineState
from anbar.core.outcome import Emit, SupervisorCaught
from anbar.route import EngineProfile, Placements

PROBE_TIMEOUT_S = 5.0
"""For each page. An engine answers its pages in milliseconds, but not while it tokenizes a megabyte."""

FIRST_REPLAY_S = 3.0
"""How long a new engine waits for the next batch of the replay of its events before it gets requests: until
the replay is complete its cache would be taken for emptier than it is."""

LONGEST_REPLAY_S = 30.0
"""How long it waits at most, while batches come. A full replay buffer is taken in within seconds."""

RESYNC_S = 0.5
"""How long an engine that was away waits for word that its events are from the life we know, or from a new
one."""

_SEEDED_HASHES = "sha256"
"""Hash functions of vLLM whose seed is fixed, so that equal content has equal hashes on all engines."""


@dataclass(frozen=True, slots=True)
class AttachedEngine:
    """What the configuration says of an engine beyond its address."""

    events: str | None = None
    replay: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """What the configuration says of the engines' offloading; equal for all of them."""

    chunk_blocks: int = 0
    """Device blocks in one offloaded chunk; 0: none are offloaded."""
    stores: frozenset[str] = frozenset()
    """Owners, as events name them, of the shared stores."""


@dataclass(frozen=True, slots=True)
class MonitorParts:
    """What the monitor works with."""

    caches: Caches
    feed: KvFeed
    probe: TokenProbe
    executor: Executor
    emit: Emit
    clock: Clock
    cache: CacheSetup
    interval_s: float


class Monitor:
    """Watches engines until stopped."""

    def __init__(self, parts: MonitorParts) -> None:
        self._parts = parts
        self.interval_s = parts.interval_s
        """Seconds between two looks at an engine; may be changed at any time."""
        self._tasks: dict[Engine, asyncio.Task[None]] = {}
        self._tokenizers = Tokenizers(parts.executor)
        self._given: dict[Engine, Tokenizer] = {}
        """The tokenizer that each engine was compared with last."""

    def watch(self, engine: Engine, attached: AttachedEngine) -> None:
        """Begin to watch an engine, in a task of the running loop."""
        self._tasks[engine] = asyncio.get_running_loop().create_task(self._watch(engine, attached))

    async def unwatch(self, engine: Engine) -> None:
        """Look at an engine no more; when this returns, nothing of it is written any more."""
        task = self._tasks.pop(engine, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._given.pop(engine, None)
        self._parts.probe.leave(engine)

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        await self._parts.probe.stop()

    async def _watch(self, engine: Engine, attached: AttachedEngine) -> None:
        while True:
            try:
                await self._probe(engine, attached)
                engine.health.probe_succeeded()
                engine.breaker.probed(self._parts.clock.now_s())
            except NoDescriptor as error:
                self._parts.emit(SupervisorCaught.of("probe", error))  # not the engine's fault
            except UpstreamTimeout as error:
                engine.health.probe_was_late(str(error))
            except UpstreamUnreachable as error:
                engine.health.connection_failed(str(error))
            except (WireError, _Refused) as error:
                engine.health.probe_was_late(str(error))
            except Exception as error:  # noqa: BLE001 - the supervisor of the probes of one engine
                self._parts.emit(SupervisorCaught.of("probe", error))
                engine.health.probe_was_late(f"the probe failed ({type(error).__name__})")
            await asyncio.sleep(self.interval_s)

    async def _probe(self, engine: Engine, attached: AttachedEngine) -> None:
        """One look; raises what is wrong. An engine that was not ready is asked for everything anew, and what
        was learned of it is dropped, since another one may have taken its place."""
        await _page(engine, "/health")
        page = await _page(engine, "/v1/models")
        models = parse_models(page)
        if not models:
            raise WireError("/v1/models: lists no model")
        before = engine.facts
        engine.facts = facts_of(models, _cards(page), before)
        if engine.health.state is not EngineState.READY:
            engine.rest_until_s = 0.0
            engine.adapters.forget()
            engine.costs.forget()
            await self._admit(engine, attached)
        elif before.names != engine.facts.names or await self._has_new_tokenizer(engine, attached):
            await self._tokenizer(engine, attached)
        if engine.facts.adapters:
            engine.adapters.told = parse_adapters(await _page(engine, "/metrics"))

    async def _admit(self, engine: Engine, attached: AttachedEngine) -> None:
        cache = parse_metrics(await _page(engine, "/metrics"))
        version = parse_version(await _page(engine, "/version"))
        block_size = cache.block_size if cache is not None else 0
        # Block 0 holds nothing (vLLM's null block).
        kv_tokens = block_size * max(0, (cache.num_blocks or 0) - 1) if cache is not None else 0
        engine.facts = replace(engine.facts, version=version, block_size=block_size, kv_tokens=kv_tokens)
        engine.usage = UsageOption.UNTRIED
        await self._tokenizer(engine, attached)
        profile = _profile(engine.facts, cache, self._parts.cache)
        if profile != engine.profile:
            # What the stream has said is dropped with the old profile, so it must be followed from its start.
            await self._parts.feed.leave(engine)
        engine.profile = profile
        _remember(self._parts.caches.placements, engine, cache)
        if profile is None:
            self._parts.caches.index.detach(engine.id)
            return
        self._parts.caches.index.attach(engine.id, profile)
        source = await _source(engine, attached)
        if source is None:
            await self._parts.feed.leave(engine)
            return
        await self._parts.feed.follow(engine, source.events, source.replay)
        if source.replay is None:
            return
        if engine.health.state is EngineState.STARTING:
            await _replayed(engine, FIRST_REPLAY_S, LONGEST_REPLAY_S)
        else:
            self._parts.feed.resync(engine)
            await _replayed(engine, RESYNC_S, RESYNC_S)

    async def _tokenizer(self, engine: Engine, attached: AttachedEngine) -> None:
        """Load the tokenizer if there is one on this machine; else the engine's own will be asked."""
        path = attached.tokenizer or _local(engine.facts.root)
        if path is None:
            self._remote(engine)
            engine.tokenizer_note = "the engine's /tokenize: its model is not on this machine"
            return
        try:
            tokenizer = await self._tokenizers.load(path, engine.facts.max_model_len)
        except ConfigError as error:
            self._remote(engine)
            engine.tokenizer_note = f"the engine's /tokenize: {error}"
            return
        self._given[engine] = tokenizer
        await self._parts.probe.adopt(engine, tokenizer, path)

    async def _has_new_tokenizer(self, engine: Engine, attached: AttachedEngine) -> bool:
        """Whether its tokenizer is to be compared again: the files were loaded anew for another engine that
        has them, or they have changed since this one was found to compute other tokens than they say."""
        path = attached.tokenizer or _local(engine.facts.root)
        if path is None:
            return False
        if engine.tokens in (TokenCheck.DIFFERS, TokenCheck.REMOTE):
            return await self._tokenizers.has_changed(path, engine.facts.max_model_len)
        return not self._tokenizers.is_current(self._given[engine])

    def _remote(self, engine: Engine) -> None:
        engine.tokens = TokenCheck.REMOTE
        self._given.pop(engine, None)
        self._parts.probe.leave(engine)


class _Refused(Exception):
    """A page answered with an error status."""


async def _fetch(engine: Engine, path: str) -> Fetched:
    return await fetch(engine.pool, path, headers=engine.auth, timeout_s=PROBE_TIMEOUT_S)


async def _page(engine: Engine, path: str) -> bytes:
    reply = await _fetch(engine, path)
    if reply.status == 401:
        raise _Refused(f"{path} answered 401: set api_key_env or api_key_file of this engine")
    if reply.status != 200:
        raise _Refused(f"{path} answered {reply.status}")
    return reply.body


def _local(root: str) -> str | None:
    """The model's own directory, when the engine loaded it from one that this machine has too."""
    return root if Path(root).is_absolute() and Path(root).is_dir() else None


def _cards(page: bytes) -> Mapping[str, Mapping[str, object]]:
    """The entries of a page that `parse_models` has accepted."""
    return {card["id"]: card for card in msgspec.json.decode(page)["data"]}


def _remember(placements: Placements, engine: Engine, cache: CacheFacts | None) -> None:
    """An engine that was not healthy may have lost its cache; one that does not tell of one is taken to have
    one, since most do."""
    if engine.health.state is EngineState.UNHEALTHY:
        placements.forget(engine.id)
    if cache is None or cache.prefix_caching:
        placements.attach(engine.id, engine.facts.root, engine.facts.block_size)
    else:
        placements.detach(engine.id)


def _profile(facts: EngineFacts, cache: CacheFacts | None, setup: CacheSetup) -> EngineProfile | None:
    """What the index must know; None when there is no prefix cache to predict."""
    if cache is None or not cache.prefix_caching:
        return None
    fingerprint = ""
    if cache.hash_algorithm.startswith(_SEEDED_HASHES):
        fingerprint = f"vllm-{facts.version}/{cache.hash_algorithm}/{setup.chunk_blocks}"
    return EngineProfile(
        model=facts.root,
        block_size=cache.block_size,
        chunk_blocks=setup.chunk_blocks,
        fingerprint=fingerprint,
        stores=setup.stores,
    )


async def _source(engine: Engine, attached: AttachedEngine) -> EventSource | None:
    """Where the engine publishes. With several data-parallel ranks nothing is followed: which of their caches
    a request will meet is the engine's choice. Raises UpstreamError."""
    if attached.events is not None:
        return EventSource(0, attached.events, attached.replay)
    reply = await _fetch(engine, "/kv_event_sources")
    if reply.status != 200:
        return None
    try:
        sources = parse_event_sources(reply.body, engine.pool.endpoint.host)
    except WireError:
        return None
    return sources[0] if len(sources) == 1 else None


async def _replayed(engine: Engine, patience_s: float, longest_s: float) -> None:
    """Wait until the engine's stream is complete; not longer than `patience_s` without a batch of it."""
    loop = asyncio.get_running_loop()
    status = engine.kv.status
    now_s = loop.time()
    num_batches, until_s, end_s = status.num_batches, now_s + patience_s, now_s + longest_s
    # Polled: this happens when an engine appears, and the stream's status is a plain value.
    while not status.complete and now_s < min(until_s, end_s):
        await asyncio.sleep(0.02)
        now_s = loop.time()
        if status.num_batches != num_batches:
            num_batches, until_s = status.num_batches, now_s + patience_s
