"""Several routers in the test's process, which exchange what they have in flight: each on a port of its own,
so that a test chooses which one gets a request."""

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from anbar.apps.emulator import EmulatedEngine
from anbar.apps.router.app import Router
from anbar.apps.router.worker import Worker
from anbar.config.load import load
from tests.integration.harness import eventually
from tests.integration.stack import Setup, Stack
from tests.ports import free_port, free_ports


@dataclass
class Sibling(Stack):
    """A router that is one of several."""

    router: Router

    async def elsewhere(self) -> int:
        """Requests of other routers that it counts."""
        return sum(engine["in_flight_elsewhere"] for engine in (await self.described()).values())

    async def hears(self, count: int) -> None:
        """Wait until it counts so many."""

        async def is_so() -> bool:
            return await self.elsewhere() == count

        await eventually(is_so, what=f"{count} requests of others are known")

    async def follows(self, count: int) -> None:
        """Wait until it hears so many other routers."""
        exchange = self.router.exchange
        assert exchange is not None
        await eventually(lambda: len(exchange.followed) == count, what=f"{count} routers are followed")


@asynccontextmanager
async def sibling_of(
    setup: Setup,
    engines: dict[str, EmulatedEngine],
    worker: Worker | None,
    ready: Sequence[str] | None = None,
) -> AsyncIterator[Sibling]:
    """One router as `worker` (None: alone on its machine) in front of engines, once those in `ready` (None:
    all) are."""
    port, log = free_port(), io.BytesIO()
    config = load(setup.write(engines, port), environ={}).config
    router = Router(config, {}, log, None, worker)
    await router.start()
    try:
        sibling = Sibling(port, engines, log, router)
        for name in engines if ready is None else ready:
            await sibling.becomes(name, "ready")
        yield sibling
    finally:
        await router.drain()
        await router.stop()


@asynccontextmanager
async def siblings_of(
    setup: Setup, engines: dict[str, EmulatedEngine], count: int = 2
) -> AsyncIterator[list[Sibling]]:
    """So many routers, each of which hears all others."""
    async with AsyncExitStack() as stack:
        found = []
        for place in range(count):
            worker = Worker(place, count, setup.directory)
            found.append(await stack.enter_async_context(sibling_of(setup, engines, worker)))
        for each in found:
            await each.follows(count - 1)
            await each.followed()
            await each.compared()
        yield found


@asynccontextmanager
async def machines_of(
    setup: Setup, engines: dict[str, EmulatedEngine], secrets: Sequence[str]
) -> AsyncIterator[list[Sibling]]:
    """Routers as on several machines, which dial each other's ports, each with a secret. All have the same
    list of peers, with their own address in it."""
    ports = free_ports(len(secrets))
    peers = [f"127.0.0.1:{port}" for port in ports]
    async with AsyncExitStack() as stack:
        found = []
        for port, secret in zip(ports, secrets, strict=True):
            path = setup.directory / f"secret-{port}"
            path.touch(mode=0o600)
            path.write_text(secret)
            listen = {"listen": f"127.0.0.1:{port}", "secret_file": str(path)}
            own = replace(setup, router={**setup.router, "peers": peers, "exchange": listen})
            found.append(await stack.enter_async_context(sibling_of(own, engines, None)))
        yield found
