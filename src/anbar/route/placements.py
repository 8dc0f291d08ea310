"""The approximate index: what this router itself sent where, with no word from the engines.

It serves three:

- a policy that needs no events (`prefix`), by `match`: an engine that computed a prompt has it for a while;
- engines whose events cannot be had or believed, likewise;
- a burst of equal prompts, by `in_doubt`: a request that was sent is not in any event before the engine has
  begun with it, so the precise index alone would call every engine equally empty and scatter the burst.

How long a request in flight is believed in, where events are followed:

- Until its first byte it counts, however long that takes: the engine has it queued or computes it.
- With its first byte its prompt is computed, and the engine has published that before. The belief ends as
  soon as the index holds the prompt's last block: from then on events tell what is there and what is not.
- Events and answers come on different connections. Should the events be late, or the block be stored and
  evicted between two looks, the belief ends `DOUBT_S` after the first byte.
- A request whose client went away counts for `DOUBT_S`: nobody knows how far the engine got.
- A request that the engine failed counts no more.

Memory: per engine at most `capacity` blocks of about 80 bytes (`tracemalloc`), in two generations. The older
one is dropped when the younger has a third of the capacity, so the third that was placed last is always kept,
and placing and forgetting a prompt are each one step. A block's newest placement stands for it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from anbar.core.fleet import NO_MATCH, PrefixMatch
from anbar.core.ids import ChainHash, EngineId
from anbar.core.request import RouteQuery
from anbar.route.chains import PromptChains

CAPACITY = 98_304
"""Blocks per engine, 8 MB. The third that is always kept, half a million tokens at 16 per block, is what the
KV cache of a large GPU holds."""

DOUBT_S = 2.0
"""Seconds that a request past its first byte is believed in without a proof. Events usually come within
milliseconds; a router that lags behind by more has other troubles, which the self-check names."""

DEFAULT_BLOCK_SIZE = 16
"""Tokens per block for engines that do not tell theirs: vLLM's default on a GPU."""


class Placement:
    """One request at one engine. Begins in flight; says once how that ended."""

    __slots__ = ("_engine", "at_s", "last_block", "proven")

    def __init__(self, engine: "_Engine", last_block: ChainHash | None) -> None:
        self._engine = engine
        self.last_block = last_block
        self.at_s = inf
        """When the prompt was computed; infinity while it is in flight, -infinity when the engine failed."""
        self.proven = False
        """Whether the engine's events have shown the whole prompt."""

    def is_at(self, engine: "_Engine") -> bool:
        return self._engine is engine

    def first_byte(self, now_s: float) -> None:
        """The prompt is computed."""
        self.at_s = now_s
        if self.last_block is not None:
            self._engine.doubt(self)

    def failed(self) -> None:
        """The engine did not serve it; no effect once there was a first byte."""
        if self.at_s == inf:
            self.at_s = -inf

    def over(self, now_s: float) -> None:
        """It ended; if that was before a first byte, its client went away."""
        if self.at_s == inf:
            self.at_s = now_s


@dataclass(slots=True)
class _Engine:
    """One engine's placements: `young` and `old` blocks, each with its newest placement."""

    model: str
    block_size: int
    young: dict[ChainHash, Placement] = field(default_factory=dict)
    old: dict[ChainHash, Placement] = field(default_factory=dict)
    doubted: deque[Placement] = field(default_factory=deque)
    """Those past their first byte that no event has proven yet, the oldest first."""

    def drop(self) -> None:
        """It is of no more use: let go of its placements, which refer to it. Such a ring would stay in
        memory, megabytes for each restart, until Python looks for rings: in a router that is hardly ever."""
        self.young, self.old, self.doubted = {}, {}, deque()

    def doubt(self, placement: Placement) -> None:
        """An engine that tells nothing proves nothing: what is too old to be believed in goes here, too."""
        while self.doubted and self.doubted[0].at_s < placement.at_s - DOUBT_S:
            self.doubted.popleft()
        self.doubted.append(placement)


class Placements:
    """See the module's text. Not thread-safe: the router's event loop owns it."""

    def __init__(self, capacity: int = CAPACITY, chains: PromptChains | None = None) -> None:
        """`capacity`: most blocks remembered per engine; `chains` may be shared with the precise index."""
        if capacity < 3:
            raise ValueError(f"capacity is {capacity}, must be at least 3")
        self._third = capacity // 3
        self._chains = chains if chains is not None else PromptChains()
        self._engines: dict[EngineId, _Engine] = {}

    def attach(self, engine: EngineId, model: str, block_size: int) -> None:
        """Begin to remember what an engine gets, whose weights are `model`. Again with equal values changes
        nothing; with others, what was known is dropped. `block_size` 0: the engine does not say."""
        size = block_size or DEFAULT_BLOCK_SIZE
        known = self._engines.get(engine)
        if known is None or (known.model, known.block_size) != (model, size):
            self.detach(engine)
            self._engines[engine] = _Engine(model, size)

    def detach(self, engine: EngineId) -> None:
        """Remember nothing more of an engine: it has no prefix cache, or is gone."""
        known = self._engines.pop(engine, None)
        if known is not None:
            known.drop()

    def is_attached(self, engine: EngineId) -> bool:
        return engine in self._engines

    def forget(self, engine: EngineId) -> None:
        """The engine began anew: drop what it got so far."""
        known = self._engines.get(engine)
        if known is not None:
            self.detach(engine)
            self._engines[engine] = _Engine(known.model, known.block_size)

    def send(self, engine: EngineId, query: RouteQuery) -> Placement:
        """`query` goes to `engine` now; the caller tells the placement what becomes of it. For an engine that
        is not attached, and a prompt without tokens or shorter than a block, nothing is remembered."""
        known = self._engines.get(engine)
        if known is None:
            return Placement(_Engine("", 1), None)
        placement = Placement(known, None)
        if query.token_ids:
            self._place(placement, known, query)
        return placement

    def extend(self, engine: EngineId, placement: Placement, query: RouteQuery) -> None:
        """More of a prompt's tokens is known than when it was sent."""
        known = self._engines.get(engine)
        if known is not None and placement.is_at(known):
            self._place(placement, known, query)

    def blocks(self, engine: EngineId, query: RouteQuery) -> list[ChainHash]:
        """What `send` remembers of a prompt, for another router's `receive`."""
        known = self._engines.get(engine)
        return self._chain(query, known)[: self._third] if known is not None else []

    def receive(self, engine: EngineId, chain: list[ChainHash]) -> Placement | None:
        """Another router sends a prompt of these blocks to `engine` now. It tells what becomes of it. None
        when the engine is not attached."""
        known = self._engines.get(engine)
        if known is None:
            return None
        placement = Placement(known, None)
        self._remember(placement, known, chain[: self._third])
        return placement

    def match(
        self, query: RouteQuery, engines: Iterable[EngineId], now_s: float, max_age_s: float
    ) -> dict[EngineId, PrefixMatch]:
        """How much of the prompt each engine got and computed at most `max_age_s` ago, or is to compute; as
        device tokens, all of them unproven. Engines that are not attached are left out."""
        oldest_s = now_s - max_age_s
        return self._match(query, engines, lambda placement: placement.at_s >= oldest_s)

    def in_doubt(
        self, query: RouteQuery, engines: Iterable[EngineId], now_s: float
    ) -> dict[EngineId, PrefixMatch]:
        """The same, of what events have not had the time to tell (see the module's text)."""
        oldest_s = now_s - DOUBT_S
        return self._match(
            query, engines, lambda placement: placement.at_s >= oldest_s and not placement.proven
        )

    def prove(self, engine: EngineId, holds: Callable[[ChainHash], bool], now_s: float) -> None:
        """Events of `engine` were taken in: `holds` says whether it has a block on its device now."""
        known = self._engines.get(engine)
        if known is None or not known.doubted:
            return
        doubted = deque[Placement]()
        for placement in known.doubted:
            assert placement.last_block is not None, "a prompt without blocks has nothing to prove"
            placement.proven = holds(placement.last_block)
            if not placement.proven and placement.at_s >= now_s - DOUBT_S:
                doubted.append(placement)
        known.doubted = doubted

    def num_blocks(self, engine: EngineId) -> int:
        """Blocks remembered of an engine, some of them twice."""
        known = self._engines.get(engine)
        return len(known.young) + len(known.old) if known is not None else 0

    def _place(self, placement: Placement, known: _Engine, query: RouteQuery) -> None:
        # More than a third is not remembered of one prompt: its beginning is what others share.
        self._remember(placement, known, self._chain(query, known)[: self._third])

    def _remember(self, placement: Placement, known: _Engine, chain: list[ChainHash]) -> None:
        placement.last_block = chain[-1] if chain else None
        known.young.update(dict.fromkeys(chain, placement))
        if len(known.young) >= self._third:
            known.old, known.young = known.young, {}

    def _match(
        self, query: RouteQuery, engines: Iterable[EngineId], counts: Callable[[Placement], bool]
    ) -> dict[EngineId, PrefixMatch]:
        found: dict[EngineId, PrefixMatch] = {}
        for engine in engines:
            known = self._engines.get(engine)
            if known is not None:
                tokens = self._tokens(query, known, counts)
                found[engine] = PrefixMatch(tokens, tokens, tokens, unproven=tokens) if tokens else NO_MATCH
        return found

    def _tokens(self, query: RouteQuery, known: _Engine, counts: Callable[[Placement], bool]) -> int:
        if not (known.young or known.old):
            return 0
        # The last token of a prompt is always computed, so a block that ends with it is of no use.
        chain = self._chain(query, known)[: max(0, len(query.token_ids) - 1) // known.block_size]
        num_blocks = 0
        # Neighbours mostly have the same one.
        for placement, blocks in groupby(map(known.young.get, chain, map(known.old.get, chain))):
            if placement is None or not counts(placement):
                break
            num_blocks += len(list(blocks))
        return num_blocks * known.block_size

    def _chain(self, query: RouteQuery, known: _Engine) -> list[ChainHash]:
        return self._chains.of(query, known.model, known.block_size)


def joined(precise: PrefixMatch, placed: PrefixMatch) -> PrefixMatch:
    """The longer of what events tell of an engine and of what it was sent, tier by tier: what it was sent
    will be on its device, and its lower tiers continue from there."""
    if placed.device <= precise.device:
        return precise
    return PrefixMatch(
        device=placed.device,
        host=max(precise.host, placed.device),
        shared=max(precise.shared, placed.device),
        unproven=placed.device - precise.device,
    )
