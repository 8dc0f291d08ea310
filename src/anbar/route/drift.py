"""Whether an engine's part of the prefix index can be believed: what it predicted against what was reported.

Compared are the tokens that the index told to be on the engine's **device** when a request was routed,
with the `cached_tokens` of the answer's usage. Fewer reported than told is an over-prediction, and a
growing share of those is drift: removals that were missed, other hash inputs, another template. More than
told is unknown content (what was stored before the router came, or lies in a tier): counted, and no
reason for anything.

What is not compared, because the index is not to blame:
- tokens that only this router's own placements told (`PrefixMatch.unproven`);
- blocks of host and store: those are hints, refuted one by one;
- a request whose told blocks the engine has announced to be gone since it was routed (`RecentChanges`);
- a request that was handed over from a prefill engine, asked for no cache, or was not answered to its end;
- what was told by an index that was begun anew since.

States: PRECISE → (drift) → REBUILDING → (the index is built anew) → COMPARING → (it agrees) → PRECISE.
Outside of PRECISE the engine is routed to by placements, while the index goes on predicting in the
background. If it is wrong again it is built anew again, each time after four times as many requests, so
that a lasting cause does not keep an engine busy with replays."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from anbar.core.ids import EngineHash

MAX_PATIENCE = 65_536
"""Most requests between two rebuilds."""


class Trust(Enum):
    """What the index is worth for one engine."""

    PRECISE = "precise"
    REBUILDING = "rebuilding"
    """It was wrong too often, and is being built anew."""
    COMPARING = "comparing"
    """It was built anew, and is not believed before it agrees."""


class Verdict(Enum):
    """What one request says of the index."""

    AGREES = "agrees"
    OVER = "over"
    """Fewer cached than told."""
    UNKNOWN_CONTENT = "unknown_content"
    """More cached than told."""
    NOTHING = "nothing"
    """Too little was told to be wrong."""


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """When an index is not believed any more, and when it is again; `router.self_check` has the same keys."""

    window: int = 32
    """Requests that are looked at together: what a drift began with is forgotten soon, one odd request is
    little."""

    min_requests: int = 8
    """Before so many a share says nothing."""

    max_absent: float = 0.2
    """Of what was told, absent on average; more is drift. Requests and events that cross on the way are a few
    percent; a fifth is about where the engine that was sent to last is as good a guess. 1: never."""

    agree_requests: int = 16
    """Twice as many to be believed again as not to be: coming back wrongly costs another rebuild."""

    agree_absent: float = 0.05
    """Well below `max_absent`, so that an engine in between does not go back and forth."""

    def __post_init__(self) -> None:
        if max(self.min_requests, self.agree_requests) > self.window:
            raise ValueError("a window with fewer requests than are needed never decides anything")
        if self.agree_absent > self.max_absent:
            raise ValueError("an engine cannot agree and drift at once")


class DriftCheck:
    """The state of one engine. Knows no clock; whoever calls it acts on what `trust` becomes."""

    def __init__(self, limits: DriftLimits | None = None) -> None:
        self._limits = limits if limits is not None else DriftLimits()
        self._shares: deque[float] = deque(maxlen=self._limits.window)
        self._num_compared = 0
        """Since the index was begun anew."""
        self._patience = self._limits.min_requests
        self.trust = Trust.PRECISE

    @property
    def limits(self) -> DriftLimits:
        """By which it judges; may be replaced at any time, and what was seen counts for the new ones too, as
        far as their window reaches."""
        return self._limits

    @limits.setter
    def limits(self, limits: DriftLimits) -> None:
        if limits.min_requests != self._limits.min_requests:
            self._patience = limits.min_requests
        self._limits = limits
        self._shares = deque(self._shares, maxlen=limits.window)

    @property
    def share(self) -> float:
        """What was absent of what was told, on average over the window; 0 before anything was compared."""
        return sum(self._shares) / len(self._shares) if self._shares else 0.0

    @property
    def num_in_window(self) -> int:
        return len(self._shares)

    def observe(self, told: int, reported: int, block_size: int) -> Verdict:
        """A request for which the index told `told` device tokens and the engine reported `reported`. One
        block is within what engines differ by (a draft model gives up the last one)."""
        over = told - reported
        if told <= block_size:
            return Verdict.UNKNOWN_CONTENT if over < 0 else Verdict.NOTHING
        if self.trust is not Trust.REBUILDING:
            self._shares.append(over / told if over > block_size else 0.0)
            self._num_compared += 1
            self._judge()
        if over > block_size:
            return Verdict.OVER
        return Verdict.UNKNOWN_CONTENT if over < 0 else Verdict.AGREES

    def rebuilt(self) -> None:
        """All that the engine can replay was taken in anew."""
        if self.trust is Trust.REBUILDING:
            self._begin(Trust.COMPARING)

    def begin_anew(self) -> None:
        """The engine itself began anew, and the index with it: nothing is held against it."""
        self._begin(Trust.PRECISE)
        self._patience = self._limits.min_requests

    def _judge(self) -> None:
        limits, num, share = self._limits, len(self._shares), self.share
        if share > limits.max_absent and num >= limits.min_requests and self._num_compared >= self._patience:
            self._patience = min(4 * self._patience, MAX_PATIENCE)
            self._begin(Trust.REBUILDING)
        elif self.trust is Trust.COMPARING and num >= limits.agree_requests and share <= limits.agree_absent:
            self.begin_anew()

    def _begin(self, trust: Trust) -> None:
        self.trust = trust
        self._shares.clear()
        self._num_compared = 0


class RecentChanges:
    """What an engine announced of its device blocks, in order, as far as the last `capacity` of them go.

    A request that waits in an engine's queue may find gone what it was told of, and the index was right
    all the same: then the engine has announced since that the block is gone, and only after that, when
    the request had computed it again, that it is there. An index that was wrong sees it stored without a
    word of its end."""

    def __init__(self, capacity: int = 32_768) -> None:
        self._capacity = capacity
        self._changes: deque[tuple[float, bool, tuple[EngineHash, ...]]] = deque()
        self._num_hashes = 0
        self._complete_since_s = float("-inf")
        """Of what was announced before, some is not remembered."""

    def add(self, hashes: tuple[EngineHash, ...], now_s: float, *, gone: bool) -> None:
        """Blocks left the device, or came to it."""
        self._changes.append((now_s, gone, hashes))
        self._num_hashes += len(hashes)
        while self._num_hashes > self._capacity:
            self._complete_since_s, _, dropped = self._changes.popleft()
            self._num_hashes -= len(dropped)

    def forget(self, now_s: float) -> None:
        """The device was emptied, or nothing is known of what happened to it until now."""
        self._changes.clear()
        self._num_hashes = 0
        self._complete_since_s = now_s

    def covers(self, start_s: float) -> bool:
        """Whether all that was announced at `start_s` or later is remembered."""
        return start_s > self._complete_since_s

    def since(self, start_s: float) -> Iterator[tuple[EngineHash, bool]]:
        """The blocks that were announced at `start_s` or later, in order, each with whether it was gone."""
        return ((name, gone) for at_s, gone, hashes in self._changes if at_s >= start_s for name in hashes)
