"""Engines that are listed in a file, with the whole router: they join and leave while requests run."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from scripted import ask, post, scripted
from test_reload import BODY, Site, states
from test_router import Pages, get
from tests.ports import free_port
from tests.waiting import until, within

from anbar.apps.router import app, reload
from anbar.apps.router.worker import Worker
from anbar.core.errors import ConfigError
from anbar.core.fleet import EngineState


class Pool(Site):
    """A router whose configuration says that its engines are listed in a file beside it."""

    listed: Path

    def configure(self, *static: Mapping[str, object], models: Any = None, **fields: Any) -> None:
        """Replace the configuration."""
        self.listed = self.path.with_name("engines.yaml")
        discover = {"file": "engines.yaml", "every_s": 0.02, "leave_after": 2, **fields.pop("discover", {})}
        router = {"port": self.port, "health_interval_s": 0.03, "models": models or {}}
        entries = [*static, {"name": "pool", "discover": discover, **fields}]
        self._replace(self.path, yaml.safe_dump({"engines": entries, "router": router}))

    def list(self, *items: object) -> None:
        """Replace the list of engines: ports, or what stands in the file."""
        known = [f"127.0.0.1:{item}" if isinstance(item, int) else item for item in items]
        self._replace(self.listed, json.dumps(known))

    def _replace(self, path: Path, text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)

    async def page(self) -> dict[str, Any]:
        """What `/admin/discovery` says of the entry."""
        _, page, _ = await get(self.port, "/admin/discovery")
        (entry,) = page["entries"]
        return entry

    async def metrics(self) -> set[str]:
        _, page, _ = await get(self.port, "/metrics")
        return {line for line in page.decode().splitlines() if line.startswith("anbar_discovery_")}


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(reload, "WATCH_S", 0.02)
    return Pool(tmp_path / "anbar.yaml")


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    with TemporaryDirectory(prefix="anbar-") as path:
        yield Path(path)


@asynccontextmanager
async def engines(number: int) -> AsyncIterator[tuple[list[Pages], list[int]]]:
    """Scripted engines and their ports; completions take until `computed`."""
    async with AsyncExitStack() as stack:
        pages = [Pages() for _ in range(number)]
        servers = [await stack.enter_async_context(scripted(page.script)) for page in pages]
        yield pages, [server.port for server in servers]


def ids(*ports: int) -> list[str]:
    return [f"pool@127.0.0.1:{port}" for port in ports]


def ready(*ports: int) -> dict[str, EngineState]:
    return dict.fromkeys(ids(*ports), EngineState.READY)


async def test_engines_join_and_leave_while_a_stream_runs(pool: Pool) -> None:
    """A second engine is listed, then the first one is not any more, though it has a request: the request
    gets its answer, and nothing else goes there; page, metrics and log say who came and went."""
    pool.configure()
    async with engines(2) as (pages, (first, second)):
        pages[1].computed.set()
        pool.list(first)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(first))
            leaving = router.fleet[next(iter(states(router)))]
            asked = asyncio.create_task(ask(pool.port, post(BODY)))
            await until(lambda: leaving.load.num_in_flight == 1)
            pool.list(first, second)
            await until(lambda: states(router) == ready(first, second))
            pool.list(second)
            await until(lambda: leaving.health.state is EngineState.DRAINING)
            assert leaving.health.reason == "no longer found"
            text = await ask(pool.port, post(BODY))
            assert f"x-anbar-engine: pool@127.0.0.1:{second}".encode() in text
            pages[0].computed.set()
            assert f"x-anbar-engine: pool@127.0.0.1:{first}".encode() in await within(asked)
            await until(lambda: states(router) == ready(second))
            page = await pool.page()
            assert [engine["id"] for engine in page["engines"]] == ids(second)
            assert (page["joined"], page["left"], page["failure"]) == (2, 1, "")
            metrics = await pool.metrics()
            assert 'anbar_discovery_engines{entry="pool"} 1.0' in metrics
            assert 'anbar_discovery_changes_total{change="left",entry="pool"} 1.0' in metrics
            await until(lambda: len(pool.lines("discovery")) >= 3)
            told = pool.lines("discovery")
            assert [(line["joined"], line["left"]) for line in told] == [
                (ids(first), []),
                (ids(second), []),
                ([], ids(first)),
            ]
            assert {line["config"] for line in told} == {1}


async def test_an_engine_comes_back_while_it_still_drains(pool: Pool) -> None:
    """It left with a request under way, and is listed again: it gets new ones, and the old one ends well."""
    pool.configure()
    async with engines(2) as (pages, (first, other)):
        pool.list(first, other)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(first, other))
            before = router.fleet[next(engine for engine in states(router) if engine in ids(first))]
            pool.list(first)
            await until(lambda: states(router) == ready(first))
            asked = asyncio.create_task(ask(pool.port, post(BODY)))
            await until(lambda: before.load.num_in_flight == 1)
            pool.list(other)
            await until(lambda: before.health.state is EngineState.DRAINING)
            pool.list(first)
            await until(lambda: states(router) == ready(first))
            assert router.fleet[before.id] is not before
            again = asyncio.create_task(ask(pool.port, post(BODY)))
            await until(lambda: router.fleet[before.id].load.num_in_flight == 1)
            pages[0].computed.set()
            for answer in (asked, again):
                assert b"HTTP/1.1 200" in await within(answer)


async def test_a_bad_list_changes_nothing(pool: Pool) -> None:
    """The page, the metric and the log name file, line and key; engines go on; a good one is taken."""
    pool.configure()
    async with engines(2) as (_, (first, second)):
        pool.list(first)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(first))
            pool.list(second, {"url": f"http://127.0.0.1:{second}", "tokeniser": "x"})
            await until(lambda: pool.lines("discovery_fails"))
            (line,) = pool.lines("discovery_fails")
            assert line["reason"].startswith(f"{pool.listed}:1: [1].tokeniser: unknown key")
            page = await pool.page()
            assert (page["failure"], page["error"]) == ("invalid", line["reason"])
            assert states(router) == ready(first)
            metrics = await pool.metrics()
            assert 'anbar_discovery_failing{entry="pool"} 1.0' in metrics
            assert any('failures_total{entry="pool",kind="invalid"}' in line for line in metrics)
            pool.listed.unlink()
            await until(lambda: len(pool.lines("discovery_fails")) >= 2)
            assert (pool.lines("discovery_fails")[1]["failure"], states(router)) == ("missing", ready(first))
            pool.list(second)
            await until(lambda: states(router) == ready(second))
            await until(lambda: [line["entry"] for line in pool.lines("discovery_works")] == ["pool"])


async def test_before_the_first_list(pool: Pool) -> None:
    """No file yet, beside an engine of its own: /ready is red and says why, requests are served; then green.
    A list of nobody is an answer too."""
    async with engines(1) as (pages, (port,)):
        pages[0].computed.set()
        pool.configure({"name": "own", "url": f"http://127.0.0.1:{port}"})
        async with pool.running() as router:
            await until(lambda: states(router) == {"own": EngineState.READY})
            await until(lambda: pool.lines("discovery_fails"))
            status, page, _ = await get(pool.port, "/ready")
            reason = f"no list of engines yet: pool ({pool.listed}: there is no such file)"
            assert (status, page["reason"]) == (503, reason)
            assert b"HTTP/1.1 200" in await ask(pool.port, post(BODY))
            pool.list()
            await until(lambda: pool.lines("discovery_works"))
            assert (await get(pool.port, "/ready"))[0] == 200


async def test_a_model_while_the_engines_are_not_known(pool: Pool) -> None:
    """Clients take 404 as final: there is none until the list has been read; then there is."""
    pool.configure()
    async with pool.running() as router:
        answer = await ask(pool.port, post(BODY))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"it is not known yet which engines there are" in answer
        pool.list()
        await until(lambda: not router.discovery.awaited())
        assert b"HTTP/1.1 404" in await ask(pool.port, post(BODY))


async def test_a_worker_listens_once_its_engines_are_found(pool: Pool, socket_dir: Path) -> None:
    """A restarted worker gets its part of the connections at once: its first request is answered."""
    pool.configure()
    async with engines(1) as (pages, (port,)):
        pages[0].computed.set()
        pool.list(port)
        async with pool.running(Worker(0, 2, socket_dir)):
            assert b"HTTP/1.1 200" in await ask(pool.port, post(BODY))


async def test_a_worker_listens_without_a_list(
    pool: Pool, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list is not there: it does not wait for good, since somebody may ask whether it is alive."""
    monkeypatch.setattr(app, "LISTED_S", 0.05)
    pool.configure()
    async with pool.running(Worker(0, 2, socket_dir)) as router:
        assert router.discovery.awaited()
        assert (await get(pool.port, "/health"))[0] == 200


async def test_the_fleet_is_made_anew_only_when_the_list_changes(pool: Pool) -> None:
    """Looks that find what was there before leave all as it is."""
    pool.configure()
    async with engines(1) as (_, (port,)):
        pool.list(port)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(port))
            (followed,) = router.discovery.followed
            looks, named = {followed.last_look_s}, router.naming.targets
            await until(lambda: looks.add(followed.last_look_s) or len(looks) > 5)
            assert router.naming.targets is named


async def test_an_engine_that_two_entries_have(pool: Pool) -> None:
    """It is listed and has an entry of its own: it is one engine, under the entry's name, and that is said.
    The entry goes: it is the pool's."""
    async with engines(2) as (_, (first, second)):
        own = {"name": "own", "url": f"http://127.0.0.1:{first}/"}
        pool.configure(own)
        pool.list(first, second)
        async with pool.running() as router:
            expected = {"own": EngineState.READY, **ready(second)}
            await until(lambda: states(router) == expected)
            await until(lambda: pool.lines("discovery_duplicates"))
            (line,) = pool.lines("discovery_duplicates")
            assert line["duplicates"] == {ids(first)[0]: "own"}
            assert (await pool.page())["unused"] == {ids(first)[0]: "own has this address too"}
            unused = 'anbar_discovery_unused_engines{entry="pool",reason="duplicate"} 1.0'
            assert unused in await pool.metrics()
            pool.configure()
            await until(lambda: states(router) == ready(first, second))
            assert (await pool.page())["unused"] == {}


async def test_one_engine_that_cannot_be_attached(pool: Pool, tmp_path: Path) -> None:
    """Its key file is not there: it is not used and that is said, the others are; then the file comes."""
    pool.configure()
    async with engines(2) as (_, (first, second)):
        pool.list(first, {"url": f"http://127.0.0.1:{second}", "api_key_file": "key"})
        async with pool.running() as router:
            await until(lambda: states(router) == ready(first))
            assert "key file" in (await pool.page())["unused"][ids(second)[0]]
            (tmp_path / "key").write_text("secret")
            await until(lambda: states(router) == ready(first, second))


async def test_an_entry_that_cannot_be_attached(pool: Pool, tmp_path: Path) -> None:
    """The entry's own key file is not there: the router does not start; at a reload it is refused."""
    pool.configure(api_key_file="key")
    pool.list()
    with pytest.raises(ConfigError, match=r"'pool'.*key"):
        async with pool.running():
            pass
    pool.configure()
    async with pool.running() as router:
        pool.configure(api_key_file="key")
        assert "'pool'" in (await pool.told(1))["reason"]
        assert router.discovery.followed[0].entry.api_key_file is None


async def test_what_the_entry_says_holds_for_each_engine(pool: Pool) -> None:
    """A reload changes the entry's key: each engine joins anew with it, without another look at the list."""
    pool.configure(discover={"every_s": 600.0})
    async with engines(1) as (_, (port,)):
        pool.list(port)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(port))
            before = router.fleet[next(iter(states(router)))]
            (pool.path.parent / "key").write_text("secret")
            pool.configure(discover={"every_s": 600.0}, api_key_file="key")
            await pool.told(1)
            await until(lambda: router.fleet[before.id] is not before and states(router) == ready(port))
            assert router.fleet[before.id].auth == ((b"authorization", b"Bearer secret"),)
            assert before.health.reason == "its entry has changed"


async def test_another_source_takes_over(pool: Pool) -> None:
    """A reload names another file: the engines of the old one stay until the new one has been read as often
    as it takes, and leave then; those in both stay what they are. Without the entry all leave."""
    pool.configure()
    async with engines(3) as (_, (first, both, second)):
        pool.list(first, both)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(first, both))
            kept = router.fleet[next(engine for engine in states(router) if engine in ids(both))]
            pool.listed.with_name("other.yaml").write_text(f"[127.0.0.1:{both}, 127.0.0.1:{second}]")
            pool.configure(discover={"file": "other.yaml"})
            await until(lambda: states(router) == ready(both, second))
            assert router.fleet[kept.id] is kept
            pool.write({"own": free_port()})
            await until(lambda: list(states(router)) == ["own"])
            assert router.discovery.followed == ()


async def test_a_name_for_the_engines_of_an_entry(pool: Pool) -> None:
    """A target's group is an entry with `discover`: it is served by who is found, by nobody while nobody is,
    and never by an engine outside."""
    async with engines(2) as (pages, (inside, outside)):
        for page in pages:
            page.computed.set()
        own = {"name": "own", "url": f"http://127.0.0.1:{outside}"}
        pool.configure(own, models={"x": {"model": "m", "engines": ["pool"]}})
        pool.list()
        async with pool.running() as router:
            await until(
                lambda: states(router) == {"own": EngineState.READY} and not router.discovery.awaited()
            )
            body = BODY.replace(b'"m"', b'"x"')
            assert b"HTTP/1.1 404" in await ask(pool.port, post(body))
            pool.list(inside)
            await until(lambda: states(router) == {"own": EngineState.READY, **ready(inside)})
            assert f"x-anbar-engine: pool@127.0.0.1:{inside}".encode() in await ask(pool.port, post(body))


async def test_a_found_engine_is_drained_by_hand(pool: Pool) -> None:
    """Its id stands in the path as it is."""
    pool.configure()
    async with engines(1) as (_, (port,)):
        pool.list(f"http://127.0.0.1:{port}/")
        async with pool.running() as router:
            await until(lambda: states(router) == ready(port))
            status, page, _ = await get(pool.port, f"/admin/engines/{ids(port)[0]}/drain", "POST")
            assert (status, page["state"]) == (200, "draining")


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "with a request under way"])
async def test_a_drain_ends_when_its_engine_leaves(pool: Pool, is_busy: bool) -> None:
    """Somebody drains an engine, restarts it, and it is listed again under its address: nobody says undrain,
    and it gets requests; so does one that still drains when it is back."""
    pool.configure()
    async with engines(2) as (pages, (port, other)):
        pool.list(port)
        async with pool.running() as router:
            await until(lambda: states(router) == ready(port))
            before = router.fleet[next(iter(states(router)))]
            asked = asyncio.create_task(ask(pool.port, post(BODY)))
            await until(lambda: before.load.num_in_flight == 1)
            await get(pool.port, f"/admin/engines/{ids(port)[0]}/drain", "POST")
            if not is_busy:
                pages[0].computed.set()
                await within(asked)
            pool.list(other)
            await until(lambda: before.health.state is EngineState.DRAINING)
            if not is_busy:
                await until(lambda: states(router) == ready(other))
            pool.list(port)
            await until(lambda: states(router) == ready(port))
            assert [engine.is_ready for engine in router.fleet] == [True]
            pages[0].computed.set()
            await within(asked)
