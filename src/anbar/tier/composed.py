"""What the outcomes of several stores mean together, and who is asked next. Pure; `adapters.store.composed`
makes the calls."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from anbar.tier.breaker import Breaker
from anbar.tier.placement import Places
from anbar.tier.store import Outcome, ScopeStats, StoreStats

_BEST_FIRST = (
    Outcome.HIT,
    Outcome.CORRUPT,
    Outcome.MISS,
    Outcome.NO_KEY,
    Outcome.OVER_QUOTA,
    Outcome.FULL,
    Outcome.TIMEOUT,
    Outcome.ERROR,
)
_LACKS = (Outcome.MISS, Outcome.CORRUPT)
_MAX_EVICTED = 100_000
STAND_IN_S = 600.0
"""For so long after a part is back, reads ask those too that stood in for it: by then what is used has been
read, and copied to where it belongs. Later what only they have is a miss, computed and stored once more."""


def absent(breakers: Sequence[Breaker], for_s: float = 0.0) -> frozenset[int]:
    """Parts that do not answer now, or did not in the last `for_s` seconds: others stand in for them."""
    return frozenset(part for part, breaker in enumerate(breakers) if not breaker.has_been_closed(for_s))


def best(outcomes: Iterable[Outcome]) -> Outcome:
    """Of reads and writes: one part that has the entry is enough, and one that answered at all tells more
    than those that did not. ERROR when nobody was asked."""
    said = set(outcomes)
    return next((outcome for outcome in _BEST_FIRST if outcome in said), Outcome.ERROR)


def removed(outcomes: Iterable[Outcome]) -> Outcome:
    """Of removals: done only when every part says so, whether it had the entry or not."""
    said = set(outcomes)
    if said <= {Outcome.HIT, Outcome.MISS}:
        return best(said)
    return Outcome.TIMEOUT if Outcome.TIMEOUT in said else Outcome.ERROR


class Reading:
    """One call that looks for keys in their places, in rounds: whoever lacks a key, or cannot be asked, is
    followed by the next one. Used by one thread."""

    def __init__(self, places: Sequence[Sequence[int]]) -> None:
        self._places = places
        self._next = [0] * len(places)
        self._said: list[list[tuple[int, Outcome]]] = [[] for _ in places]
        self._open = list(range(len(places)))
        self._refused: Counter[int] = Counter()

    def plan(self, admit: Callable[[int], bool]) -> dict[int, list[int]]:
        """The next round: for each part the keys (by position) to ask it for; empty when nobody is left.
        `admit` is asked once for each part that is wanted; one that it refuses is passed over."""
        asked: dict[int, list[int]] = {}
        admitted: dict[int, bool] = {}
        for index in self._open:
            places = self._places[index]
            while self._next[index] < len(places):
                part = places[self._next[index]]
                self._next[index] += 1
                if part not in admitted:
                    admitted[part] = admit(part)
                if admitted[part]:
                    asked.setdefault(part, []).append(index)
                    break
                self._refused[part] += 1
        return asked

    def num_rounds(self, is_open: Callable[[int], bool]) -> int:
        """The round that was planned last and those that may follow it: between so many what is left of the
        time is divided. Parts that would be refused now take none."""
        refused: dict[int, bool] = {}

        def may_follow(part: int) -> bool:
            if part not in refused:
                refused[part] = is_open(part)
            return not refused[part]

        left = (sum(map(may_follow, self._places[i][self._next[i] :])) for i in self._open)
        return 1 + max(left, default=0)

    def settle(self, part: int, asked: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """What a part answered to its share of a round."""
        for index, outcome in zip(asked, outcomes, strict=True):
            self._said[index].append((part, outcome))
        found = {index for index, outcome in zip(asked, outcomes, strict=True) if outcome is Outcome.HIT}
        self._open = [index for index in self._open if index not in found]

    def out_of_time(self) -> None:
        """Nobody can be asked any more: keys that are still open were late."""
        for index in self._open:
            self._said[index].append((-1, Outcome.TIMEOUT))

    def outcomes(self) -> list[Outcome]:
        """One for each key."""
        return [best(outcome for _, outcome in said) for said in self._said]

    def lacking(self) -> Iterator[tuple[int, list[int]]]:
        """Keys that were found, each with the parts asked before that should have had it and had not."""
        for index, said in enumerate(self._said):
            if len(said) > 1 and said[-1][1] is Outcome.HIT:
                parts = [part for part, outcome in said if outcome in _LACKS]
                if parts:
                    yield index, parts

    def refused(self) -> Mapping[int, int]:
        """For each part the keys for which it was passed over."""
        return self._refused


class Evictions:
    """Tells which evicted keys no part holds any more, as far as known. Thread-safe.

    Bounded: what was heard longest ago is forgotten, and its key is then never reported.
    """

    def __init__(self, places: Places, max_keys: int = _MAX_EVICTED) -> None:
        self._places = places
        self._max_keys = max_keys
        self._lock = threading.Lock()
        self._gone: OrderedDict[bytes, set[int]] = OrderedDict()

    def evicted(self, part: int, keys: Iterable[bytes]) -> list[bytes]:
        """A part evicted keys; those of them that all their parts have evicted by now."""
        nowhere = []
        with self._lock:
            for key in keys:
                parts = self._gone.setdefault(key, set())
                parts.add(part)
                if parts.issuperset(self._places.of(key)):
                    del self._gone[key]
                    nowhere.append(key)
            while len(self._gone) > self._max_keys:
                self._gone.popitem(last=False)
        return nowhere

    def written(self, part: int, keys: Iterable[bytes]) -> None:
        """A part holds keys (again)."""
        with self._lock:
            if not self._gone:
                return
            for key in keys:
                parts = self._gone.get(key)
                if parts is not None:
                    parts.discard(part)
                    if not parts:
                        del self._gone[key]


def summed(stats: Sequence[StoreStats]) -> StoreStats:
    """Occupancy of parts that share the entries among them: as stored, so that each copy counts, in quotas
    too."""
    scopes = {scope: None for one in stats for scope in one.scopes}
    return StoreStats(
        num_entries=_sum(one.num_entries for one in stats),
        used_bytes=_sum(one.used_bytes for one in stats),
        capacity_bytes=_sum(one.capacity_bytes for one in stats),
        is_writable=_any_writable(stats),
        scopes={
            scope: _scope([one.scopes[scope] for one in stats if scope in one.scopes]) for scope in scopes
        },
    )


def _scope(stats: Sequence[ScopeStats]) -> ScopeStats:
    return ScopeStats(
        num_entries=_sum(one.num_entries for one in stats),
        used_bytes=_sum(one.used_bytes for one in stats),
        quota_bytes=_sum(one.quota_bytes for one in stats),
        num_evicted=sum(one.num_evicted for one in stats),
    )


def of_last(stats: Sequence[StoreStats]) -> StoreStats:
    """Occupancy of layers: that of the last. The others hold copies of what it holds, and are full as a
    rule: adding them up would tell of a want of room where there is none."""
    return replace(stats[-1], is_writable=_any_writable(stats))


def _any_writable(stats: Sequence[StoreStats]) -> bool | None:
    """One part that takes an entry is enough."""
    known = [one.is_writable for one in stats if one.is_writable is not None]
    return any(known) if known else None


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
