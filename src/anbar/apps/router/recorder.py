"""Which requests go into the block log, and what is written of each."""

from collections.abc import Callable
from pathlib import Path

from anbar.adapters.telemetry.block_ids import KeyedIds, record_key
from anbar.adapters.telemetry.block_log import BlockLogStats, BlockLogWriter, recorded
from anbar.adapters.telemetry.rotating_file import RotatingFile
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.record import Pending, Record
from anbar.config.record import RecordConfig
from anbar.core.block_log import UNKNOWN_BLOCK_SIZE, BlockLogEntry, PredictedTokens, trace_chain
from anbar.core.fleet import PrefixMatch
from anbar.core.outcome import RequestFinished
from anbar.core.request import RouteQuery

SCOPE = "default"
"""Of requests without a tenant and without a `cache_salt`."""


class Recorder:
    """Samples by session: all requests of a conversation are recorded or none, by every router with the same
    key. A conversation is what the session header or `user` says; without either, what begins with the same
    block. `wall_s` gives seconds since 1970. Does nothing before `start`, or when no path is configured.
    """

    def __init__(self, config: RecordConfig, fleet: Fleet, wall_s: Callable[[], float]) -> None:
        self._config = config
        self._fleet = fleet
        self._wall_s = wall_s
        self._ids = KeyedIds(b"")
        self._writer: BlockLogWriter | None = None

    def start(self, state_dir: Path, on_trouble: Callable[[str], None]) -> None:
        """Open the file; `on_trouble` is the writer's. Raises StackError."""
        config = self._config
        if config.path is not None:
            self._ids = KeyedIds(record_key(state_dir))
            file = RotatingFile(config.path, config.file_bytes, config.files)
            writer = BlockLogWriter(file, self._ids, on_trouble)
            writer.start()
            self._writer = writer

    def stop(self) -> None:
        """Write what waits, for a few seconds at most. Blocks."""
        if self._writer is not None:
            self._writer.stop()

    @property
    def needs_tokens(self) -> bool:
        """Prompts are to be tokenized even if routing does not look at them."""
        return self._config.path is not None

    @property
    def stats(self) -> BlockLogStats:
        return self._writer.stats if self._writer is not None else BlockLogStats()

    def begin(self, query: RouteQuery, engine: Engine) -> Pending | None:
        """Whether a request is to be recorded; `engine` is one that serves its model."""
        if self._writer is None:
            return None
        session = self._session(query, engine)
        return Pending(query, session) if self._ids.share(session) < self._config.rate else None

    def end(self, record: Record, finished: RequestFinished) -> None:
        """The request is over: have it written, if it is to be recorded."""
        pending, record.pending = record.pending, None
        if pending is None or self._writer is None:
            return
        engine = self._fleet.get(finished.engine) if finished.engine is not None else None
        query = pending.query
        entry = BlockLogEntry(
            timestamp=round((self._wall_s() - finished.e2e_s) * 1e3),
            input_length=finished.num_prompt_tokens,
            output_length=finished.num_output_tokens,
            block_size=_block_size(engine),
            model=finished.model,
            scope=self._scope(record.scope, query.cache_salt),
            session=pending.session,
            engine=finished.engine or "",
            predicted=_predicted(record),
            cached=finished.reported_cached_tokens,
            stream=finished.stream,
            ttft_ms=None if finished.ttft_s is None else round(finished.ttft_s * 1e3, 3),
            e2e_ms=round(finished.e2e_s * 1e3, 3),
            status=finished.status,
        )
        self._writer.offer(recorded(entry, _weights(engine, query), query))

    def _scope(self, scope: str | None, salt: str | None) -> str:
        """A tenant's scope keeps its name when a purge has changed its salt."""
        shared_by = salt if scope is None else scope
        return self._ids.name("scope", shared_by.encode()) if shared_by else SCOPE

    def _session(self, query: RouteQuery, engine: Engine) -> str:
        if query.session:
            return self._ids.name("session", query.session.encode())
        size = _block_size(engine)
        first = trace_chain(_weights(engine, query), _cut(query, size), size)
        named = first[0].to_bytes(8, "little") if first else query.request_id.encode()
        return self._ids.name("opening", named)


def _cut(query: RouteQuery, num_tokens: int) -> RouteQuery:
    """The query's first tokens: a whole conversation has them in common."""
    return RouteQuery(
        query.request_id, query.model, query.token_ids[:num_tokens], num_tokens, query.lora, query.cache_salt
    )


def _block_size(engine: Engine | None) -> int:
    return (engine.facts.block_size if engine is not None else 0) or UNKNOWN_BLOCK_SIZE


def _weights(engine: Engine | None, query: RouteQuery) -> str:
    """Engines with equal weights name equal blocks equally."""
    return (engine.facts.root if engine is not None else "") or query.model


def _predicted(record: Record) -> PredictedTokens:
    route = record.decision.route if record.decision is not None else None
    prediction = route.predictions.get(record.engine) if route is not None and record.engine else None
    match = prediction.match if prediction is not None else PrefixMatch()
    return PredictedTokens(match.device, match.host - match.device, match.shared - match.host)
