"""Takes in a changed configuration while the router runs: on SIGHUP, or when its file has changed.

A bad one is refused as a whole, with file, line and key, and the old one goes on. Of a good one, what can be
applied to a running router is (`LIVE`); what cannot is named, in the log and in `/admin/config`, until the
router is started again. Each configuration that changed anything has a number, its generation, which stands
in a metric and in every line of the log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anbar.apps.file_watch import FileWatch, Signature, signature
from anbar.apps.references import unmet
from anbar.config.load import Loaded, leaf_values
from anbar.config.models import AnbarConfig
from anbar.core.errors import ConfigError
from anbar.core.outcome import Emit, SupervisorCaught

WATCH_S = 1.0
"""Between two looks at the file. What was seen twice alike is read: an editor may be writing it."""

LIVE = frozenset(
    (
        "engines",
        "router.policy",
        "router.models",
        "router.split",
        "router.session",
        "router.prefix",
        "router.self_check",
        "router.max_body_bytes",
        "router.connect_timeout_s",
        "router.first_byte_timeout_s",
        "router.idle_timeout_s",
        "router.total_timeout_s",
        "router.health_interval_s",
        "router.drain_timeout_s",
        "router.client_kv_fields",
        "router.retry_share",
        "router.retry_floor",
        "router.breaker_failures",
        "router.breaker_pause_s",
        "router.max_ejected_share",
        "router.max_waiting",
        "router.slo_ttft_s",
        "router.idempotency_window_s",
        "router.idempotency_max_bytes",
        "router.continue_streams",
        "router.load_check_interval_s",
        "tenants",
    )
)
"""Keys, each with all below it, that apply to a running router."""

RESTART = frozenset(
    (
        "state_dir",
        "cache",
        "router.host",
        "router.port",
        "router.workers",
        "router.peers",
        "router.exchange",
        "router.index_max_blocks",
        "router.record",
        "router.explain",
    )
)
"""All others: what is bound, opened, allocated or agreed on at the start."""


def changed_keys(before: AnbarConfig, after: AnbarConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dotted paths whose values differ: those that are live, and those that need a restart."""
    old, new = leaf_values(before), leaf_values(after)
    known = old.keys() & new.keys()
    differ = sorted((old.keys() ^ new.keys()) | {path for path in known if old[path] != new[path]})
    live = tuple(path for path in differ if _is_live(path))
    return live, tuple(path for path in differ if not _is_live(path))


def _is_live(path: str) -> bool:
    return any(path == key or path.startswith((key + ".", key + "[")) for key in LIVE)


@dataclass(slots=True)
class ReloadState:
    """What became of the last configurations; for `/admin/config`."""

    generation: int = 1
    applied_at_s: float = 0.0
    """Seconds since 1970."""
    num_applied: int = 0
    num_refused: int = 0
    refusal: str = ""
    """Why the last one was refused; "" when it was not."""
    needs_restart: tuple[str, ...] = ()
    """Keys whose values in the file differ from those that this router runs with."""


class Source:
    """Where a configuration comes from, again and again. `load` reads and checks it (blocking; raises
    ConfigError); `path` is the file that is watched, None: none. `environ` may hold engines' keys."""

    def __init__(self, load: Callable[[], Loaded], path: Path | None, environ: Mapping[str, str]) -> None:
        self._load = load
        self._path = path
        self._environ = environ
        self._loaded: Loaded | None = None
        """What was read last."""
        self.read_as: Signature = None
        """The file as it was before it was last read: a change while it is read is one to come."""

    def read(self) -> AnbarConfig:
        self.read_as = self.look()
        self._loaded = self._load()
        return self._loaded.config

    def located(self, error: ConfigError) -> ConfigError:
        """The same with the place of the key, for what is only found when the configuration that was read
        last is put into effect: a reference to what is not there. Reads files."""
        if self._loaded is None:
            return error
        text, origins = str(error), self._loaded.origins
        where = (key for key, why in unmet(self._loaded.config, self._environ) if why == text)
        key = next(where, None)
        return error if key is None else ConfigError(f"{origins[key]}: {text}")

    def look(self) -> Signature:
        return None if self._path is None else signature(self._path)


@dataclass(frozen=True, slots=True)
class ReloadParts:
    """`apply` puts a configuration into effect (raises ConfigError, having changed nothing); `log` takes a
    line's kind and fields."""

    source: Source
    apply: Callable[[AnbarConfig], Awaitable[None]]
    log: Callable[[str, Mapping[str, object]], None]
    emit: Emit
    wall_s: Callable[[], float]


class Reloader:
    """See the module's text. `started` is the configuration that runs."""

    def __init__(self, started: AnbarConfig, parts: ReloadParts) -> None:
        self._started = started
        self._running = started
        self._parts = parts
        self._asked = asyncio.Event()
        self.state = ReloadState(applied_at_s=parts.wall_s())

    def ask(self) -> None:
        """Reload as soon as possible; for a signal handler."""
        self._asked.set()

    async def run(self) -> None:
        """Wait for signals and changes of the file, for good."""
        source = self._parts.source
        watch = FileWatch(source.read_as)
        while True:
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._asked.wait()
            except TimeoutError:
                if not watch.is_due(source.look()):
                    continue
            self._asked.clear()
            try:
                await self.reload()
            except Exception as error:  # noqa: BLE001 - the supervisor of reloads
                self._parts.emit(SupervisorCaught.of("reload", error))
            watch.was_read(source.read_as)

    async def reload(self) -> None:
        """Read the configuration once and apply or refuse it."""
        parts, state = self._parts, self.state
        try:
            config = await asyncio.get_running_loop().run_in_executor(None, parts.source.read)
            live, _ = changed_keys(self._running, config)
            if live:
                await parts.apply(config)
        except ConfigError as error:
            state.num_refused += 1
            state.refusal = str(parts.source.located(error))
            parts.log("config_refused", {"reason": state.refusal})
            return
        self._running = config
        _, state.needs_restart = changed_keys(self._started, config)
        state.refusal = ""
        if live:
            state.generation += 1
            state.num_applied += 1
            state.applied_at_s = parts.wall_s()
        parts.log("config_applied" if live else "config_unchanged", self._told(live))

    def _told(self, live: tuple[str, ...]) -> Mapping[str, object]:
        return {
            "generation": self.state.generation,
            "applied": live,
            "needs_restart": self.state.needs_restart,
        }
