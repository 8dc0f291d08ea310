"""What the router believes of caches while prompts are known only in part."""

from contextlib import ExitStack

from scripted import engine_at
from tests.unit.kv.families import WITH_WORDS

from anbar.adapters.vllm.encoder import Encoder
from anbar.adapters.vllm.reading import Reading
from anbar.adapters.vllm.tokenizer_kind import kind_of
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet
from anbar.core.clock import ManualClock
from anbar.core.ids import EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route import EngineProfile, PrefixIndex
from anbar.route.match import may_grow
from anbar.route.placements import Placements

RAW = WITH_WORDS["qwen-2"]
A, B = EngineId("a"), EngineId("b")
BLOCK = 16
COMMON = " ".join(f"word{number}" for number in range(2000))


def query_of(reading: Reading) -> RouteQuery:
    return RouteQuery(RequestId("r"), "m", reading.ids, reading.num_tokens, is_whole=reading.is_whole)


def following(engine: EngineId) -> Engine:
    """An engine whose events are followed, though there are none."""
    made = engine_at(1, engine)
    made.profile = EngineProfile("m", BLOCK)
    made.kv.address = "tcp://127.0.0.1:1"
    made.kv.status.complete = True
    return made


class Bench:
    """Two engines whose events tell nothing, and prompts that are read as far as they match."""

    def __init__(self) -> None:
        placements = Placements()
        for engine in (A, B):
            placements.attach(engine, "m", BLOCK)
        fleet = Fleet([following(A), following(B)])
        self.caches = Caches(fleet, PrefixIndex(), placements, ManualClock())
        self.encoder = Encoder(RAW, kind_of(RAW.to_str()), 1 << 22)

    def read(self, text: str) -> tuple[Reading, dict[EngineId, int]]:
        """A prompt as the flow reads it, and how much of it engines are believed to have."""
        reading = self.encoder.read(text, add_special_tokens=False)
        step_chars = 512
        while True:
            reading.take(step_chars)
            found = self.caches.match(query_of(reading), [A, B]).believed
            more = any(may_grow(match, len(reading.ids), BLOCK) for match in found.values())
            if reading.is_whole or not more:
                return reading, {engine: match.total for engine, match in found.items()}
            step_chars *= 8


def test_a_burst_of_equal_prompts_that_nobody_knows() -> None:
    """The first is read only in part, for no engine has any of it. The second is found to be where the
    first one went, in full: what it had to encode is what the first one lacked. So is one that shares half
    of it."""
    bench = Bench()
    with ExitStack() as flying:
        first, found = bench.read(COMMON)
        assert not first.is_whole
        assert set(found.values()) == {0}
        flying.enter_context(bench.caches.sent(A, query_of(first), first))
        second, found = bench.read(COMMON)
        assert second.is_whole
        assert found == {A: (len(second.ids) - 1) // BLOCK * BLOCK, B: 0}
        flying.enter_context(bench.caches.sent(A, query_of(second), second))
        other = COMMON[: len(COMMON) // 2] + " something else" * 2000
        third, found = bench.read(other)
        assert not third.is_whole
        assert len(second.ids) / 3 < found[A] < len(second.ids) * 2 / 3


def test_what_was_not_read_is_forgotten_with_its_request() -> None:
    """Once answered, or given up, a prompt is no longer read on with."""
    bench = Bench()
    first, _ = bench.read(COMMON)
    num_ids = len(first.ids)
    with bench.caches.sent(A, query_of(first), first) as placement:
        bench.caches.first_byte(A, placement, 200)
        _, found = bench.read(COMMON)
        assert len(first.ids) == num_ids
        assert found[A] == num_ids // BLOCK * BLOCK
    with bench.caches.sent(B, query_of(first), first):
        pass
    bench.read(COMMON)
    assert len(first.ids) == num_ids


def test_a_prompt_that_an_engine_refused_is_not_there() -> None:
    """While its error passes, and afterwards, nobody is sent there for what it did not compute."""
    bench = Bench()
    first, _ = bench.read(COMMON)
    with bench.caches.sent(A, query_of(first), first) as placement:
        bench.caches.first_byte(A, placement, 400)
        assert bench.read(COMMON)[1] == {A: 0, B: 0}
    assert bench.read(COMMON)[1] == {A: 0, B: 0}


def test_other_prompts_in_flight_are_not_read_on() -> None:
    """What begins otherwise is left alone."""
    bench = Bench()
    first, _ = bench.read(COMMON)
    num_ids = len(first.ids)
    with bench.caches.sent(A, query_of(first), first):
        bench.encoder.read(COMMON, add_special_tokens=False).whole()
        bench.read("entirely " + COMMON)
        assert len(first.ids) == num_ids
        bench.read(COMMON)
        assert first.is_whole
