"""One request of a simulated load, and the names of its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anbar.sim.engine.request import BlockKey


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `blocks` name the full blocks of its prompt, each with all before it: whole numbers below
    2^32, equal where the tokens up to there are."""

    number: int
    at_s: float
    num_prompt: int
    num_answer: int
    blocks: tuple[int, ...]
    more: tuple[int, ...] = ()
    """Names of the blocks that its answer fills, as far as a later prompt may begin with them."""
    session: str = ""
    """What the router is told of its session; "": the second block of its prompt stands for it."""
    stream: str = ""
    """Which part of the load it is of."""
    is_prefill: bool = False
    """It is the first leg of a request that is split: computed for the one that answers."""
    num_expected: int = 0
    """Leading tokens that somebody else is storing just now: the second leg's."""

    def later(self, seconds: float) -> "Ask":
        """The same again, by somebody else."""
        return replace(self, number=self.number + 1_000_000, at_s=self.at_s + seconds)


class AskKeys:
    """Block keys of a request: those that have names, then its answer's own."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._named = ask.blocks + ask.more if ask.more else ask.blocks

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        """As `BlockKeys`."""
        named = self._named
        if num_blocks <= len(named):
            return named[:num_blocks]
        return [*named, *((self._ask.number, place) for place in range(len(named), num_blocks))]
