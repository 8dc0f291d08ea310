"""`FakeEngine`: everything joined, with a life that can end, start again cold, or misbehave."""

import asyncio
from types import TracebackType
from typing import Self

from anbar.testing.fake_engine.faults import Fault, Script
from anbar.testing.fake_engine.http import HttpServer
from anbar.testing.fake_engine.service import Service
from anbar.testing.fake_engine.state import EngineState, FakeEngineConfig


class FakeEngine(EngineState):
    """A vLLM server that never computes anything: `async with FakeEngine(config) as engine: engine.url`.

    Set `pace`, `event_faults` and `answer` at any time; `arm` faults and `script` exact answers; look at
    `records` and `counters`. `die` and `restart` act as SIGKILL and a new process would.
    """

    def __init__(self, config: FakeEngineConfig) -> None:
        super().__init__(config)
        self._service = Service(self, self._later)
        self._server = HttpServer(self._service.handle, config.host, config.port)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        """Base URL without a path, as `engines[].url` wants it."""
        return f"http://{self.config.host}:{self.port}"

    @property
    def num_connections(self) -> int:
        """Client connections that are open now."""
        return self._server.num_connections

    async def start(self) -> None:
        """Publish events and listen."""
        if self.publisher is not None:
            await self.publisher.start()
        await self._server.open()

    async def stop(self) -> None:
        """End without ceremony; idempotent."""
        for task in list(self._tasks):
            task.cancel()
        await self.die()

    async def die(self) -> None:
        """What SIGKILL does: the listener, every connection and the event sockets are gone."""
        await self._server.vanish()
        if self.publisher is not None:
            await self.publisher.stop()

    async def revive(self) -> None:
        """A new process on the same port: cold device cache and host tier, sequence numbers from 0."""
        self.begin_life()
        await self.start()

    async def restart(self) -> None:
        """Die and come back."""
        await self.die()
        await self.revive()

    def reset_prefix_cache(self) -> bool:
        """Drop the device cache and say so (AllBlocksCleared); False while requests hold blocks."""
        cleared = self.cache.clear()
        self.scheduler.publish()
        return cleared

    def arm(self, fault: Fault) -> None:
        """Apply a fault from the next request on."""
        self.faults.arm(fault)

    def script(self, script: Script) -> None:
        """Answer the next generation request with exact bytes."""
        self.faults.scripts.append(script)

    def _later(self, dead_s: float) -> None:
        """Die once the current answer is out; come back after `dead_s` (negative: never)."""
        task = asyncio.get_running_loop().create_task(self._die_for(dead_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _die_for(self, dead_s: float) -> None:
        await asyncio.sleep(0.01)  # lets the answer to the admin call leave
        await self.die()
        if dead_s >= 0:
            await asyncio.sleep(dead_s)
            await self.revive()
