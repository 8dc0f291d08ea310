"""`EmulatedEngine`: everything joined, with a life that can end, start again cold, or misbehave."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.message import Answer, Header
from anbar.adapters.http.server import HttpServer
from anbar.apps.emulator.faults import Fault, Script
from anbar.apps.emulator.service import Service
from anbar.apps.emulator.settings import EngineSettings
from anbar.apps.emulator.state import EngineState
from anbar.apps.tasks import Tasks
from anbar.core.errors import RequestError, StackError, WireError
from anbar.sim.engine.counters import Counters

logger = logging.getLogger(__name__)

_KEEP_ALIVE_S = 5.0
"""As vLLM's server has it (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`)."""
_NO_LIMIT_S = 3600.0
_LIMITS = ServerLimits(
    max_body_bytes=1 << 30,
    header_timeout_s=_NO_LIMIT_S,
    body_timeout_s=_NO_LIMIT_S,
    keep_alive_s=_KEEP_ALIVE_S,
    write_stall_s=_NO_LIMIT_S,
)
"""vLLM's server sets none of these: a client may be as slow as it likes."""

_BIND_ATTEMPTS = 50
_BIND_RETRY_S = 0.01


def _refuse(refusal: RequestError, headers: Sequence[Header]) -> Answer:
    """What vLLM's server says to what is not HTTP/1.1."""
    return Answer(400, b"Invalid HTTP request received.", ((b"content-type", b"text/plain; charset=utf-8"),))


class EmulatedEngine(EngineState):
    """A vLLM server that computes nothing: `async with EmulatedEngine(settings) as engine: engine.url`.

    Set `pace.cost`, `event_faults` and `answer` at any time; `arm` faults and `script` exact answers; look at
    `records` and `counters`. `die` and `restart` act as SIGKILL and a new process would.
    """

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.port = settings.port
        self._service = Service(self, self._later)
        self._server: HttpServer | None = None
        self._tasks = Tasks()
        """Deaths on demand."""
        self._changing = asyncio.Lock()
        """Held while a life begins or ends."""
        self._num_orders = 0
        """Beginnings and ends that were ordered: the last one counts."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Base URL without a path, as `engines[].url` wants it."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def num_connections(self) -> int:
        """Client connections that are open now."""
        return len(self._server.connections) if self._server is not None else 0

    @property
    def is_alive(self) -> bool:
        """Between a start and its end."""
        return self._server is not None

    @property
    def is_changing(self) -> bool:
        """An order of /emulator/die or /emulator/restart has not been carried out."""
        return bool(self._tasks)

    @property
    def num_running(self) -> int:
        return self.life.engine.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences in the engine's queue, or still in front of it."""
        return self.life.engine.num_waiting + len(self.life.coming)

    @property
    def is_idle(self) -> bool:
        """Nothing runs, is stored or loaded, or will be announced."""
        return self.life.loop.is_idle and not self.life.coming

    @property
    def usage(self) -> float:
        """Share of the device's blocks that requests hold."""
        return self.life.engine.usage

    @property
    def counters(self) -> Counters:
        """Of this life."""
        return self.life.engine.counters

    def check_integrity(self) -> None:
        """AssertionError unless the model's blocks and queues agree."""
        self.life.engine.check_integrity()

    async def start(self) -> None:
        """Publish events and listen. StackError when the port is taken, WireError for the other addresses."""
        self._num_orders += 1
        async with self._changing:
            await self._start()

    async def stop(self) -> None:
        """End without ceremony; idempotent."""
        await self.die()
        await self._tasks.give_up()  # which only wait, in vain

    async def die(self) -> None:
        """What SIGKILL does: the listener, every connection and the event sockets are gone. Idempotent."""
        self._num_orders += 1
        async with self._changing:
            await self._end()

    async def revive(self) -> None:
        """A new process on the same port: cold device cache and host tier, sequence numbers from 0."""
        await self.start()

    async def restart(self) -> None:
        """Die and come back."""
        await self.die()
        await self.revive()

    async def _start(self) -> None:
        self.is_dying = False
        if self.is_alive:  # of several that want it back, another was first
            return
        await self.begin_life()
        self._server = HttpServer(self._service.handle, _LIMITS, refusal_answer=_refuse)
        try:
            self.port = await self._listen(self._server)
        except BaseException:
            self._server = None
            await self.end_life()
            raise

    async def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
            while server.connections:  # noqa: ASYNC110 - their ends are reported by the event loop, very soon
                await asyncio.sleep(0)
        await self._service.stop()
        await self.end_life()

    def reset_prefix_cache(self) -> bool:
        """Drop the device cache and say so (AllBlocksCleared); False while requests hold blocks."""
        return self.life.loop.clear_cache()

    def arm(self, fault: Fault) -> None:
        """Apply a fault from the next request on."""
        self.faults.arm(fault)

    def script(self, script: Script) -> None:
        """Answer the next generation request with exact bytes."""
        self.faults.scripts.append(script)

    async def _listen(self, server: HttpServer) -> int:
        settings = self.settings
        for attempt in range(_BIND_ATTEMPTS):
            try:
                return await server.start(settings.host, self.port)
            except OSError as error:
                # The port that an engine has just died on may take a moment to be free.
                if attempt + 1 == _BIND_ATTEMPTS or not self.port:
                    text = f"{settings.host}:{self.port} cannot be listened on: {error.strerror or error}"
                    raise StackError(text) from error
                await asyncio.sleep(_BIND_RETRY_S)
        raise AssertionError("unreachable")

    def _later(self, dead_s: float) -> None:
        """Die once the current answer is out, and serve nobody meanwhile; come back after `dead_s` (negative:
        never)."""
        self._num_orders += 1
        self.is_dying = True
        self._tasks.start(self._die_for(dead_s, self._num_orders))

    async def _die_for(self, dead_s: float, order: int) -> None:
        await asyncio.sleep(0.01)  # lets the answer to the admin call leave
        await self._obey(order, self._end)
        if dead_s < 0:
            return
        await asyncio.sleep(dead_s)
        try:
            await self._obey(order, self._start)
        except (StackError, WireError) as error:
            logger.error("the engine at %s does not come back: %s", self.url, error)

    async def _obey(self, order: int, act: Callable[[], Awaitable[None]]) -> None:
        """Unless another was given meanwhile."""
        async with self._changing:
            if order == self._num_orders:
                await act()
