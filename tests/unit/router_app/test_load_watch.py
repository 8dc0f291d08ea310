"""The router's books after what engines say of their load."""

import pytest
from scripted import Connection, answer, engine_at, hang, scripted
from tests.ports import free_port
from tests.waiting import until

from anbar.adapters.vllm.load_page import ReportedLoad, parse_load
from anbar.apps.router import load_watch
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.load import Plan
from anbar.apps.router.load_watch import LoadWatch
from anbar.core.clock import ManualClock
from anbar.core.outcome import Event, LoadCorrected, SupervisorCaught
from anbar.route.load_check import IDLE_S

PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 800.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 2.0
"""


class Watched:
    """An engine under watch, by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.engine: Engine = engine_at(free_port(), "a")
        self.watch = LoadWatch(Fleet([self.engine]), self.clock, self.events.append, 0.0)

    def told(self, running: int, waiting: int = 0, mean_prompt: float = 0.0, cached: float = 0.0) -> None:
        load = self.engine.load
        told = ReportedLoad(running, waiting, mean_prompt, cached)
        self.watch.take(self.engine, told, (load.num_believed, len(load.queue)))

    def idle_for_long(self) -> None:
        """The engine had something, and then says for long enough that it has nothing."""
        self.told(1)
        self.told(0)
        self.clock.advance(IDLE_S)
        self.told(0)


def test_a_page_is_read() -> None:
    """Sums over ranks; families whose names begin alike are left alone; what is missing is zero."""
    assert parse_load(PAGE) == ReportedLoad(5, 4, 400.0, 0.25)
    assert parse_load(b"vllm:num_requests_running 1\n") is None
    assert parse_load(b"\nvllm:num_requests_running 1\nvllm:num_requests_waiting 0") == ReportedLoad(1, 0)
    assert parse_load(b"\nvllm:num_requests_running{} NaN\nvllm:num_requests_waiting{} x\n") is None


def test_strangers_count_as_load() -> None:
    """Three that run and two that wait, beside one of ours: policies see all of them, and the wait grows
    by what those two have to compute."""
    watched = Watched()
    with watched.engine.load.hold(Plan(100), watched.clock) as share:
        share.first_byte()
        for _ in range(2):
            watched.told(4, 2, mean_prompt=400.0, cached=0.25)
        view = watched.engine.view(0.0)
        assert (view.num_in_flight, view.num_decoding, view.queued_prefill_tokens) == (6, 4, 600)
        assert view.queued_prefill_pairs == 2 * (400**2 - 100**2)
        assert watched.engine.load.num_in_flight == 1
    watched.watch.take(watched.engine, None, (0, 0))
    view = watched.engine.view(0.0)
    assert (view.num_in_flight, view.num_decoding, view.queued_prefill_tokens) == (0, 0, 0)
    assert watched.engine.load.reported is None


def test_ghosts_are_no_load_and_their_end_leaves_no_trace() -> None:
    """Two requests, one without a first token, whose engine has nothing for long: no load any more, told
    once. One that was sent later is load as ever. Whatever the order of their ends, all counts are zero
    then."""
    watched = Watched()
    load, clock = watched.engine.load, watched.clock
    old = [load.hold(Plan(tokens), clock).__enter__() for tokens in (100, 50)]
    old[0].first_byte()
    watched.told(1)
    watched.told(0)
    new = load.hold(Plan(7), clock).__enter__()
    clock.advance(IDLE_S)
    watched.told(0)
    view = watched.engine.view(clock.now_s())
    assert (view.num_in_flight, view.num_decoding, view.queued_prefill_tokens) == (1, 0, 7)
    assert (load.num_in_flight, load.num_ghosts) == (3, 2)
    assert watched.events == [LoadCorrected(watched.engine.id, 2)]
    old[1].first_byte()
    for share in (old[0], new, old[1]):
        share.__exit__(None, None, None)
    assert (load.num_in_flight, load.num_ghosts, load.queued_prefill_tokens) == (0, 0, 0)


def test_marked_requests_that_end_in_time_are_no_ghosts() -> None:
    """What ends before the time is over is not dropped twice."""
    watched = Watched()
    load = watched.engine.load
    ends = load.hold(Plan(1), watched.clock).__enter__()
    stays = load.hold(Plan(1), watched.clock).__enter__()
    watched.told(1)
    watched.told(0)
    ends.__exit__(None, None, None)
    watched.clock.advance(IDLE_S)
    watched.told(0)
    assert (load.num_in_flight, load.num_ghosts) == (1, 1)
    stays.__exit__(None, None, None)
    assert (load.num_in_flight, load.num_ghosts) == (0, 0)


def test_one_ghost_more() -> None:
    """A ghost does not keep another request from becoming one, and is not counted again."""
    watched = Watched()
    load = watched.engine.load
    first = load.hold(Plan(1), watched.clock).__enter__()
    watched.idle_for_long()
    second = load.hold(Plan(1), watched.clock).__enter__()
    watched.idle_for_long()
    assert load.num_ghosts == 2
    second.__exit__(None, None, None)
    assert (load.num_in_flight, load.num_ghosts, load.num_believed) == (1, 1, 0)
    first.__exit__(None, None, None)
    assert (load.num_in_flight, load.num_ghosts) == (0, 0)
    assert [event.num_ghosts for event in watched.events if isinstance(event, LoadCorrected)] == [1, 1]


async def test_an_engine_that_cannot_be_asked_is_believed_to_have_what_it_was_sent() -> None:
    """Nothing listens there: what was known of others is dropped, ours stays, and no defect is told."""
    watched = Watched()
    load = watched.engine.load
    with load.hold(Plan(100), watched.clock):
        watched.told(3)
        watched.told(3)
        assert load.strangers.total == 2
        await watched.watch._look(watched.engine)
        assert (load.reported, load.strangers.total, load.num_believed) == (None, 0, 1)
    assert not watched.events


async def test_one_engine_delays_no_other_and_no_defect_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One engine never answers, and one tells what nobody can reckon with: the third is read again and again,
    the defect is told, and the second is read once its page is good. Then nobody is to be asked: what was
    known of others is dropped."""

    async def page(connection: Connection) -> None:
        await answer(pages[0])(connection)

    monkeypatch.setattr(load_watch, "LOOK_TIMEOUT_S", 3600.0)
    pages = [PAGE.replace(b"800.0", b"1e17").replace(b"2.0\n", b"1e-300\n")]
    async with scripted(hang) as a, scripted(page) as b, scripted(answer(PAGE)) as c:
        fleet = Fleet([engine_at(end.port, name) for name, end in zip("abc", (a, b, c), strict=True)])
        events: list[Event] = []
        watch = LoadWatch(fleet, ManualClock(), events.append, 0.01)
        watch.start()
        try:
            await until(lambda: len(c.heads) > 3 and len(b.heads) > 3)
            assert len(a.heads) == 1
            caught = {(e.where, e.error) for e in events if isinstance(e, SupervisorCaught)}
            assert caught == {("load", "OverflowError")}
            pages[0] = PAGE
            loads = [engine.load for engine in fleet]
            await until(lambda: [load.strangers.total for load in loads] == [0, 9, 9])
            await a.stop()
            watch.interval_s = 0.0
            await until(lambda: [load.strangers.total for load in loads] == [0, 0, 0])
        finally:
            await watch.stop()
            for engine in fleet:
                engine.pool.close()
