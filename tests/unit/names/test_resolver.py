"""The resolver against a server of the test's: what it tells of names, and how it says that it cannot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dns.asyncresolver
import dns.resolver
import pytest
import pytest_asyncio
from tests.dns_server import DnsFault, DnsServer, dns_server
from tests.ports import free_port
from tests.waiting import PATIENCE_S, within

from anbar.adapters.dns import Addresses, Resolver, Service
from anbar.adapters.dns import resolver as resolver_module
from anbar.core.errors import LookFailed
from anbar.core.look import LookFailure

SRV = "_http._tcp.pool.test"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with dns_server() as running:
        yield running


def resolver(server: DnsServer, lifetime_s: float = PATIENCE_S) -> Resolver:
    return Resolver([("127.0.0.1", server.port)], lifetime_s)


async def failure(ask: Awaitable[object]) -> LookFailure:
    with pytest.raises(LookFailed) as caught:
        await within(ask)
    return caught.value.failure


async def test_addresses(server: DnsServer) -> None:
    """In order, with the time to live; of both families; a dot at the end of the name changes nothing."""
    server.put("pool.test", "A", "10.0.0.9", "10.0.0.10")
    server.put("pool.test", "AAAA", "fd00::2", "fd00::1")
    ask = resolver(server)
    assert await ask.addresses("pool.test") == Addresses(("10.0.0.10", "10.0.0.9"), 30.0)
    assert (await ask.addresses("pool.test.")).values == ("10.0.0.10", "10.0.0.9")
    assert (await ask.addresses("pool.test", v6=True)).values == ("fd00::1", "fd00::2")


async def test_more_addresses_than_a_datagram_holds(server: DnsServer) -> None:
    """The answer is cut, and comes whole by TCP."""
    many = sorted(f"10.0.{i // 250}.{i % 250}" for i in range(600))
    server.put("pool.test", "A", *many)
    assert (await resolver(server).addresses("pool.test")).values == tuple(many)
    assert server.num_by_tcp == 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (DnsFault.SERVFAIL, LookFailure.SERVER),
        (DnsFault.REFUSED, LookFailure.SERVER),
        (DnsFault.SILENT, LookFailure.TIMEOUT),
        (DnsFault.GARBAGE, LookFailure.TIMEOUT),
    ],
)
async def test_a_server_that_does_not_answer(
    server: DnsServer, fault: DnsFault, expected: LookFailure
) -> None:
    """It is told from a name that is not there. What cannot be read is nobody's answer."""
    server.put("pool.test", "A", "10.0.0.9")
    server.faults[""] = fault
    assert await failure(resolver(server, 0.2).addresses("pool.test")) is expected


async def test_nobody_is_there() -> None:
    """Nothing listens at the server's address."""
    ask = Resolver([("127.0.0.1", free_port())], 0.2)
    assert await failure(ask.addresses("pool.test")) in (LookFailure.TIMEOUT, LookFailure.SERVER)


async def test_the_second_server_answers_for_the_first(server: DnsServer) -> None:
    """The first one refuses."""
    server.put("pool.test", "A", "10.0.0.9")
    async with dns_server() as bad:
        bad.faults[""] = DnsFault.REFUSED
        ask = Resolver([("127.0.0.1", bad.port), ("127.0.0.1", server.port)], PATIENCE_S)
        assert (await within(ask.addresses("pool.test"))).values == ("10.0.0.9",)
        assert bad.asked


async def test_names_and_records_that_are_not_there(server: DnsServer) -> None:
    """No such name; a name without such a record."""
    server.put("pool.test", "A", "10.0.0.9")
    ask = resolver(server)
    assert await failure(ask.addresses("other.test")) is LookFailure.NAME_UNKNOWN
    assert await failure(ask.addresses("pool.test", v6=True)) is LookFailure.EMPTY
    assert await failure(ask.services("pool.test")) is LookFailure.EMPTY


async def test_services(server: DnsServer) -> None:
    """Hosts and ports with their addresses: IPv4, IPv6 where there is no other, several; the shortest time to
    live of all; a host that is not there has none."""
    server.put(SRV, "SRV", "0 5 8000 a.test.", "0 5 8001 b.test.", "1 0 8000 c.test.", "2 0 1 none.test.")
    server.put("a.test", "A", "10.0.0.1")
    server.put("b.test", "AAAA", "fd00::1")
    server.put("c.test", "A", "10.0.0.4", "10.0.0.3")
    found = await resolver(server).services(SRV)
    assert found.values == (
        Service(0, 5, "a.test", 8000, ("10.0.0.1",)),
        Service(0, 5, "b.test", 8001, ("fd00::1",)),
        Service(1, 0, "c.test", 8000, ("10.0.0.3", "10.0.0.4")),
        Service(2, 0, "none.test", 1, ()),
    )
    assert (found.ttl_s, found.untold) == (30.0, {})


async def test_addresses_that_come_with_the_services(server: DnsServer) -> None:
    """They are not asked for again; those of another host are."""
    server.put(SRV, "SRV", "0 0 8000 a.test.", "0 0 8000 b.test.")
    server.put("a.test", "A", "10.0.0.1")
    server.put("b.test", "A", "10.0.0.2")
    server.additional = [("a.test", "A")]
    found = await resolver(server).services(SRV)
    assert [service.addresses for service in found.values] == [("10.0.0.1",), ("10.0.0.2",)]
    assert server.asked == [f"SRV {SRV}", "A b.test"]


async def test_a_host_whose_address_cannot_be_told(server: DnsServer) -> None:
    """It is named with the reason; the others are told."""
    server.put(SRV, "SRV", "0 0 8000 a.test.", "0 0 8000 b.test.")
    server.put("a.test", "A", "10.0.0.1")
    server.faults["b.test"] = DnsFault.SERVFAIL
    found = await resolver(server).services(SRV)
    assert [service.addresses for service in found.values] == [("10.0.0.1",), ()]
    assert {host: error.failure for host, error in found.untold.items()} == {"b.test": LookFailure.SERVER}


async def test_a_service_that_is_decidedly_not_there(server: DnsServer) -> None:
    """One record whose host is the root: no service."""
    server.put(SRV, "SRV", "0 0 0 .")
    assert (await resolver(server).services(SRV)).values == ()


async def test_words_of_a_failure(server: DnsServer) -> None:
    """Who was asked for what, and what came of it."""
    texts = []
    server.faults["servfail.test"] = DnsFault.SERVFAIL
    server.faults["silent.test"] = DnsFault.SILENT
    ask: Callable[[str], Awaitable[object]] = resolver(server, 0.2).addresses
    for name in ("none.test.", "servfail.test.", "silent.test."):
        with pytest.raises(LookFailed) as caught:
            await within(ask(name))
        texts.append(str(caught.value))
    place = f"127.0.0.1 port {server.port}"
    assert texts == [
        "A none.test.: there is no such name",
        f"A servfail.test.: {place} could not answer: SERVFAIL",
        f"A silent.test.: no answer within 0.2 s from {place}",
    ]


async def test_the_systems_servers(
    server: DnsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is read once, and again when it has changed: another search domain. While it names nobody
    there is no answer."""
    path = tmp_path / "resolv.conf"
    monkeypatch.setattr(resolver_module, "RESOLV_CONF", str(path))

    def write(domain: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(f"search {domain}\nnameserver 127.0.0.1\n")
        new.rename(path)

    server.put("pool.one.test", "A", "10.0.0.1")
    server.put("pool.two.test", "A", "10.0.0.2")
    write("one.test")
    ask = resolver(server)
    assert (await ask.addresses("pool")).values == ("10.0.0.1",)
    before = ask._resolver
    assert (await ask.addresses("pool")).values == ("10.0.0.1",)
    assert ask._resolver is before
    write("two.test")
    assert (await ask.addresses("pool")).values == ("10.0.0.2",)


class _Deaf(dns.asyncresolver.Resolver):
    """Answers when it is cancelled."""

    async def resolve(self, *args: object, **kwargs: object) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise dns.resolver.NoNameservers


class _Unheard(Resolver):
    def _made(self) -> dns.asyncresolver.Resolver:
        return _Deaf(configure=False)


async def test_a_cancellation_is_not_lost() -> None:
    """It comes in the moment of an answer, and the library goes by the answer: the task ends all the same."""
    asked = asyncio.create_task(_Unheard().addresses("pool.test"))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(asked)
