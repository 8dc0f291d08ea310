"""The requests on one object. They run on the store's event loop and touch no memory of a caller.

Every error of the client becomes an outcome here; nothing raises but the cancellation at the deadline.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import obstore
from obstore.store import S3Store as Client

from anbar.adapters.store.buffers import Bytes, as_bytes
from anbar.adapters.store.layout import scope_of
from anbar.adapters.store.quarantine import MAX_AGE_S
from anbar.adapters.store.s3.client import S3_ERRORS, Place, connect, outcome_of
from anbar.tier.store import Outcome

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

_SHARE_TO_RETRY = 0.8
"""Of a call's deadline: after that a failure is told as what it is, before it becomes a timeout."""
_PARTS_AT_A_TIME = 4
"""Of one upload."""
_NAMES_PER_PAGE = 1000
"""What a server lists, and deletes, in one request."""
DAMAGED_DIR = "damaged"
"""Beside the namespaces, see `damaged`."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is there: HIT, or why nothing is."""

    outcome: Outcome
    num_bytes: int = 0
    e_tag: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an object from `start` on, or why there are none."""

    outcome: Outcome
    start: int
    e_tag: str | None = None
    data: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and ages."""

    part_bytes: int
    """Larger objects are written in parts."""
    ttl_s: float | None
    """Older objects count as missing."""
    now_s: Callable[[], float]
    """Seconds since the epoch, as servers count them."""
    default_ttl_s: float | None = None
    """Of scopes that are not in `ttls_s`; None: as of all."""
    ttls_s: Mapping[str, float | None] = field(default_factory=dict)
    """Of single scopes, by the names of their directories."""

    def is_expired(self, meta: "ObjectMeta") -> bool:
        """Whether an object has become too old. The age is read from both the server's clock and ours."""
        ttl_s = self._ttl_s(meta["path"])
        return ttl_s is not None and self.now_s() - meta["last_modified"].timestamp() > ttl_s

    @property
    def shortest_s(self) -> float | None:
        """The first age at which anything is too old; None: nothing ever is."""
        every = (self.ttl_s, self.default_ttl_s, *self.ttls_s.values())
        return min((ttl_s for ttl_s in every if ttl_s is not None), default=None)

    def _ttl_s(self, name: str) -> float | None:
        own = self.default_ttl_s
        if self.ttls_s:
            own = self.ttls_s.get(scope_of(name), own)
        if is_damaged(name):
            return MAX_AGE_S if own is None else min(own, MAX_AGE_S)
        return self.ttl_s if own is None else own


def is_damaged(name: str) -> bool:
    """Whether an object is a damaged entry that was kept aside. It ends by an age of its own."""
    return name.rsplit("/", 4)[1:2] == [DAMAGED_DIR]


class Objects:
    """Requests by the objects' names, once `connect` was called."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def connect(self, place: Place, timeout_s: float) -> Client:
        """Make the clients, no request of which lasts longer than `timeout_s`; the one for writing. Raises
        StoreError for a file that cannot be read."""
        # Half the time for one attempt, so that a read that stalls is tried once more. A write is not: where
        # the network is slow it would only be cut short.
        retry_s = _SHARE_TO_RETRY * timeout_s
        self._reads = connect(place, attempt_s=timeout_s / 2, retry_s=retry_s)
        self._writes = connect(place, attempt_s=timeout_s, retry_s=retry_s)
        return self._writes

    async def look(self, name: str) -> Found:
        """Whether an object is there."""
        try:
            meta = await obstore.head_async(self._reads, name)
        except S3_ERRORS as error:
            return Found(outcome_of(error))
        if self._limits.is_expired(meta):
            return Found(Outcome.MISS)
        return Found(Outcome.HIT, meta["size"], meta["e_tag"])

    async def read(self, name: str, start: int, stop: int, num_bytes: int) -> Piece:
        """Bytes `start` to `stop` of an object that should have `num_bytes`; another size is CORRUPT."""
        options: GetOptions = {} if stop - start == num_bytes else {"range": (start, stop)}
        try:
            answer = await obstore.get_async(self._reads, name, options=options)
            meta = answer.meta
            if self._limits.is_expired(meta):
                return Piece(Outcome.MISS, start)
            if meta["size"] != num_bytes:
                return Piece(Outcome.CORRUPT, start, meta["e_tag"])
            data = as_bytes(memoryview(await answer.bytes_async()))
        except S3_ERRORS as error:
            return Piece(outcome_of(error), start)
        if data.nbytes != stop - start:
            return Piece(Outcome.CORRUPT, start, meta["e_tag"])
        return Piece(Outcome.HIT, start, meta["e_tag"], data)

    async def write(self, name: str, record: Bytes) -> Outcome:
        """Store an object, whatever is there: readers see the one or the other, whole."""
        try:
            await obstore.put_async(
                self._writes,
                name,
                record.data,
                use_multipart=record.nbytes > self._limits.part_bytes,
                chunk_size=self._limits.part_bytes,
                max_concurrency=_PARTS_AT_A_TIME,
            )
        except S3_ERRORS as error:
            outcome = outcome_of(error)
            return Outcome.ERROR if outcome is Outcome.MISS else outcome
        return Outcome.HIT

    async def delete(self, name: str) -> Outcome:
        """HIT when it was there, MISS when not."""
        found = await self.look(name)
        return found.outcome if found.outcome is not Outcome.HIT else await self.delete_found(name)

    async def delete_found(self, name: str) -> Outcome:
        """The same, of one that is known to be there."""
        try:
            await self.delete_all([name])
        except S3_ERRORS as error:
            return outcome_of(error)
        return Outcome.HIT

    async def find_damaged(self, name: str, e_tag: str | None, num_bytes: int) -> Found:
        """A damaged object; MISS when someone replaced it meanwhile by one of the right size."""
        found = await self.look(name)
        is_whole = found.e_tag != e_tag and found.num_bytes == num_bytes
        return Found(Outcome.MISS) if found.outcome is Outcome.HIT and is_whole else found

    async def copy(self, name: str, to: str) -> Outcome:
        """Copy an object within the server, over what is there."""
        try:
            await obstore.copy_async(self._writes, name, to)
        except S3_ERRORS as error:
            return outcome_of(error)
        return Outcome.HIT

    async def delete_below(self, parent: str, child: str) -> Outcome:
        """Remove everything below `<parent>/<any>/<child>`; MISS when there was nothing. What is kept aside
        comes last, whether or not it was there at first, since others may be putting something there."""
        outcome = Outcome.MISS
        try:
            for prefix in (*await self.directories(parent), f"{parent}/{DAMAGED_DIR}"):
                async for page in self.pages(f"{prefix}/{child}"):
                    await self.delete_all([meta["path"] for meta in page])
                    outcome = Outcome.HIT
        except S3_ERRORS as error:
            return outcome_of(error)
        return outcome

    def pages(self, prefix: str) -> "AsyncIterator[Sequence[ObjectMeta]]":
        """Everything below a prefix. Raises what the client raises."""
        return obstore.list(self._reads, prefix, chunk_size=_NAMES_PER_PAGE)

    async def directories(self, parent: str) -> Sequence[str]:
        """What is right below a prefix. Raises what the client raises."""
        listed = await obstore.list_with_delimiter_async(self._reads, parent)
        return listed["common_prefixes"]

    async def delete_all(self, names: Sequence[str]) -> None:
        """Remove objects. Raises what the client raises."""
        await obstore.delete_async(self._writes, names)
