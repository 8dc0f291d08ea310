"""A store that is made of stores: layers, or copies placed by rendezvous.

- Reads ask an entry's places one after the other until one has it: a batch of keys makes one call on a part
  and round, and the parts of a round are asked at the same time. What is left of the deadline is divided
  among the rounds that may follow. A part whose breaker is open is passed over.
- While a part is down, the next one in a key's order stands in for it: what is written then has all its
  copies, and what the part had is stored anew by whoever computes it. When it is back, reads ask its
  stand-ins too for a while (`tier.composed.STAND_IN_S`); what they have is copied to where it belongs.
- What an earlier place lacked, or had damaged, is written there afterwards (repair, promotion): from a copy,
  by threads of its own, dropped when too much waits.
- Writes go to all places at the same time; HIT: at least one has it. With `write_back` they go to the first
  place, and to the others afterwards; when too much waits already they go to all at once.
- Removals ask every part, whatever its breaker says, and are done only when all of them say so. What waits to
  be written is dropped before.
- A caller's buffer is in the hands of one part at a time when it is read into, and nothing is returned before
  that part has: parts keep the port's rule on buffers, and so does the whole.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from anbar.adapters.store.copies import Copies, Moment
from anbar.adapters.store.part import DROPPED, REFUSED, Operation, Part
from anbar.core.clock import Clock
from anbar.tier.breaker import Ticket
from anbar.tier.composed import STAND_IN_S, Evictions, Reading, absent, best, removed, summed
from anbar.tier.placement import Places
from anbar.tier.store import Outcome, PartStats, PutItem, Scope, Store, StoreStats

Ask = Callable[[Sequence[int], Store, float], list[Outcome]]
"""Calls a store for keys by their position, with a timeout in seconds."""

_CALLS_PER_PART = 16
"""Calls on one part at a time that have a thread; the shared tier makes six calls at a time."""


@dataclass(frozen=True, slots=True)
class ComposedConfig:
    """How parts make a store."""

    id: str
    """Name of the whole in KV events; equal for all engines that share it."""
    places: Places
    """Where entries belong."""
    write_back: bool = False
    """Whether a write is done when the first place has it."""
    occupancy: Callable[[Sequence[StoreStats]], StoreStats] = summed
    """What the parts' occupancy means for the whole."""
    max_waiting_bytes: int = 64 * 1024 * 1024
    """Most bytes of copies that wait to be written."""
    copy_timeout_s: float = 5.0
    """Deadline of a call that writes copies."""
    flush_s: float = 5.0
    """How long `close` waits for copies to be written."""


class ComposedStore:
    """See `anbar.tier.store.Store`. Owns the parts' stores. Call `open` before anything else; until then
    every outcome is ERROR."""

    def __init__(self, config: ComposedConfig, parts: Sequence[Part], clock: Clock) -> None:
        self._config = config
        self._parts = parts
        self._clock = clock
        self._evictions = Evictions(config.places)
        self._breakers = [part.breaker for part in parts]
        self._copies = Copies(len(parts), self._write_copies, config.max_waiting_bytes)
        self._pool = ThreadPoolExecutor(_CALLS_PER_PART * len(parts), "anbar-composed")
        self._is_open = False

    def open(self) -> None:
        """Start the threads; the parts' stores are open already."""
        self._copies.start()
        self._is_open = True

    @property
    def id(self) -> str:
        return self._config.id

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        def ask(picks: Sequence[int], store: Store, left_s: float) -> list[Outcome]:
            return store.exists([keys[i] for i in picks], scope=scope, timeout_s=left_s)

        return self._read(Operation.LOOKUP, keys, ask, timeout_s).outcomes()

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        def ask(picks: Sequence[int], store: Store, left_s: float) -> list[Outcome]:
            wanted, targets = [keys[i] for i in picks], [buffers[i] for i in picks]
            worth = [saves_s[i] for i in picks] if saves_s else ()
            return store.get_into(wanted, targets, scope=scope, timeout_s=left_s, saves_s=worth)

        since, until_s = self._copies.now(), self._clock.now_s() + timeout_s
        reading = self._read(Operation.LOAD, keys, ask, timeout_s)
        for index, parts in reading.lacking():
            item = PutItem(keys[index], buffers[index], saves_s[index] if saves_s else 0.0)
            self._repair(item, scope, parts, since)
        outcomes = reading.outcomes()
        if self._config.write_back and Outcome.CORRUPT in outcomes:
            # Its other places may get it only now: what is said to be damaged must be gone there too.
            bad = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.CORRUPT]
            self.delete(bad, scope=scope, timeout_s=until_s - self._clock.now_s())
        return outcomes

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        if not self._is_open:
            return [Outcome.ERROR] * len(items)
        since, started_s = self._copies.now(), self._clock.now_s()
        down = absent(self._breakers)
        places = [list(self._config.places.of(item.key, down)) for item in items]
        said: list[dict[int, Outcome]] = [{} for _ in items]

        def ask(picks: Sequence[int], store: Store, left_s: float) -> list[Outcome]:
            return store.put([items[i] for i in picks], scope=scope, timeout_s=left_s)

        if self._config.write_back:
            self._write([of[:1] for of in places], ask, said, started_s + timeout_s / 2)
            for index, item in enumerate(items):
                is_there = Outcome.HIT in said[index].values()
                del places[index][0]
                if is_there and self._copies.offer(scope, item, places[index], since):
                    places[index].clear()
        self._write(places, ask, said, started_s + timeout_s)
        for item, outcomes in zip(items, said, strict=True):
            for part, outcome in outcomes.items():
                if outcome is Outcome.HIT:
                    self._evictions.written(part, [item.key])
        return [best(outcomes.values()) for outcomes in said]

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        def ask(_: Sequence[int], store: Store, left_s: float) -> list[Outcome]:
            return store.delete(keys, scope=scope, timeout_s=left_s)

        return self._remove(scope, keys, len(keys), ask, timeout_s)

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        def ask(_: Sequence[int], store: Store, left_s: float) -> list[Outcome]:
            return [store.delete_scope(scope, timeout_s=left_s)]

        (outcome,) = self._remove(scope, None, 1, ask, timeout_s)
        return outcome

    def take_evicted(self) -> list[bytes]:
        evicted = []
        for index, part in enumerate(self._parts):
            evicted += self._evictions.evicted(index, part.take_evicted())
        return evicted

    def stats(self) -> StoreStats:
        every = [part.store.stats() for part in self._parts]
        parts: list[PartStats] = []
        for part, stats in zip(self._parts, every, strict=True):
            parts += [part.stats(stats), *stats.parts]
        return replace(self._config.occupancy(every), parts=tuple(parts))

    def is_settled(self) -> bool:
        """Whether no copy waits to be written."""
        return self._copies.is_idle()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._copies.close(self._config.flush_s)
            self._pool.shutdown(wait=False)
        for part in self._parts:
            part.store.close()

    def _read(self, operation: Operation, keys: Sequence[bytes], ask: Ask, timeout_s: float) -> Reading:
        """Rounds until each key is found or has no place left, or the time is over."""
        down = absent(self._breakers, STAND_IN_S)
        reading = Reading(
            [self._config.places.of(key, down) for key in keys] if self._is_open else [()] * len(keys)
        )
        until_s = self._clock.now_s() + timeout_s
        while (left_s := until_s - self._clock.now_s()) > 0:
            tickets: dict[int, Ticket] = {}
            asked = reading.plan(partial(self._admit, tickets))
            if not asked:
                break
            share_s = left_s / reading.num_rounds(lambda part: self._parts[part].breaker.is_open())
            answers = self._call(operation, asked, tickets, ask, share_s)
            for part, outcomes in answers.items():
                reading.settle(part, asked[part], outcomes)
        else:
            if self._is_open:
                reading.out_of_time()
        for part, num_keys in reading.refused().items():
            self._parts[part].count(operation, [REFUSED] * num_keys)
        return reading

    def _write(
        self, places: Sequence[Sequence[int]], ask: Ask, said: Sequence[dict[int, Outcome]], until_s: float
    ) -> None:
        """Each item to all of its places, at the same time; what came of it is added to `said`."""
        wanted: dict[int, list[int]] = {}
        for index, of in enumerate(places):
            for part in of:
                wanted.setdefault(part, []).append(index)
        if (left_s := until_s - self._clock.now_s()) <= 0:
            answers = {part: [Outcome.TIMEOUT] * len(picks) for part, picks in wanted.items()}
        else:
            tickets: dict[int, Ticket] = {}
            asked = {part: picks for part, picks in wanted.items() if self._admit(tickets, part)}
            for part in wanted.keys() - asked.keys():
                self._parts[part].count(Operation.STORE, [REFUSED] * len(wanted[part]))
            answers = self._call(Operation.STORE, asked, tickets, ask, left_s)
        for part, outcomes in answers.items():
            for index, outcome in zip(wanted[part], outcomes, strict=True):
                said[index][part] = outcome

    def _remove(
        self, scope: Scope, keys: Sequence[bytes] | None, num_keys: int, ask: Ask, timeout_s: float
    ) -> list[Outcome]:
        if not self._is_open:
            return [Outcome.ERROR] * num_keys
        until_s = self._clock.now_s() + timeout_s
        everywhere = dict.fromkeys(range(len(self._parts)), range(num_keys))
        with self._copies.removing(scope, keys, max(0.0, timeout_s)) as has_ended:
            left_s = until_s - self._clock.now_s()
            answers = [*self._call(Operation.DELETE, everywhere, {}, ask, left_s).values()]
        if not has_ended:
            answers.append([Outcome.TIMEOUT] * num_keys)
        return [removed(outcomes) for outcomes in zip(*answers, strict=True)]

    def _call(
        self,
        operation: Operation,
        asked: Mapping[int, Sequence[int]],
        tickets: Mapping[int, Ticket],
        ask: Ask,
        timeout_s: float,
    ) -> dict[int, list[Outcome]]:
        """What each part answers, all asked at the same time: one on this thread, the others on the pool's.
        Returns when all have returned."""
        works = {
            part: partial(
                self._parts[part].call,
                tickets.get(part),
                operation,
                len(picks),
                partial(ask, picks),
                timeout_s,
            )
            for part, picks in asked.items()
        }
        others = [(part, self._submit(work)) for part, work in list(works.items())[1:]]
        answers = {part: work() for part, work in list(works.items())[:1]}
        answers.update((part, future.result()) for part, future in others)
        return answers

    def _submit(self, work: Callable[[], list[Outcome]]) -> "Future[list[Outcome]]":
        try:
            return self._pool.submit(work)
        except RuntimeError:  # closed meanwhile; so are the parts, or soon: they say ERROR
            done: Future[list[Outcome]] = Future()
            done.set_result(work())
            return done

    def _admit(self, tickets: dict[int, Ticket], part: int) -> bool:
        ticket = self._parts[part].breaker.admit()
        if ticket is None:
            return False
        tickets[part] = ticket
        return True

    def _repair(self, item: PutItem, scope: Scope, parts: Sequence[int], since: Moment) -> None:
        if not self._copies.offer(scope, item, parts, since):
            for part in parts:
                self._parts[part].count(Operation.REPAIR, [DROPPED])

    def _write_copies(self, index: int, scope: Scope, items: list[PutItem]) -> None:
        part = self._parts[index]
        ticket = part.breaker.admit()
        if ticket is None:
            part.count(Operation.REPAIR, [REFUSED] * len(items))
            return

        def write(store: Store, timeout_s: float) -> list[Outcome]:
            return store.put(items, scope=scope, timeout_s=timeout_s)

        outcomes = part.call(ticket, Operation.REPAIR, len(items), write, self._config.copy_timeout_s)
        held = [item.key for item, outcome in zip(items, outcomes, strict=True) if outcome is Outcome.HIT]
        self._evictions.written(index, held)
