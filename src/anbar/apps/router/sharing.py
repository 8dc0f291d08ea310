"""One fleet, several routers: each counts what the others have in flight as if it were its own.

`Told` is what this router tells; `PeerShare` what another one has told. A change takes a few milliseconds to
arrive; until then a router decides by what it knows. Nothing waits for anybody.

Everything is about requests in flight, so it heals by itself: a request that ends is taken out, and of a
router that is gone everything is.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from anbar.adapters.vllm.reading import Reading
from anbar.apps.router.caches import Caches, Sent
from anbar.apps.router.changes import Anew, Answered, Change, Computed, Ended, Held, Left, Placed
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.load import EngineLoad, Plan, Share
from anbar.core.clock import Clock
from anbar.core.cost import PrefillWork
from anbar.core.ids import ChainHash, EngineId
from anbar.core.request import RouteQuery
from anbar.route import PrefixIndex
from anbar.route.placements import Placement, Placements
from anbar.route.waiting import QueuedPrompt

Tell = Callable[[Change], None]


def _tell_nobody(change: Change) -> None:
    """Nobody listens."""


class Told:
    """What this router has in flight, for those who hear of it from the beginning or later."""

    def __init__(self) -> None:
        self.tell: Tell = _tell_nobody
        """Passes one change on."""
        self._number = 0
        self._held: dict[int, list[Change]] = {}
        self._placed: dict[int, list[Change]] = {}

    def everything(self) -> list[Change]:
        """For one who comes late: the changes that lead to where we are."""
        parts: Iterable[list[Change]] = (*self._held.values(), *self._placed.values())
        return [Anew(), *(change for part in parts for change in part)]

    def held(self, engine: EngineId, prompt: QueuedPrompt) -> int:
        """A request goes to an engine; the number is for what becomes of it."""
        work = prompt.work
        self._number += 1
        change = Held(
            self._number,
            engine,
            work.tokens,
            work.pairs,
            prompt.seconds,
            prompt.shows_first_token,
            prompt.loads,
        )
        self._held[self._number] = [change]
        self.tell(change)
        return self._number

    def answered(self, number: int, well: bool) -> None:
        change = Answered(number, well)
        self._held[number].append(change)
        self.tell(change)

    def ended(self, number: int) -> None:
        del self._held[number]
        self.tell(Ended(number))

    def placed(self, engine: EngineId, chain: Sequence[ChainHash]) -> int:
        self._number += 1
        change = Placed(self._number, engine, packed(chain))
        self._placed[self._number] = [change]
        self.tell(change)
        return self._number

    def computed(self, number: int, well: bool) -> None:
        change = Computed(number, well)
        self._placed[number].append(change)
        self.tell(change)

    def left(self, number: int) -> None:
        del self._placed[number]
        self.tell(Left(number))


class SharedLoad(EngineLoad):
    """The load of an engine that other routers use too."""

    __slots__ = ("_engine", "_told")

    def __init__(self, engine: EngineId, told: Told) -> None:
        super().__init__()
        self._engine = engine
        self._told = told

    def hold(self, plan: Plan, clock: Clock) -> Share:
        return _ToldShare(self, plan, clock, self._engine, self._told)


class _ToldShare(Share):
    __slots__ = ("_engine", "_number", "_told")

    def __init__(self, load: EngineLoad, plan: Plan, clock: Clock, engine: EngineId, told: Told) -> None:
        super().__init__(load, plan, clock)
        self._engine = engine
        self._told = told
        self._number = 0
        """0: nothing is told of it, or nothing more."""

    def __enter__(self) -> "Share":
        super().__enter__()
        self._number = self._told.held(self._engine, self._prompt)
        return self

    def is_no_load(self, now_s: float) -> None:
        super().is_no_load(now_s)
        self._told.ended(self._number)  # or all others would go on counting it
        self._number = 0

    def first_byte(self, status: int = 200) -> None:
        super().first_byte(status)
        if self._number:
            self._told.answered(self._number, status < 400)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._number:
            self._told.ended(self._number)


class SharedCaches(Caches):
    """Caches whose placements are told to other routers."""

    def __init__(
        self,
        told: Told,
        fleet: Fleet,
        index: PrefixIndex,
        placements: Placements,
        clock: Clock,
        max_age_s: float,
    ) -> None:
        super().__init__(fleet, index, placements, clock, max_age_s)
        self._told = told
        self._numbers: dict[Placement, int] = {}

    def are_told(self, engines: Iterable[Engine]) -> bool:
        """Nothing is left unread: another router could not compare its prompts with text that it never saw,
        so of two equal prompts that come to two routers both have to be known whole."""
        return False

    def sent(self, engine: EngineId, query: RouteQuery, reading: Reading) -> Sent:
        sent = super().sent(engine, query, reading)
        number = self._told.placed(engine, self.placements.blocks(engine, query))
        self._numbers[sent.placement] = number
        return sent

    def failed(self, placement: Placement) -> None:
        super().failed(placement)
        self._told.computed(self._numbers[placement], well=False)

    def over(self, placement: Placement) -> None:
        super().over(placement)
        self._told.left(self._numbers.pop(placement))

    def first_byte(self, engine: EngineId, placement: Placement, status: int) -> None:
        super().first_byte(engine, placement, status)
        self._told.computed(self._numbers[placement], status < 400)


class PeerShare:
    """What one other router has in flight. Make a new one for each life of it."""

    def __init__(self, fleet: Fleet, placements: Placements, clock: Clock) -> None:
        self._fleet = fleet
        self._placements = placements
        self._clock = clock
        self._held: dict[int, tuple[EngineLoad, QueuedPrompt]] = {}
        self._placed: dict[int, Placement] = {}

    @property
    def num_in_flight(self) -> int:
        return len(self._held)

    def take(self, change: Change) -> None:
        """Take in a change; what is about an engine that is not here, or a request that is not known, is
        passed over."""
        match change:
            case Held():
                self._hold(change)
            case Answered(number, well):
                self._answer(number, well)
            case Ended(number):
                self._end(number)
            case Placed(number, engine, chain):
                self._place(number, EngineId(engine), unpacked(chain))
            case Computed(number, well):
                self._compute(number, well)
            case Left(number):
                self._leave(number)
            case Anew():
                self.lost()
            case _:
                pass

    def lost(self) -> None:
        """It is gone: what it had in flight counts no more."""
        for number in list(self._held):
            self._end(number)
        for number in list(self._placed):
            self._leave(number)

    def _hold(self, change: Held) -> None:
        engine = self._fleet.get(EngineId(change.engine))
        if engine is None or change.number in self._held:
            return
        work = PrefillWork(change.tokens, change.pairs)
        prompt = QueuedPrompt(work, change.seconds, change.shows_first_token, change.loads)
        engine.load.add_elsewhere(prompt, self._clock.now_s())
        self._held[change.number] = engine.load, prompt

    def _answer(self, number: int, well: bool) -> None:
        if number in self._held:
            load, prompt = self._held[number]
            now_s = self._clock.now_s()
            if well:
                load.queue.answered(prompt, now_s)
            else:
                load.queue.discard(prompt, now_s)

    def _end(self, number: int) -> None:
        if number in self._held:
            load, prompt = self._held.pop(number)
            load.drop_elsewhere(prompt, self._clock.now_s())

    def _place(self, number: int, engine: EngineId, chain: list[ChainHash]) -> None:
        if number in self._placed:
            return
        placement = self._placements.receive(engine, chain)
        if placement is not None:
            self._placed[number] = placement

    def _compute(self, number: int, well: bool) -> None:
        if number in self._placed:
            placement = self._placed[number]
            if well:
                placement.first_byte(self._clock.now_s())
            else:
                placement.failed()

    def _leave(self, number: int) -> None:
        if number in self._placed:
            self._placed.pop(number).over(self._clock.now_s())


def packed(chain: Sequence[ChainHash]) -> bytes:
    values = array("Q", chain)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpacked(data: bytes) -> list[ChainHash]:
    """What is no multiple of 8 bytes loses its end."""
    values = array("Q", data[: len(data) // 8 * 8])
    if sys.byteorder == "big":
        values.byteswap()
    return [ChainHash(value) for value in values]
