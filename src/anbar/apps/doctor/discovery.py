"""One look at where engines are listed, and checks of those that are found."""

import asyncio
from collections.abc import Iterator, Mapping

from anbar.apps.doctor.finding import Finding, fail, ok, warn
from anbar.apps.doctor.remote import check_engine
from anbar.apps.looks import look_at
from anbar.config.discover import DiscoverConfig
from anbar.config.found import Sighting, engine_of
from anbar.config.models import EngineConfig
from anbar.core.errors import AnbarError

MAX_CHECKED = 8
"""Engines of one entry that are asked for everything: they are alike, and each costs a token."""


def check_discovery(
    entry: EngineConfig, discover: DiscoverConfig, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """What the source of an entry tells now. `environ` may hold the engines' API keys."""
    name = f"discovery {entry.name}"
    try:
        sighting = asyncio.run(_look(discover))
    except AnbarError as error:
        fix = "correct the file" if discover.file is not None else "correct engines[].discover, or the DNS"
        yield fail(name, str(error), f"{fix}; until then the router has no engine of this entry")
        return
    if not sighting.engines:
        yield warn(
            name, f"{discover.source} lists no engine", "list some; until then nothing is served by it"
        )
        return
    num = len(sighting.engines)
    yield ok(name, f"{discover.source} lists {num} engine{'s' if num > 1 else ''}")
    for found in sighting.engines[:MAX_CHECKED]:
        yield from check_engine(engine_of(entry, found), environ)
    if num > MAX_CHECKED:
        yield ok(name, f"{num - MAX_CHECKED} more were not asked")


async def _look(discover: DiscoverConfig) -> Sighting:
    return await look_at(discover).look()
