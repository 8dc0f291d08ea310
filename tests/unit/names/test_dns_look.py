"""From what the DNS says to engines."""

from collections.abc import Mapping

import pytest

from anbar.adapters.dns import Addresses, Service, Services
from anbar.apps.looks import DnsLook
from anbar.config.discover import DiscoverConfig
from anbar.core.errors import LookFailed
from anbar.core.look import LookFailure

TIMEOUT = LookFailed(LookFailure.TIMEOUT, "A b: no answer")


class Zone:
    """Answers with what it was given."""

    def __init__(
        self, *services: Service, untold: Mapping[str, LookFailed] | None = None, ttl_s: float = 5.0
    ) -> None:
        self._services = Services(services, ttl_s, untold or {})
        self._ttl_s = ttl_s

    async def addresses(self, name: str, *, v6: bool = False) -> Addresses:
        assert name == "pool.test."
        return Addresses(("fd00::1",) if v6 else ("10.0.0.1", "10.0.0.2"), self._ttl_s)

    async def services(self, name: str) -> Services:
        assert name == "pool.test."
        return self._services


def look(zone: Zone, **discover: object) -> DnsLook:
    config = {"dns": "pool.test.", "records": "srv", "every_s": 30.0, **discover}
    return DnsLook(DiscoverConfig.model_validate(config), zone)


async def urls(zone: Zone, **discover: object) -> list[str]:
    return [found.url for found in (await look(zone, **discover).look()).engines]


async def test_addresses_and_a_port() -> None:
    """The port is the configuration's; an IPv6 address stands in brackets."""
    assert await urls(Zone(), records="a", port=8000) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert await urls(Zone(), records="aaaa", port=80, scheme="https") == ["https://[fd00::1]:80"]


@pytest.mark.parametrize(("ttl_s", "again_s"), [(0.0, 1.0), (5.0, 5.0), (600.0, 30.0)])
async def test_the_time_to_live_within_bounds(ttl_s: float, again_s: float) -> None:
    """Not sooner than a second, not later than `every_s`."""
    zone = Zone(Service(0, 0, "a", 1, ("10.0.0.1",)), ttl_s=ttl_s)
    assert (await look(zone).look()).again_s == again_s
    assert (await look(zone, records="a", port=1).look()).again_s == again_s


async def test_the_lowest_priority_is_used() -> None:
    """Weights make no difference; one place that two records name is one engine; the next priority counts
    when no host of the lowest has an address."""
    a, b = Service(1, 9, "a", 1, ("10.0.0.1",)), Service(1, 0, "b", 2, ("10.0.0.1", "10.0.0.2"))
    backup = Service(2, 0, "c", 3, ("10.0.0.3",))
    zone = Zone(a, b, backup, Service(1, 0, "d", 2, ("10.0.0.2",)))
    assert await urls(zone) == ["http://10.0.0.1:1", "http://10.0.0.1:2", "http://10.0.0.2:2"]
    assert await urls(Zone(Service(1, 0, "a", 1, ()), backup)) == ["http://10.0.0.3:3"]


async def test_a_host_that_could_not_be_told() -> None:
    """The others are engines, and it is said that these are not all. It is none of a backup's business."""
    a, b = Service(1, 0, "a", 1, ("10.0.0.1",)), Service(1, 0, "b", 1, ())
    found = await look(Zone(a, b, untold={"b": TIMEOUT})).look()
    assert ([engine.url for engine in found.engines], found.untold) == (["http://10.0.0.1:1"], str(TIMEOUT))
    backup = Service(2, 0, "c", 3, ("10.0.0.3",))
    with pytest.raises(LookFailed) as caught:
        await look(Zone(b, backup, untold={"b": TIMEOUT})).look()
    assert caught.value.failure is LookFailure.TIMEOUT
    found = await look(Zone(a, backup, Service(2, 0, "b", 1, ()), untold={"b": TIMEOUT})).look()
    assert found.untold == ""


async def test_no_host_has_an_address() -> None:
    """Nobody is there."""
    for services in ((), (Service(1, 0, "a", 1, ()),)):
        with pytest.raises(LookFailed) as caught:
            await look(Zone(*services)).look()
        assert caught.value.failure is LookFailure.EMPTY
