"""Engines that a file or the DNS lists, from outside: they join and leave while a stream runs, and outages of
the source go unnoticed."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from anbar.apps.emulator import EmulatedEngine, Fault, FaultKind
from tests.dns_server import DnsFault, DnsServer, dns_server
from tests.integration.harness import eventually
from tests.integration.router import running_router
from tests.integration.stack import QUICK, Setup, Stack, completion, engines_of, open_stream, read_events
from tests.ports import free_port
from tests.waiting import PATIENCE_S

SRV = "_http._tcp.pool.test"
QUICKLY = {"every_s": 0.05, "leave_after": 3}


class Listed:
    """Where the router finds its engines."""

    def __init__(self, directory: Path, server: DnsServer | None) -> None:
        self._file = directory / "engines.json"
        self._server = server

    @property
    def discover(self) -> Mapping[str, Any]:
        if self._server is None:
            return {"file": str(self._file), **QUICKLY}
        return {
            "dns": SRV,
            "records": "srv",
            "nameserver": f"127.0.0.1:{self._server.port}",
            "empty_grace_s": 0.1,
            **QUICKLY,
        }

    def list(self, *engines: EmulatedEngine) -> None:
        """These are the engines now."""
        if self._server is not None:
            self._server.put("host.test", "A", "127.0.0.1")
            self._server.put(SRV, "SRV", *(f"0 0 {engine.port} host.test." for engine in engines))
            return
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps([engine.url for engine in engines]))
        new.rename(self._file)


@dataclass
class Site:
    """Two engines, where they are listed, and the router."""

    stack: Stack
    listed: Listed
    first: EmulatedEngine
    second: EmulatedEngine

    def are(self, *engines: EmulatedEngine) -> None:
        """What the stack is to be judged by: the router has these."""
        self.stack.engines.clear()
        self.stack.engines.update({name(engine): engine for engine in engines})

    async def become(self, **states: str) -> None:
        """Wait until these are the router's engines, and their states."""
        by_id = {name(getattr(self, which)): state for which, state in states.items()}

        async def they_are() -> bool:
            return {one: page["state"] for one, page in (await self.stack.described()).items()} == by_id

        await eventually(they_are, what=f"engines are {states}")

    async def entry(self) -> dict[str, Any]:
        (entry,) = (await self.stack.get("/admin/discovery")).json["entries"]
        return entry


def name(engine: EmulatedEngine) -> str:
    return f"pool@127.0.0.1:{engine.port}"


@asynccontextmanager
async def site(tokenizer: Path, directory: Path, server: DnsServer | None) -> AsyncIterator[Site]:
    """A router that has found the first of two engines."""
    async with engines_of(Setup(tokenizer, directory)) as engines, AsyncExitStack() as stack:
        first, second = engines.values()
        listed = Listed(directory, server)
        listed.list(first)
        port = free_port()
        content = {
            "state_dir": str(directory / "state"),
            "engines": [{"name": "pool", "discover": dict(listed.discover)}],
            "cache": {"mode": "shared", "store": {"id": "test"}},
            "router": {"port": port, **QUICK},
        }
        path = directory / "anbar.yaml"
        path.write_text(yaml.safe_dump(content))
        log = await stack.enter_async_context(running_router(path))
        made = Site(Stack(port, {}, log), listed, first, second)
        made.are(first)
        await made.become(first="ready")
        yield made
        await made.stack.assert_idle()


@asynccontextmanager
async def source(kind: str) -> AsyncIterator[DnsServer | None]:
    """A name server, if one is needed."""
    if kind == "file":
        yield None
        return
    async with dns_server() as server:
        yield server


@pytest.mark.parametrize("kind", ["file", "dns"])
async def test_engines_join_and_leave_while_a_stream_runs(
    tokenizer_dir: Path, socket_dir: Path, kind: str
) -> None:
    """The second engine takes the first one's place in the list during a stream: the stream ends well, and
    what is new goes to the second; the first is forgotten. It is listed again, alone: it is back."""
    async with source(kind) as server, site(tokenizer_dir, socket_dir, server) as its:
        its.first.arm(Fault(FaultKind.HANG_MID_STREAM, count=0))
        async with open_stream(its.stack.port, completion("a", max_tokens=20)) as raw:
            its.listed.list(its.second)
            await its.become(first="draining", second="ready")
            assert {(await its.stack.complete(f"b {i}")).engine for i in range(4)} == {name(its.second)}
            its.first.faults.clear()
            events = await asyncio.wait_for(read_events(raw), PATIENCE_S)
            assert events[-1] == b"[DONE]"
        await its.become(second="ready")
        its.listed.list(its.first)
        await eventually(lambda: its.first.is_idle)
        await its.become(first="ready")
        its.are(its.first)
        await its.stack.followed()
        assert (await its.stack.complete("c")).engine == name(its.first)
        assert (await its.entry())["left"] == 2


@pytest.mark.parametrize("kind", ["servfail", "refused", "nxdomain", "empty"])
async def test_an_outage_of_the_dns(tokenizer_dir: Path, socket_dir: Path, kind: str) -> None:
    """The name server fails, or says that nobody is there, for longer than any grace: both engines go on to
    answer, and it is said; when it is over, one leaves that is gone."""
    async with dns_server() as server, site(tokenizer_dir, socket_dir, server) as its:
        its.listed.list(its.first, its.second)
        await its.become(first="ready", second="ready")
        before = dict(server.records)
        match kind:
            case "nxdomain":
                server.records.clear()
            case "empty":
                server.records[SRV, "TXT"] = ["x"]
                del server.records[SRV, "SRV"]
            case _:
                server.faults[""] = DnsFault(kind)

        async def has_failed_often() -> bool:
            return (await its.entry())["looks_failed"].get(kind.replace("refused", "servfail"), 0) >= 5

        await eventually(has_failed_often)
        await its.become(first="ready", second="ready")
        assert (await its.stack.get("/ready")).status == 200
        assert (await its.stack.samples("anbar_discovery_failing")) == {'{entry="pool"}': 1.0}
        server.faults.clear()
        server.records = before
        its.listed.list(its.second)
        await its.become(second="ready")
        its.are(its.second)
        assert (await its.entry())["failure"] == ""


async def test_a_dead_engine_of_an_empty_name(tokenizer_dir: Path, socket_dir: Path) -> None:
    """The last engine is shut down and its record goes: it is no longer waited for after the grace, /ready is
    red. It comes back with its record: ready, and it gets traffic."""
    async with dns_server() as server, site(tokenizer_dir, socket_dir, server) as its:
        await its.first.die()
        server.put(SRV, "SRV")
        await its.become()
        assert (await its.stack.get("/ready")).json["reason"] == "no engine is ready"
        await its.first.revive()
        its.listed.list(its.first)
        await its.become(first="ready")
        assert (await its.stack.complete("a")).engine == name(its.first)
        await its.stack.followed()
