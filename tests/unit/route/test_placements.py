"""What was sent where: against a naive model, and what becomes of a request that was sent."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.blocks import prompt_chain
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import ChainHash, EngineId
from anbar.core.request import RouteQuery
from anbar.route.placements import DEFAULT_BLOCK_SIZE, DOUBT_S, Placement, Placements, joined

from .builders import query

A, B = EngineId("a"), EngineId("b")
SIZES = {A: 2, B: 3}
CAPACITY = 12
ALWAYS = 1e9
"""Seconds."""


def attached(capacity: int = CAPACITY) -> Placements:
    placements = Placements(capacity)
    for engine, size in SIZES.items():
        placements.attach(engine, "m", size)
    return placements


def unproven(tokens: int) -> PrefixMatch:
    return PrefixMatch(tokens, tokens, tokens, tokens)


@dataclass
class Naive:
    """Every placement ever, newest last; how each is believed in is asked of the placement itself."""

    sent: dict[EngineId, list[tuple[list[ChainHash], Placement]]] = field(
        default_factory=lambda: {A: [], B: []}
    )

    def blocks(self, engine: EngineId, asked: RouteQuery) -> list[ChainHash]:
        return prompt_chain("m", asked, SIZES[engine])

    def kept(self, engine: EngineId, last: float) -> dict[ChainHash, Placement]:
        """The newest placement of each of the `last` distinct blocks that were placed last, at most a third
        of the capacity of each prompt."""
        kept: dict[ChainHash, Placement] = {}
        for chain, placement in reversed(self.sent[engine]):
            new = [block for block in chain[: CAPACITY // 3] if block not in kept]
            if len(kept) + len(new) > last:
                break
            kept.update(dict.fromkeys(new, placement))
        return kept

    def match(self, engine: EngineId, asked: RouteQuery, oldest_s: float, last: float) -> int:
        kept, tokens = self.kept(engine, last), 0
        for block in self.blocks(engine, asked):
            if block not in kept or kept[block].at_s < oldest_s or tokens + SIZES[engine] >= asked.num_tokens:
                break
            tokens += SIZES[engine]
        return tokens


PROMPTS = st.lists(st.integers(1, 2), max_size=9)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "placed", "first byte", "failed", "over", "forget"]),
        st.sampled_from([A, B]),
        PROMPTS,
        st.integers(0, 3),
    ),
    max_size=25,
)


@given(STEPS, PROMPTS, st.sampled_from([None, "s"]))
def test_any_history_matches_as_the_naive_model(
    steps: list[tuple[str, EngineId, list[int], int]], looked_up: list[int], salt: str | None
) -> None:
    """Whatever was sent and became of it: never more is matched than a search through the whole history
    finds, never less than one through the third of the capacity that was placed last; memory is bounded."""
    placements, naive, now_s = attached(), Naive(), 0.0
    flying: list[Placement] = []
    for kind, engine, tokens, at in steps:
        now_s += 1.0
        asked = query(tokens, salt=salt if at else None)
        if kind == "forget":
            placements.forget(engine)
            naive.sent[engine].clear()
        elif kind in ("send", "placed"):
            placement = placements.send(engine, asked)
            naive.sent[engine].append((naive.blocks(engine, asked), placement))
            if kind == "placed":
                placement.over(now_s)
            else:
                flying.append(placement)
        elif flying:
            flying_one = flying.pop(at % len(flying))
            if kind == "failed":
                flying_one.failed()
            else:
                (flying_one.first_byte if kind == "first byte" else flying_one.over)(now_s)
        asked = query(looked_up, salt=salt)
        for max_age_s in (ALWAYS, 2.0):
            found = placements.match(asked, [A, B], now_s, max_age_s)
            for name in (A, B):
                oldest_s = now_s - max_age_s
                least = naive.match(name, asked, oldest_s, CAPACITY // 3)
                most = naive.match(name, asked, oldest_s, math.inf)
                assert least <= found[name].device <= most
                assert found[name] == unproven(found[name].device)
        assert all(placements.num_blocks(name) <= CAPACITY for name in (A, B))


def test_each_engine_has_its_own_block_size_and_its_own_placements() -> None:
    """The same prompt is matched in whole blocks of each engine, never with its last token, and an engine
    that got nothing has nothing."""
    placements, prompt = attached(), query([1] * 8)
    placements.send(A, prompt).over(0.0)
    assert placements.match(prompt, [A, B], 0.0, ALWAYS) == {A: unproven(6), B: unproven(0)}
    placements.send(B, prompt).over(0.0)
    assert placements.match(query([1] * 9), [A, B], 0.0, ALWAYS) == {A: unproven(8), B: unproven(6)}
    assert placements.match(query([1] * 9, lora="x"), [A], 0.0, ALWAYS) == {A: unproven(0)}


def test_in_flight_for_as_long_as_it_takes() -> None:
    """A request that waits for its first byte for an hour is believed in all the while, and for two seconds
    after it."""
    placements, prompt = attached(), query([1] * 7)
    placement = placements.send(A, prompt)
    assert placements.in_doubt(prompt, [A, B], 3600.0) == {A: unproven(6), B: unproven(0)}
    placement.first_byte(3600.0)
    assert placements.in_doubt(prompt, [A], 3600.0 + DOUBT_S) == {A: unproven(6)}
    assert placements.in_doubt(prompt, [A], 3600.1 + DOUBT_S) == {A: unproven(0)}
    assert placements.match(prompt, [A], 3700.0, 100.0) == {A: unproven(6)}
    assert placements.match(prompt, [A], 3701.0, 100.0) == {A: unproven(0)}


def test_events_end_the_doubt() -> None:
    """As soon as the index holds the last block of a prompt past its first byte, the index alone is right; an
    older look and other blocks prove nothing."""
    placements, prompt = attached(), query([1] * 6)
    last = prompt_chain("m", prompt, 2)[-1]
    placement = placements.send(A, prompt)
    placements.prove(A, lambda block: block == last, 0.0)
    placement.first_byte(1.0)
    assert placements.in_doubt(prompt, [A], 1.0) == {A: unproven(4)}
    placements.prove(A, lambda block: block != last, 1.0)
    assert placements.in_doubt(prompt, [A], 1.0) == {A: unproven(4)}
    placements.prove(A, lambda block: block == last, 1.0)
    assert placements.in_doubt(prompt, [A], 1.0) == {A: unproven(0)}
    assert placements.match(prompt, [A], 1.0, 0.0) == {A: unproven(4)}


def test_what_nothing_proves_is_forgotten() -> None:
    """Of an engine whose events never come, prompts past their first byte are kept for two seconds, and no
    longer: a router that only hears of others' requests takes in no events of its own."""
    placements, prompt = attached(), query([1] * 6)
    last = prompt_chain("m", prompt, 2)[-1]
    for second in range(1000):
        placements.send(A, prompt).first_byte(float(second))
    looked_at: list[ChainHash] = []

    def holds(block: ChainHash) -> bool:
        looked_at.append(block)
        return False

    placements.prove(A, holds, 999.0)
    assert looked_at == [last] * 3


def test_a_request_that_failed_counts_no_more() -> None:
    """An engine that did not serve it need not have it; one whose client went away may, for two seconds."""
    placements, prompt = attached(), query([1] * 6)
    placement = placements.send(A, prompt)
    placement.failed()
    placement.over(1.0)
    assert placements.match(prompt, [A], 1.0, ALWAYS) == {A: unproven(0)}
    placements.send(A, prompt).over(1.0)
    assert placements.in_doubt(prompt, [A], 1.0 + DOUBT_S) == {A: unproven(4)}
    assert placements.in_doubt(prompt, [A], 1.1 + DOUBT_S) == {A: unproven(0)}


def test_other_weights_or_blocks_are_another_cache() -> None:
    """An engine that comes back with another model or block size holds nothing of what it was sent; the same
    facts again change nothing; one without a cache is not remembered."""
    placements, prompt = attached(), query([1] * 40)
    placements.send(A, prompt).over(0.0)
    placements.attach(A, "m", 2)
    assert placements.match(prompt, [A], 0.0, ALWAYS)[A].device > 0
    placements.attach(A, "m", 0)
    assert placements.match(prompt, [A], 0.0, ALWAYS)[A].device == 0
    placements.send(A, prompt).over(0.0)
    assert placements.match(prompt, [A], 0.0, ALWAYS)[A].device == 2 * DEFAULT_BLOCK_SIZE
    placements.detach(A)
    placements.send(A, prompt).over(0.0)
    assert placements.match(prompt, [A], 0.0, ALWAYS) == {}


@contextmanager
def no_collector() -> Iterator[Callable[[], int]]:
    """Nobody looks for rings of references; gives the number of placements in memory."""
    gc.disable()
    try:
        yield lambda: sum(isinstance(found, Placement) for found in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "end",
    [
        lambda placements: placements.forget(A),
        lambda placements: placements.detach(A),
        lambda placements: placements.attach(A, "m", SIZES[A] + 1),
    ],
)
def test_what_is_forgotten_takes_no_memory(end: Callable[[Placements], None]) -> None:
    """An engine restarts, leaves or serves another model: nothing of what it was sent is kept by a ring."""
    placements = attached()
    with no_collector() as num_placements:
        before = num_placements()
        for start in range(20):
            placements.send(A, query(range(start, start + 8))).first_byte(0.0)
        assert num_placements() > before
        end(placements)
        assert num_placements() == before


def test_a_capacity_must_hold_something() -> None:
    with pytest.raises(ValueError, match="capacity is 2"):
        Placements(2)


@pytest.mark.parametrize(
    ("precise", "placed", "both"),
    [
        (PrefixMatch(4, 6, 8), 4, PrefixMatch(4, 6, 8)),
        (PrefixMatch(4, 6, 8), 5, PrefixMatch(5, 6, 8, 1)),
        (PrefixMatch(4, 6, 8), 9, PrefixMatch(9, 9, 9, 5)),
        (PrefixMatch(), 3, unproven(3)),
    ],
)
def test_the_longer_one_counts(precise: PrefixMatch, placed: int, both: PrefixMatch) -> None:
    """Placements lengthen what events tell, never shorten it, and only the gain is unproven."""
    assert joined(precise, unproven(placed)) == both
