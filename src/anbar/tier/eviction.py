"""What leaves a store first: the bytes that are expected to save the fewest seconds.

An entry is worth the seconds that computing would take if it were gone. What that is per byte, divided by the
time since it was last used, is its rank, and the lowest ranks go first.

- *Seconds per byte* is GreedyDual-Size (Cao and Irani, USENIX Internet Technologies 1997; with a count of
  uses: GDSF, Cherkasova, HP Labs 1998). Both keep a priority for each entry, raised as the cache ages, which
  all who share a directory would have to agree on.
- *Divided by age* needs nothing but the time of last use: what was not used for a time t will be used in the
  next moment with a chance of about 1/t (Blankstein, Sen and Freedman, Hyperbolic Caching, USENIX ATC 2017).

Entries of equal worth go in order of last use.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from anbar.core.cost import PrefillCost

UNKNOWN_S_PER_BYTE = 1.0 / (1 << 30)
"""Worth of a byte of which nothing is known. Only its order beside known ones depends on it; computing is
rarely so fast, so that unknown ones go first."""

SETTLING_S = 60.0
"""Added to ages, or what was used a second ago would be worth ten times what was used ten seconds ago. Times
of last use are half a minute coarse."""

NOMINAL = PrefillCost(a_s_per_token=1e-4)
"""Of an engine that has not been measured: 10,000 tokens/s. Orders the entries of one chain all the same."""

EXPECTED_TOKENS = 1024
"""What follows a chain's last known chunk, as far as can be expected: a conversation goes on."""


class Ranked(NamedTuple):
    """What the rank of an entry is made of; `saves_s` is 0 when it is not known."""

    num_bytes: int
    saves_s: float
    age_s: float


EntryT = TypeVar("EntryT")


def rank(entry: Ranked) -> float:
    """Seconds that a byte of it is expected to save in the next second; ages below zero count as zero."""
    num_bytes = max(1, entry.num_bytes)
    saves_s = entry.saves_s if entry.saves_s > 0 else UNKNOWN_S_PER_BYTE * num_bytes
    return saves_s / num_bytes / (max(0.0, entry.age_s) + SETTLING_S)


def leaving(entries: Iterable[tuple[Ranked, EntryT]], need: int) -> list[EntryT]:
    """The entries to evict so that at least `need` bytes go, lowest rank first; all if need be."""
    if need <= 0:
        return []
    chosen = []
    for ranked, entry in sorted(entries, key=lambda pair: rank(pair[0])):
        if need <= 0:
            break
        chosen.append(entry)
        need -= ranked.num_bytes
    return chosen


def chain_saves_s(
    ends: Sequence[int], cost: PrefillCost = NOMINAL, ceiling_s: float = float("inf")
) -> tuple[float, ...]:
    """Seconds saved by each of a prompt's chunks, which end at these tokens (ascending).

    Without a chunk all that follows is of no use, so each is worth the computing of everything after it: the
    beginning of a prompt is worth most, and a tail goes before its head. `ceiling_s` is the least that the
    same prompt's earlier chunks are worth, where they were stored by themselves.
    """
    whole = ends[-1] + EXPECTED_TOKENS if ends else 0
    a, b = cost.a_s_per_token, cost.b_s_per_token2
    most = cost.seconds(whole)
    rest = [most - a * end - b * end * end for end in ends]
    return tuple([saved_s if saved_s < ceiling_s else ceiling_s for saved_s in rest])
