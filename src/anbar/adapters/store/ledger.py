"""What scopes with a quota hold of a store that counts nobody's bytes: a server, or a bucket.

A *look* lists what is there, on a thread of its own. What this process writes counts before it is written,
and what others write, or anybody removes, from the next look on, as in a directory (see `rations`). A look
also evicts, of a scope that is too full, what was unused for longest. One that fails changes nothing: what
was seen last holds.
"""

import heapq
import logging
import random
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from anbar.adapters.store.layout import NUM_PARTS, scope_dir
from anbar.adapters.store.rations import Ration, Rations
from anbar.core.errors import StoreError
from anbar.tier.scopes import Scopes
from anbar.tier.store import Scope, ScopeStats

logger = logging.getLogger(__name__)

Name = TypeVar("Name", bytes, str)

_LOW_FRACTION = 0.9
"""Of a quota: what an eviction leaves, as in a directory."""
_UNSEEN_SHARE = 0.05
"""Of a quota: what may be written before the first look is over, when nobody knows what is there."""
_AFTER_FAILURE_S = 10.0
_MOST_LEAVING = 50_000
"""Entries that one look evicts of a scope; 10 MB of names. When that is not enough, the next one goes on."""
_PART, _PARTS = 0, range(NUM_PARTS)
"""A look sees all parts of a store at once."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[Name]):
    """An entry that a look has found."""

    name: Name
    scope: str
    """As directories of scopes are called (`layout.scope_dir`)."""
    num_bytes: int
    age: float
    """The larger, the longer it was of no use; compared within a scope."""


class Listing(Protocol[Name]):
    """What a look needs of a store. Used by one thread at a time."""

    def entries(self, scopes: Collection[str] | None) -> Iterator[Seen[Name]]:
        """All entries, of every namespace, of these scopes; None: of all. Raises StoreError when they cannot
        be listed to the end."""
        ...

    def remove(self, names: Sequence[Name]) -> Iterable[tuple[Name, bool]]:
        """Remove entries: those that are gone now, and whether it was this call that removed them. Raises
        StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """When there are looks."""

    period_s: float
    """After which there is another while little is written: between half and one and a half of it, so that
    several engines do not look at once."""
    shortest_s: float
    """Between two, however much is written."""
    rest: float = 0.0
    """A pause lasts at least so many times as long as the look before it."""


class Ledger(Generic[Name]):
    """Thread-safe; but for `look`, nothing waits."""

    def __init__(self, scopes: Scopes, listing: Listing[Name], pace: Pace, what: str) -> None:
        """`what` is looked at, for log lines."""
        is_open = scopes.default.quota_bytes is not None
        named = {scope: of for scope, of in scopes.named.items() if is_open or of.quota_bytes is not None}
        self._rations = Rations(Scopes(scopes.default, named), None, _LOW_FRACTION)
        self._dirs = None if is_open else {scope_dir(scope) for scope in named}
        self._listing: Listing[Name] = listing
        self._pace = pace
        self._what = what
        self._rng = random.Random()
        self._fresh: set[Name] | None = None
        """Written since the look began; None: none runs."""
        self._has_looked = False
        self._complaint = ""
        """Why the last look failed."""
        self._wanted = threading.Event()
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread; a daemon, since it may wait for an answer when the process ends."""
        threading.Thread(target=self._run, name="anbar-quotas", daemon=True).start()

    def close(self) -> None:
        """Let the thread end, after the answer that it waits for."""
        self._closed.set()
        self._wanted.set()

    def admits(self, scope: Scope, name: Name, num_bytes: int) -> bool:
        """Whether there is room for an entry, which counts from now on."""
        ration = self._rations.of_scope(scope)
        if ration is None:
            return True
        # In this order, so that a look which begins meanwhile counts it rather twice than not at all.
        if (fresh := self._fresh) is not None:
            fresh.add(name)
        has_room = self._may_write_unseen(ration, num_bytes) and ration.admits(_PART, num_bytes)
        if fresh is not None and not has_room:
            fresh.discard(name)
        if num_bytes <= (ration.quota_bytes or 0) and ration.wants_look():
            self._wanted.set()
        return has_room

    def withdrew(self, scope: Scope, num_bytes: int) -> None:
        """The entry was not written."""
        ration = self._rations.of_scope(scope)
        if ration is not None:
            ration.withdrew(_PART, num_bytes)

    def emptied(self, scope: Scope) -> None:
        """All entries of a scope were removed."""
        ration = self._rations.of_scope(scope)
        if ration is not None:
            ration.occupancy.begin()
            ration.occupancy.counted(dict.fromkeys(_PARTS, (0, 0)))
            ration.is_changed = True
        self._wanted.set()

    def stats(self) -> Mapping[Scope, ScopeStats]:
        """Of the scopes that are listed."""
        return self._rations.stats()

    @property
    def has_looked(self) -> bool:
        """Whether what is there is known."""
        return self._has_looked

    def look(self) -> bool:
        """Count and evict; whether there is more to evict that another look would. Raises StoreError."""
        leaving = {name: _Oldest[Name](need) for name, need in self._needs().items()}
        self._rations.begin()
        self._fresh = set()
        try:
            self._rations.counted(_PARTS, self._found(leaving, self._fresh))
        finally:
            self._fresh = None
        num_gone = sum(self._evict(name, of.entries()) for name, of in leaving.items())
        self._rations.looked()
        self._has_looked = True
        late = self._needs().keys()
        return bool(late) and (num_gone > 0 or not late <= leaving.keys())

    def _may_write_unseen(self, ration: Ration, num_bytes: int) -> bool:
        if self._has_looked or ration.quota_bytes is None:
            return True
        return ration.occupancy.used_bytes + num_bytes <= _UNSEEN_SHARE * ration.quota_bytes

    def _needs(self) -> dict[str, int]:
        """Bytes to evict of scopes that are too full."""
        needs = {name: _need(ration) for name, ration in self._rations.each()}
        return {name: need for name, need in needs.items() if need > 0}

    def _found(
        self, leaving: "Mapping[str, _Oldest[Name]]", fresh: Collection[Name]
    ) -> Iterator[tuple[str, int, int]]:
        for entry in self._listing.entries(self._dirs):
            if entry.name in fresh:  # counted already
                continue
            if (oldest := leaving.get(entry.scope)) is not None:
                oldest.add(entry)
            yield entry.scope, _PART, entry.num_bytes

    def _evict(self, scope: str, entries: Sequence[tuple[Name, int]]) -> int:
        """Names and sizes, in this order, for as long as there is need; how many are gone."""
        ration = self._rations.of(scope)
        if ration is None:
            return 0
        need, sizes = _need(ration), dict[Name, int]()
        for name, num_bytes in entries:
            if need <= 0:
                break
            sizes[name] = num_bytes
            need -= num_bytes
        num_gone = 0
        for name, is_ours in self._listing.remove(list(sizes)):
            ration.withdrew(_PART, sizes[name])
            ration.num_evicted += is_ours
            num_gone += 1
        return num_gone

    def _run(self) -> None:
        while not self._closed.is_set():
            started_s = time.monotonic()
            has_more = self._try_look()
            least_s = max(self._pace.shortest_s, self._pace.rest * (time.monotonic() - started_s))
            if self._closed.wait(max(least_s, _AFTER_FAILURE_S) if self._complaint else least_s):
                return
            if not has_more:
                self._wanted.wait(self._pace.period_s * self._rng.uniform(0.5, 1.5))
            self._wanted.clear()

    def _try_look(self) -> bool:
        """A look; what it fails of is told once."""
        try:
            has_more = self.look()
        except StoreError as error:
            if not self._closed.is_set() and str(error) != self._complaint:
                known = "what was seen last holds" if self._has_looked else "nothing is known"
                logger.warning("Quotas of tenants: %s cannot be looked at, %s: %s", self._what, known, error)
            self._complaint = str(error)
            return False
        if self._complaint:
            logger.info("Quotas of tenants: %s can be looked at again", self._what)
        self._complaint = ""
        return has_more


def ledger_of(scopes: Scopes, listing: Listing[Name], pace: Pace, what: str) -> Ledger[Name] | None:
    """None: nobody is bounded, and nothing is looked at."""
    return Ledger(scopes, listing, pace, what) if scopes.has_quota else None


class _Oldest(Generic[Name]):
    """Of what a look finds, so many of the oldest that their bytes are `need`."""

    def __init__(self, need: int) -> None:
        self._need = need
        self._heap: list[tuple[float, Name, int]] = []
        self._num_bytes = 0

    def add(self, entry: Seen[Name]) -> None:
        """Found."""
        heapq.heappush(self._heap, (entry.age, entry.name, entry.num_bytes))
        self._num_bytes += entry.num_bytes
        while self._num_bytes - self._heap[0][2] >= self._need or len(self._heap) > _MOST_LEAVING:
            self._num_bytes -= heapq.heappop(self._heap)[2]

    def entries(self) -> list[tuple[Name, int]]:
        """Names and sizes, the oldest first."""
        return [(name, num_bytes) for _, name, num_bytes in sorted(self._heap, reverse=True)]


def _need(ration: Ration) -> int:
    return ration.need(ration.occupancy.used_bytes, share=1.0)
