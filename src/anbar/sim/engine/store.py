"""A modelled store: what its parts hold, how long calls on it take, and how it fails.

A single store is one `StorePart`; layered and replicated ones are made of others, as in
`adapters.store.composed`: places, rounds and what outcomes mean together are decided by `tier.placement` and
`tier.composed`. A call is looked at twice: when it begins, to say how long it will take, and when it ends, to
take effect. What fails is decided when it begins.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.core.cost import TierCost
from anbar.sim.engine.chunks import Chunks
from anbar.tier.breaker import Breaker, Ticket, judge
from anbar.tier.composed import STAND_IN_S, Reading, absent, best
from anbar.tier.placement import Layers, Places
from anbar.tier.store import Outcome, PartStats, Scope

REFUSED_S = 0.0005
"""Until a connection is refused: a round trip on a local network."""
FROZEN_S = 5.0
"""How long nobody answers a call that has no deadline."""


EVERY_PART = ""
"""Stands for all parts of a store."""


class Operation(Enum):
    """What is asked of a store. `value` is the metrics' label."""

    LOOKUP = "lookup"
    LOAD = "load"
    STORE = "store"


class StoreFaultKind(Enum):
    """How a store fails."""

    DEAD = "dead"
    """Refuses connections, as a server that was killed."""
    FROZEN = "frozen"
    """Answers nothing until the deadline, as after SIGSTOP or behind a network that drops."""
    SLOW = "slow"
    """Each call takes `delay_s` longer, and is late when that is past its deadline."""
    FULL = "full"
    """Takes nothing more; what it has can be read."""
    DAMAGED = "damaged"
    """What is loaded does not verify, and is removed."""


@dataclass(frozen=True, slots=True)
class StoreFault:
    """How a store, or one part of it, fails."""

    kind: StoreFaultKind
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedCost:
    """Seconds of calls on a store. Each engine has `threads` for each of lookups, loads and stores."""

    lookup_s: float = 0.0
    """Per call of up to 256 keys."""
    load: TierCost = field(default_factory=lambda: TierCost(0.0, math.inf))
    store: TierCost = field(default_factory=lambda: TierCost(0.0, math.inf))
    threads: int = 2
    timeout_s: float = 0.5
    """How long a lookup may delay a request that does not say."""
    deadline_s: float = math.inf
    """Of single calls; of lookups no more than `timeout_s` then. Infinite: none is ever late."""

    def seconds(self, operation: Operation, num_keys: int, chunk_bytes: int) -> float:
        """Of a call that fails in nothing."""
        if operation is Operation.LOOKUP:
            return self.lookup_s
        return (self.load if operation is Operation.LOAD else self.store).seconds(num_keys * chunk_bytes)

    def deadline(self, operation: Operation) -> float:
        """Of one call."""
        is_bounded = operation is Operation.LOOKUP and math.isfinite(self.deadline_s)
        return min(self.timeout_s, self.deadline_s) if is_bounded else self.deadline_s


class PartState:
    """What one engine knows of a part of a composed store: a circuit breaker, and what it was asked for."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self.keys: Counter[tuple[str, str]] = Counter()

    def stats(self, part_id: str) -> PartStats:
        """As the real store tells it."""
        return PartStats(part_id, self.breaker.state().value, self.keys)


@dataclass(slots=True)
class Asking:
    """One call: `faults` as they are when it begins, by the part's id; `states` are the engine's."""

    operation: Operation
    scope: Scope
    chunk_bytes: int
    faults: Mapping[str, StoreFault]
    states: Mapping[str, PartState]
    evicted: list[bytes] = field(default_factory=list)
    takes_effect: bool = False
    """False: it only begins."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a part says, and how long that takes."""

    outcomes: list[Outcome]
    seconds: float


@dataclass(frozen=True, slots=True)
class StorePart:
    """A store that is made of no others."""

    id: str
    chunks: Chunks
    cost: SharedCost

    def begin(self, asked: Asking, keys: Sequence[bytes], deadline_s: float) -> float:
        """How long asking will take."""
        return self._fate(asked, len(keys), deadline_s)[1]

    def ask(self, asked: Asking, keys: Sequence[bytes], deadline_s: float) -> Reply:
        """Ask for some of a call's keys."""
        failure, seconds = self._fate(asked, len(keys), deadline_s)
        if failure is not None:
            return Reply([failure] * len(keys), seconds)
        fault = self._fault(asked)
        kind = fault.kind if fault is not None else None
        return Reply([self._one(asked, key, kind) for key in keys], seconds)

    def _fault(self, asked: Asking) -> StoreFault | None:
        return asked.faults.get(self.id) or asked.faults.get(EVERY_PART)

    def _fate(self, asked: Asking, num_keys: int, deadline_s: float) -> tuple[Outcome | None, float]:
        """How a call fails, None: not as a whole; and how long it takes."""
        fault = self._fault(asked)
        kind = fault.kind if fault is not None else None
        seconds = self.cost.seconds(asked.operation, num_keys, asked.chunk_bytes)
        deadline_s = min(deadline_s, self.cost.deadline(asked.operation))
        if kind is StoreFaultKind.DEAD:
            return Outcome.ERROR, min(REFUSED_S, deadline_s)
        if kind is StoreFaultKind.FROZEN:
            return Outcome.TIMEOUT, min(FROZEN_S, deadline_s)
        if fault is not None and kind is StoreFaultKind.SLOW:
            seconds += fault.delay_s
        return (Outcome.TIMEOUT, deadline_s) if seconds > deadline_s else (None, seconds)

    def _one(self, asked: Asking, key: bytes, fault: StoreFaultKind | None) -> Outcome:
        chunks, scope = self.chunks, asked.scope
        try:
            if asked.operation is Operation.STORE:
                return self._put(asked, key, is_full=fault is StoreFaultKind.FULL)
            is_there = chunks.use(scope, key) if asked.takes_effect else chunks.has(scope, key)
        except OSError:
            return Outcome.ERROR
        if is_there and asked.operation is Operation.LOAD and fault is StoreFaultKind.DAMAGED:
            if asked.takes_effect:
                chunks.drop(scope, key)
            return Outcome.CORRUPT
        return Outcome.HIT if is_there else Outcome.MISS

    def _put(self, asked: Asking, key: bytes, *, is_full: bool) -> Outcome:
        if is_full:
            return Outcome.HIT if self.chunks.has(asked.scope, key) else Outcome.FULL
        if asked.takes_effect:
            asked.evicted += self.chunks.add(asked.scope, key)
        return Outcome.HIT

    def parts(self) -> "list[StorePart | StoreParts]":
        """It is made of none."""
        return []

    def has(self, scope: Scope, key: bytes) -> bool:
        """Whether a chunk is there, as far as anybody can tell."""
        with contextlib.suppress(OSError):
            return self.chunks.has(scope, key)
        return False

    @property
    def num_chunks(self) -> int:
        """What it holds. May raise OSError, as `Chunks` may."""
        return len(self.chunks)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """A store that is made of others. What a part should have, and a further one has, is copied there when it
    is loaded. `write_back`: a write is done when the first part has it."""

    id: str
    members: "tuple[StorePart | StoreParts, ...]"
    places: Places
    write_back: bool = False

    def begin(self, asked: Asking, keys: Sequence[bytes], deadline_s: float) -> float:
        """How long asking will take, as far as can be seen."""
        return self.ask(asked, keys, deadline_s).seconds

    def ask(self, asked: Asking, keys: Sequence[bytes], deadline_s: float) -> Reply:
        """Ask for some of a call's keys."""
        if asked.operation is Operation.STORE:
            return self._write(asked, keys, deadline_s)
        return self._read(asked, keys, deadline_s)

    def parts(self) -> "list[StorePart | StoreParts]":
        """What it is made of, and what that is made of."""
        return [part for member in self.members for part in (member, *member.parts())]

    def has(self, scope: Scope, key: bytes) -> bool:
        """Whether any part holds it."""
        return any(member.has(scope, key) for member in self.members)

    @property
    def num_chunks(self) -> int:
        """As the real ones count: copies as they are stored, of layers the last one's."""
        counts = [member.num_chunks for member in self.members]
        return counts[-1] if isinstance(self.places, Layers) else sum(counts)

    def _read(self, asked: Asking, keys: Sequence[bytes], deadline_s: float) -> Reply:
        down = self._absent(asked, STAND_IN_S)
        reading = Reading([self.places.of(key, down) for key in keys])
        tickets: dict[int, Ticket] = {}
        seconds = 0.0
        while plan := reading.plan(lambda part: self._admit(asked, part, tickets)):
            left_s = (deadline_s - seconds) / reading.num_rounds(lambda part: self._is_open(asked, part))
            took_s = 0.0
            for part, indices in plan.items():
                reply = self._part(asked, part, [keys[i] for i in indices], left_s, tickets)
                reading.settle(part, indices, reply.outcomes)
                took_s = max(took_s, reply.seconds)
            seconds += took_s
        if asked.takes_effect:
            for part, num in reading.refused().items():
                self._state(asked, part).keys[asked.operation.value, "refused"] += num
            if asked.operation is Operation.LOAD:
                self._repair(asked, keys, reading)
        return Reply(reading.outcomes(), seconds)

    def _write(self, asked: Asking, keys: Sequence[bytes], deadline_s: float) -> Reply:
        down = self._absent(asked, 0.0)
        belongs = [self.places.of(key, down) for key in keys]
        said: list[list[Outcome]] = [[] for _ in keys]
        took_s: dict[int, float] = {}
        for part in sorted({part for places in belongs for part in places}):
            indices = [i for i, places in enumerate(belongs) if part in places]
            tickets: dict[int, Ticket] = {}
            if not self._admit(asked, part, tickets):
                continue
            reply = self._part(asked, part, [keys[i] for i in indices], deadline_s, tickets)
            took_s[part] = reply.seconds
            for i, outcome in zip(indices, reply.outcomes, strict=True):
                said[i].append(outcome)
        seconds = took_s.get(0, 0.0) if self.write_back else max(took_s.values(), default=0.0)
        return Reply([best(outcomes) for outcomes in said], seconds)

    def _part(
        self, asked: Asking, part: int, keys: list[bytes], deadline_s: float, tickets: dict[int, Ticket]
    ) -> Reply:
        reply = self.members[part].ask(asked, keys, deadline_s)
        if asked.takes_effect:
            state = self._state(asked, part)
            state.breaker.record(tickets.pop(part), judge(reply.outcomes))
            state.keys.update((asked.operation.value, outcome.value) for outcome in reply.outcomes)
        return reply

    def _repair(self, asked: Asking, keys: Sequence[bytes], reading: Reading) -> None:
        """Copies are made beside the call; here, when it ends."""
        for index, parts in reading.lacking():
            for part in parts:
                copy = Asking(Operation.STORE, asked.scope, 0, asked.faults, asked.states, takes_effect=True)
                reply = self.members[part].ask(copy, [keys[index]], math.inf)
                asked.evicted += copy.evicted
                self._state(asked, part).keys["repair", reply.outcomes[0].value] += 1

    def _admit(self, asked: Asking, part: int, tickets: dict[int, Ticket]) -> bool:
        breaker = self._state(asked, part).breaker
        if not asked.takes_effect:
            return not breaker.is_open()
        ticket = breaker.admit()
        if ticket is not None:
            tickets[part] = ticket
        return ticket is not None

    def _absent(self, asked: Asking, for_s: float) -> frozenset[int]:
        return absent([self._state(asked, part).breaker for part in range(len(self.members))], for_s)

    def _is_open(self, asked: Asking, part: int) -> bool:
        return self._state(asked, part).breaker.is_open()

    def _state(self, asked: Asking, part: int) -> PartState:
        return asked.states[self.members[part].id]


Node = StorePart | StoreParts
