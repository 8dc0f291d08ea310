"""The threads that call the store, on a store in memory with faults."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from anbar.adapters.vllm.store_calls import Result, StoreCalls, Timeouts
from anbar.core.clock import ManualClock
from anbar.testing.memory_store import MemoryStore
from anbar.testing.store_contract import get, put
from anbar.tier.breaker import Breaker, BreakerState, Verdict, judge
from anbar.tier.lookups import Question
from anbar.tier.store import Outcome
from anbar.tier.transfers import Call, Direction

ROW_BYTES = 16
TIMEOUTS = Timeouts(lookup_s=0.2, load_s=0.2, store_s=0.2)


class Rig:
    """Calls on a store in memory, with a small host memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock)
        self.store = MemoryStore()
        self.memory = bytearray(8 * ROW_BYTES)
        self.calls = StoreCalls(self.store, self.breaker, self.row, TIMEOUTS)
        self.calls.start()

    def row(self, index: int) -> memoryview:
        return memoryview(self.memory)[index * ROW_BYTES : (index + 1) * ROW_BYTES]

    def one(self) -> Result:
        """The one result that is awaited."""
        (result,) = self.calls.collect_all()
        return result


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.calls.close()


def transfer(direction: Direction, key: bytes, row: int, job: int = 1) -> Call:
    return Call(job, direction, "tenant", (key,), (row,))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_a_load_says_what_its_keys_save(rig: Rig) -> None:
    """What a call carries of each key's worth reaches the store with the read, as it does with the write."""
    put(rig.store, b"key", b"x" * ROW_BYTES, "tenant")
    rig.calls.submit(Call(1, Direction.LOAD, "tenant", (b"key",), (5,), (4.0,)))
    assert rig.one().outcomes == [Outcome.HIT]
    assert rig.store.read_saves_s == {b"key": 4.0}


def test_rows_go_out_and_come_back(rig: Rig) -> None:
    """Row 1 is stored, found, and loaded into row 5; its neighbours stay as they were."""
    rig.memory[ROW_BYTES : 2 * ROW_BYTES] = b"0123456789abcdef"
    rig.calls.submit(transfer(Direction.STORE, b"key", 1))
    assert rig.one().outcomes == [Outcome.HIT]
    assert get(rig.store, b"key", ROW_BYTES, "tenant") == (Outcome.HIT, b"0123456789abcdef")
    rig.calls.submit(Question("tenant", (b"key", b"other")))
    assert rig.one().outcomes == [Outcome.HIT, Outcome.MISS]
    rig.calls.submit(transfer(Direction.LOAD, b"key", 5))
    assert rig.one().outcomes == [Outcome.HIT]
    assert rig.memory == bytes(16) + b"0123456789abcdef" + bytes(48) + b"0123456789abcdef" + bytes(32)


def test_one_result_is_waited_for_as_long_as_was_said(rig: Rig) -> None:
    """The store does not answer: none comes. It answers: it comes, and is not collected again."""
    rig.store.gate.clear()
    rig.calls.submit(Question("", (b"key",)))
    assert rig.calls.wait(0.0) is None
    assert rig.calls.wait(0.001) is None
    rig.store.gate.set()
    result = rig.calls.wait(120.0)
    assert result is not None
    assert result.outcomes == [Outcome.MISS]
    assert list(rig.calls.collect_all()) == []


def test_collecting_does_not_wait(rig: Rig) -> None:
    """The scheduler's thread asks for results while the store does not answer: nothing yet."""
    rig.store.gate.clear()
    rig.calls.submit(Question("", (b"key",)))
    assert list(rig.calls.collect()) == []
    rig.store.gate.set()
    assert rig.one().outcomes == [Outcome.MISS]


def test_slow_stores_do_not_delay_loads(rig: Rig) -> None:
    """Every storing thread waits for the store; a load is done long before they end."""
    release = threading.Event()
    put(rig.store, b"key", bytes(ROW_BYTES), "tenant")
    original = rig.store.put
    rig.store.put = lambda *args, **kwargs: (release.wait(120), original(*args, **kwargs))[1]  # type: ignore[method-assign]
    for row in range(4):
        rig.calls.submit(transfer(Direction.STORE, b"%d" % row, row))
    rig.calls.submit(transfer(Direction.LOAD, b"key", 7, job=9))
    results: list[Result] = []
    wait_for(lambda: bool(results.extend(rig.calls.collect()) or results))
    assert [result.call.job for result in results if isinstance(result.call, Call)] == [9]
    release.set()
    assert len(list(rig.calls.collect_all())) == 4


def test_a_hung_store_costs_one_deadline(rig: Rig) -> None:
    """The first calls time out and open the breaker; what was queued behind them is refused."""
    rig.store.delay_s = 60.0
    for row in range(8):
        rig.calls.submit(transfer(Direction.LOAD, b"key", row))
    results = list(rig.calls.collect_all())
    assert rig.breaker.is_open()
    timed_out = [result for result in results if result.outcomes == [Outcome.TIMEOUT]]
    refused = [result for result in results if result.outcomes is None]
    assert len(timed_out) in (1, 2)
    assert len(timed_out) + len(refused) == 8


def test_a_recovered_store_is_used_again(rig: Rig) -> None:
    """Three errors open the breaker; after the pause a probe finds the store back and closes it."""
    rig.store.outcome = Outcome.ERROR
    for _ in range(3):
        rig.calls.submit(Question("", (b"key",)))
        assert rig.one().outcomes == [Outcome.ERROR]
    num_calls = rig.store.num_calls
    rig.calls.submit(Question("", (b"key",)))
    assert rig.one().outcomes is None
    assert rig.store.num_calls == num_calls
    rig.store.outcome = None
    rig.clock.advance(1.0)
    rig.calls.submit(Question("", (b"key",)))
    assert rig.one().outcomes == [Outcome.MISS]
    assert rig.breaker.state() is BreakerState.CLOSED


def test_a_defective_store_is_an_error(rig: Rig) -> None:
    """A store that raises, or answers too few keys, against its contract: ERROR for each key, and counted."""
    rig.store.raises = RuntimeError("defect")
    rig.calls.submit(Question("", (b"a", b"b")))
    result = rig.one()
    assert (result.outcomes, result.is_defect) == ([Outcome.ERROR] * 2, True)
    rig.store.raises = None
    rig.store.exists = lambda *args, **kwargs: [Outcome.HIT]  # type: ignore[method-assign]
    rig.calls.submit(Question("", (b"a", b"b")))
    result = rig.one()
    assert (result.outcomes, result.is_defect) == ([Outcome.ERROR] * 2, True)


def test_evictions_and_occupancy_come_with_the_next_result(rig: Rig) -> None:
    """What the store dropped by itself is told after the next call."""
    put(rig.store, b"key", bytes(ROW_BYTES))
    rig.store.evict(b"key")
    rig.calls.submit(Question("", (b"key",)))
    result = rig.one()
    assert result.evicted == [b"key"]
    assert result.stats is not None
    assert result.stats.num_entries == 0


def test_closing_refuses_what_is_queued(rig: Rig) -> None:
    """The engine ends: a running call is waited for, queued ones end unmade, the store is closed."""
    rig.store.gate.clear()
    for row in range(6):
        rig.calls.submit(transfer(Direction.STORE, b"%d" % row, row))
    wait_for(lambda: rig.store.num_calls == 2)
    closing = threading.Thread(target=rig.calls.close)
    closing.start()
    wait_for(lambda: rig.calls._closing)
    assert closing.is_alive()
    rig.store.gate.set()
    closing.join(timeout=120)
    results = list(rig.calls.collect_all())
    assert len(results) == 6
    assert sum(result.outcomes is None for result in results) == 4
    assert rig.store.num_calls == 2
    assert get(rig.store, b"0", ROW_BYTES, "tenant")[0] is Outcome.ERROR


def test_calls_after_the_end_are_refused(rig: Rig) -> None:
    """The threads are gone: who waits for all results still gets one for each call."""
    rig.calls.close()
    rig.calls.submit(Question("", (b"key",)))
    rig.calls.submit(transfer(Direction.STORE, b"key", 1))
    assert [result.outcomes for result in rig.calls.collect_all()] == [None, None]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], Verdict.OK),
        ([Outcome.MISS], Verdict.OK),
        ([Outcome.CORRUPT, Outcome.FULL], Verdict.OK),
        ([Outcome.HIT, Outcome.TIMEOUT], Verdict.OK),
        ([Outcome.ERROR, Outcome.MISS], Verdict.OK),
        ([Outcome.ERROR, Outcome.ERROR], Verdict.FAILED),
        ([Outcome.ERROR, Outcome.TIMEOUT], Verdict.TIMED_OUT),
    ],
)
def test_what_a_call_says_of_the_store(outcomes: list[Outcome], verdict: Verdict) -> None:
    """A store that answered for some key is up."""
    assert judge(outcomes) is verdict
