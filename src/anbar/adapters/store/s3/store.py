"""A store that is a bucket of S3, or of a server that speaks its protocol: Ceph RGW, MinIO, SeaweedFS.

- A value is one object, and writing it is atomic also in parts: a reader sees all of it or nothing.
- Requests run on an event loop of the store's own and end with the call's deadline, connection and all. Their
  bytes are in memory of the client and are copied into a caller's buffer by the caller's own thread; what is
  written is copied before. So nothing touches a buffer after the call.
- Many requests make one call: `concurrency` at a time, each for one object, or for one part of a large one.
- Objects have the names that `layout` gives files. Existence costs a HEAD for each key: listing would cost
  a request for each of 256 fan-outs, twelve times as dear at AWS.
- A put asks first whether the object is there, and uploads only when not: asking in the upload itself
  (`If-None-Match`) sends the value all the same.
- Entries end by age (`sweep`). There is no bound in bytes but scopes' quotas, which are kept by looks at what
  is there (`census`, `ledger`), nor a recency: S3 does not tell who reads.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from anbar.adapters.store.buffers import BufferPool, Bytes, as_bytes
from anbar.adapters.store.layout import Layout, scope_dir
from anbar.adapters.store.ledger import Pace, ledger_of
from anbar.adapters.store.record import HEADER_BYTES, RecordFormat, record_bytes
from anbar.adapters.store.requests import RequestLoop, Work
from anbar.adapters.store.s3.census import Census
from anbar.adapters.store.s3.client import Place
from anbar.adapters.store.s3.damaged import Damaged
from anbar.adapters.store.s3.objects import Limits, Objects
from anbar.adapters.store.s3.probe import Health, probe
from anbar.adapters.store.s3.reading import Reading
from anbar.adapters.store.s3.sweep import Sweep
from anbar.core.errors import StoreError
from anbar.tier.scopes import Scopes
from anbar.tier.store import Outcome, PutItem, Scope, StoreStats

_PACE = Pace(period_s=600.0, shortest_s=10.0, rest=19.0)
"""Of looks at what scopes hold, which cost a request for every thousand objects."""


@dataclass(frozen=True, slots=True)
class S3StoreConfig:
    """A bucket and how it is used."""

    place: Place
    id: str
    """Name of the store in KV events; equal on all machines that share it."""
    timeout_s: float = 5.0
    """Longest call: no request lasts longer, whoever makes it."""
    concurrency: int = 16
    """Requests at a time of one call."""
    part_bytes: int = 16 * 1024**2
    """Larger objects are written in parts and read in ranges of this size."""
    ttl_s: float | None = None
    """Age at which an entry counts as missing."""
    scopes: Scopes = field(default_factory=Scopes)
    """What scopes have a quota, or an age of their own."""
    pace: Pace = _PACE
    sweep: bool = True
    """Whether this store removes what is too old; needless where the bucket has a lifecycle rule."""


class S3Store:
    """See `anbar.tier.store.Store`. Call `open` before anything else; until then every outcome is ERROR.

    `now_s` is the time since the epoch, to be compared with the server's.
    """

    def __init__(
        self, config: S3StoreConfig, namespace: bytes, now_s: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self.layout = Layout(Path(config.place.prefix), namespace)
        self._format = RecordFormat(namespace)
        named = config.scopes.named.items()
        self._limits = Limits(
            config.part_bytes,
            config.ttl_s,
            now_s,
            config.scopes.default.ttl_s,
            {scope_dir(scope): rules.ttl_s for scope, rules in named},
        )
        self._objects = Objects(self._limits)
        self._buffers = BufferPool(max_buffers=config.concurrency)
        self._loop = RequestLoop(config.concurrency, "anbar-s3")
        self._damaged = Damaged(self._objects, self._loop)
        self._sweep = Sweep(self.layout)
        census = Census(self.layout, self._objects, self._loop, config.timeout_s, self._sweep.removed)
        self._ledger = ledger_of(config.scopes, census, config.pace, str(config.place))
        self._is_open = False

    def open(self) -> str:
        """Connect, and try what the store will do with an object of its own. Returns a warning
        when the server cannot be reached or is not well, which may pass; "" when all is well.

        Raises StoreError when it cannot work: no such bucket, wrong or missing credentials or rights, an
        untrusted certificate, unreadable files.
        """
        config = self._config
        client = self._objects.connect(config.place, config.timeout_s)
        self._loop.start()
        source = ", nor has what offers credentials" if config.place.credentials_file is None else ""
        late = f"store {config.place} has not answered within {config.timeout_s:g} s{source}"
        health = Health(warning=late)
        deadline_s = time.monotonic() + config.timeout_s
        for _, found in self._loop.run([partial(probe, client, config.place)], deadline_s):
            health = found
        if health.refusal:
            self._loop.close()
            raise StoreError(health.refusal)
        if config.sweep:
            self._loop.begin(partial(self._sweep.run, self._objects, self._limits))
        if self._ledger is not None:
            self._ledger.start()
        self._is_open = True
        return health.warning

    @property
    def id(self) -> str:
        return self._config.id

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        works = [partial(self._objects.look, self._name(key, scope)) for key in keys]
        outcomes = self._unknown(len(keys))
        for index, found in self._loop.run(works, time.monotonic() + timeout_s):
            outcomes[index] = found.outcome
        return outcomes

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        deadline_s = time.monotonic() + timeout_s
        readings = [
            Reading(key, scope, self._name(key, scope), as_bytes(buffer))
            for key, buffer in zip(keys, buffers, strict=True)
        ]
        outcomes = self._unknown(len(keys))
        pieces = [
            (index, partial(self._objects.read, reading.name, start, stop, reading.num_bytes))
            for index, reading in enumerate(readings)
            for start, stop in reading.ranges(self._config.part_bytes)
        ]
        for number, piece in self._loop.run([work for _, work in pieces], deadline_s):
            index = pieces[number][0]
            readings[index].take(piece)
            outcomes[index] = readings[index].outcome(self._format) or outcomes[index]
        damaged = [r for r, outcome in zip(readings, outcomes, strict=True) if outcome is Outcome.CORRUPT]
        self._damaged.take(damaged, deadline_s)
        return outcomes

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        deadline_s = time.monotonic() + timeout_s
        names = [self._name(item.key, scope) for item in items]
        outcomes = self._unknown(len(items))
        missing: list[int] = []
        looks = [partial(self._objects.look, name) for name in names]
        for index, found in self._loop.run(looks, deadline_s):
            num_bytes = record_bytes(items[index].data)
            is_whole = found.num_bytes == num_bytes
            if not (found.outcome is Outcome.MISS or (found.outcome is Outcome.HIT and not is_whole)):
                outcomes[index] = found.outcome
            elif self._ledger is not None and not self._ledger.admits(scope, names[index], num_bytes):
                outcomes[index] = Outcome.OVER_QUOTA
            else:
                missing.append(index)
        works = (self._write(items[index], names[index], scope) for index in missing)
        for number, (outcome, record) in self._loop.run(works, deadline_s):
            outcomes[missing[number]] = outcome
            if outcome is Outcome.HIT:  # of a failed upload the client may hold the buffer still
                self._buffers.give(record)
            elif self._ledger is not None and outcome is not Outcome.TIMEOUT:  # it may have been written
                self._ledger.withdrew(scope, record.nbytes)
        return outcomes

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        works = [partial(self._objects.delete, self._name(key, scope)) for key in keys]
        outcomes = self._unknown(len(keys))
        for index, outcome in self._loop.run(works, time.monotonic() + timeout_s):
            outcomes[index] = outcome
        return outcomes

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        (outcome,) = self._unknown(1)
        work = partial(self._objects.delete_below, str(self.layout.version_dir), scope_dir(scope))
        for _, result in self._loop.run([work], time.monotonic() + timeout_s):
            outcome = result
        if self._ledger is not None and outcome is Outcome.HIT:
            self._ledger.emptied(scope)
        return outcome

    def take_evicted(self) -> list[bytes]:
        return self._sweep.take_evicted()

    def stats(self) -> StoreStats:
        stats = self._sweep.stats()
        return stats if self._ledger is None else replace(stats, scopes=self._ledger.stats())

    def close(self) -> None:
        self._is_open = False
        if self._ledger is not None:
            self._ledger.close()
        self._loop.close()

    def _write(self, item: PutItem, name: str, scope: Scope) -> Work[tuple[Outcome, Bytes]]:
        """Copies the value while the caller waits; the rest is for the event loop."""
        source = as_bytes(item.data)
        record = self._buffers.take(HEADER_BYTES + source.nbytes)
        np.copyto(record[HEADER_BYTES:], source)
        header = self._format.header(item.key, scope, record[HEADER_BYTES:])
        record[:HEADER_BYTES] = np.frombuffer(header, dtype=np.uint8)

        async def write() -> tuple[Outcome, Bytes]:
            return await self._objects.write(name, record), record

        return write

    def _name(self, key: bytes, scope: Scope) -> str:
        return self.layout.entry(key, scope)

    def _unknown(self, num_keys: int) -> list[Outcome]:
        """What is said of keys whose requests do not end in time."""
        return [Outcome.TIMEOUT if self._is_open else Outcome.ERROR] * num_keys
