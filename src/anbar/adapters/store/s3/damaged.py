"""Keeps the last damaged entries aside in the bucket, so that someone can see what damaged them.

    <prefix>/v1/damaged/<scope>/<namespace>/<key>.kv

Best effort, within the deadline of the call that found them. What is not kept is removed. The directory takes
a namespace's place above the scopes, so that whoever removes a scope removes these too.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from anbar.adapters.store.allowance import Allowance
from anbar.adapters.store.requests import RequestLoop
from anbar.adapters.store.s3.objects import DAMAGED_DIR, Objects
from anbar.adapters.store.s3.reading import Reading
from anbar.tier.store import Outcome

_SHARE_TO_KEEP = 0.5
"""Of what is left of a call's deadline: the rest is for removing."""


def damaged_name(name: str) -> str:
    """Where an entry is kept when it is damaged."""
    version_dir, namespace, scope, _, file = name.rsplit("/", 4)
    return f"{version_dir}/{DAMAGED_DIR}/{scope}/{namespace}/{file}"


class Damaged:
    """Of one store."""

    def __init__(self, objects: Objects, loop: RequestLoop) -> None:
        self._objects = objects
        self._loop = loop
        self._allowance = Allowance(time.monotonic)

    def take(self, readings: Sequence[Reading], deadline_s: float) -> None:
        """Keep what was read and is damaged, or remove it, unless someone replaced it meanwhile."""
        now_s = time.monotonic()
        until_s = now_s + _SHARE_TO_KEEP * (deadline_s - now_s)
        works = [partial(self._take, reading, until_s) for reading in readings]
        for _ in self._loop.run(works, deadline_s):
            pass  # what is not removed in time, the next reader finds

    async def _take(self, reading: Reading, until_s: float) -> None:
        name, e_tag, num_bytes = reading.name, reading.e_tag, reading.num_bytes
        found = await self._objects.find_damaged(name, e_tag, num_bytes)
        left_s = until_s - time.monotonic()
        if found.outcome is Outcome.HIT and left_s > 0 and self._allowance.admit(found.num_bytes):
            await self._copy(name, left_s)
            found = await self._objects.find_damaged(name, e_tag, num_bytes)
        if found.outcome is Outcome.HIT:
            await self._objects.delete_found(name)

    async def _copy(self, name: str, left_s: float) -> None:
        """By the server; no bytes cross the network. Of a key that was damaged before, this is what stays."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._objects.copy(name, damaged_name(name)), left_s)
