"""Several router processes on one port: one parent that starts, watches and ends them."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from anbar.apps.emulator import EmulatedEngine, Fault, FaultKind
from tests.integration.harness import Answer, call, eventually
from tests.integration.stack import COMPLETIONS, Setup, completion, engines_of, open_stream, read_events
from tests.integration.test_process import START_S, start
from tests.ports import free_port
from tests.waiting import PATIENCE_S, within


@dataclass
class Workers:
    """A parent, its workers by their pids, and all that they have logged."""

    process: asyncio.subprocess.Process
    port: int
    path: Path
    engines: dict[str, EmulatedEngine]
    lines: list[dict[str, Any]] = field(default_factory=list)
    num_sent: int = 0

    def alive(self) -> dict[int, psutil.Process]:
        return {child.pid: child for child in psutil.Process(self.process.pid).children()}

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def workers_that(self, event: str) -> set[int]:
        return {line["worker"] for line in self.logged(event)}

    async def complete(self) -> Answer:
        self.num_sent += 1
        return await call(self.port, "POST", COMPLETIONS, completion("a", max_tokens=1))

    async def counted(self) -> float:
        """Requests that were answered, as whichever worker is asked has it."""
        text = (await call(self.port, "GET", "/metrics")).body.decode()
        lines = (line for line in text.splitlines() if line.startswith("anbar_router_requests_total{"))
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def counts_all(self) -> None:
        """Wait until all are counted that were sent; then whoever is asked has the same number."""

        async def is_so() -> bool:
            return await self.counted() == self.num_sent

        await eventually(is_so, what="all requests are counted")
        assert [await self.counted() for _ in range(8)] == [self.num_sent] * 8

    async def read(self) -> None:
        """Every line of the log must be one: none may be torn by another process's."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))


@asynccontextmanager
async def workers_of(setup: Setup, count: int = 2) -> AsyncIterator[Workers]:
    async with engines_of(setup) as engines:
        port = free_port()
        path = setup.write(engines, port)
        process = await start(path)
        workers = Workers(process, port, path, engines)
        reading = asyncio.create_task(workers.read())

        def all_listen() -> bool:
            assert process.returncode is None, workers.lines
            return len(workers.logged("listening")) == count

        children: dict[int, psutil.Process] = {}
        try:
            await eventually(all_listen, START_S, "all workers listen")
            children = workers.alive()
            yield workers
        finally:
            if process.returncode is None:
                children |= workers.alive()
                process.kill()
            await process.wait()
            await eventually(lambda: gone(children), what="workers end with their parent")
            await within(reading)


def gone(processes: dict[int, psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes.values())


def scratch_of(workers: Workers) -> Path:
    """The private directory of a router's workers."""
    (one, *_) = workers.alive().values()
    return Path(one.environ()["ANBAR_ROUTER_WORKER"].partition(" ")[2])


async def until_both(does: Callable[[], set[int]], workers: Workers) -> None:
    """Send requests, each on a connection of its own, until both workers had some: the kernel draws."""

    async def asked() -> bool:
        assert (await workers.complete()).status == 200
        return does() == {0, 1}

    await eventually(asked, what="both workers get requests")


async def test_workers_share_a_port_and_drain_together(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Two workers answer on one port, a reload reaches both, another router is refused the port, and after
    SIGTERM a running stream comes to its end; exit code 0, and nothing is left."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, router={"workers": 2})
    async with workers_of(setup) as workers:
        await until_both(lambda: workers.workers_that("request"), workers)
        await workers.counts_all()
        scratch, children = scratch_of(workers), workers.alive()
        second = await start(workers.path)
        _, said = await within(second.communicate())
        assert second.returncode == 1
        assert b"is in use" in said

        config = yaml.safe_load(workers.path.read_text())
        config["router"]["policy"] = "round_robin"
        workers.path.write_text(yaml.safe_dump(config))
        workers.process.send_signal(signal.SIGHUP)
        await eventually(lambda: workers.workers_that("config_applied") == {0, 1}, what="both reload")

        workers.engines["e0"].arm(Fault(FaultKind.HANG_MID_STREAM))
        async with open_stream(workers.port, completion("b", max_tokens=60)) as raw:
            workers.process.send_signal(signal.SIGTERM)
            await eventually(lambda: len(workers.logged("drained")) == 1, what="the idle worker has drained")
            workers.engines["e0"].faults.clear()
            assert (await read_events(raw))[-1] == b"[DONE]"
        assert await within(workers.process.wait()) == 0
        assert gone(children)
        assert not scratch.exists()


async def test_a_killed_worker_is_replaced_and_a_killed_parent_followed(
    tokenizer_dir: Path, socket_dir: Path
) -> None:
    """Requests go on while one of two workers is dead, and it comes back. When the parent is killed the
    workers drain by themselves."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, router={"workers": 2})
    async with workers_of(setup) as workers:
        await until_both(lambda: workers.workers_that("request"), workers)
        await workers.counts_all()
        before = workers.alive()
        killed = next(iter(before.values()))
        killed.kill()
        await eventually(lambda: workers.logged("worker_ended"), what="the parent sees it")
        assert [(await workers.complete()).status for _ in range(8)] == [200] * 8
        await workers.counts_all()
        await eventually(lambda: len(workers.logged("listening")) == 3, START_S, "it listens again")
        seen = len(workers.lines)
        await until_both(
            lambda: {x["worker"] for x in workers.lines[seen:] if x["event"] == "request"}, workers
        )
        now, scratch = workers.alive(), scratch_of(workers)
        assert len(now) == 2
        assert len(now.keys() - before.keys()) == 1
        workers.process.kill()
        await workers.process.wait()
        await eventually(lambda: gone(now), what="the workers end too")
        await eventually(lambda: workers.workers_that("drained") == {0, 1}, what="their last lines are read")
        assert not scratch.exists()


async def test_a_worker_that_cannot_start_ends_all(tokenizer_dir: Path, socket_dir: Path) -> None:
    """What keeps workers from starting is said once by each, and the router ends as one process would."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, router={"workers": 2})
    engines = setup.engines()
    path = setup.write(engines, free_port())
    config = yaml.safe_load(path.read_text())
    config["engines"][0]["api_key_env"] = "NOT_SET_ANYWHERE"
    path.write_text(yaml.safe_dump(config))
    process = await start(path)
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2
    assert b"NOT_SET_ANYWHERE" in said
