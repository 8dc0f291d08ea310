"""Going to sleep: what the answer to /sleep waits for."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from anbar.apps.emulator import EmulatedEngine, EngineSettings, steady
from anbar.apps.emulator.answers import AnswerRules
from anbar.apps.emulator.sequence import SequencePlan, SequenceRun
from anbar.apps.emulator.settings import Runner
from anbar.apps.emulator.state import SleepMode

from .client import call

NUM_TOKENS = 1000
"""As many steps of 0.1 s outlast every pause of a test's machine; without a cost they take no time."""
LONG = {"prompt": "a", "max_tokens": NUM_TOKENS, "ignore_eos": True}
SHORT = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[EmulatedEngine]:
    settings = EngineSettings(model_dir=model_dir, port=0, dev_mode=True, cost=steady(step_s=0.1))
    async with EmulatedEngine(settings) as engine:
        yield engine


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def _running(engine: EmulatedEngine) -> asyncio.Task[tuple[int, str]]:
    """A request that the engine works on, for longer than a test lasts unless its steps get cheaper."""
    asked = asyncio.create_task(call(engine, "/v1/completions", LONG))
    await _until(lambda: engine.counters.num_generated > 0)
    return asked


async def _is_sleeping(engine: EmulatedEngine) -> bool:
    answer: dict[str, bool] = json.loads((await call(engine, "/is_sleeping"))[1])
    return answer["is_sleeping"]


async def _going_to_sleep(engine: EmulatedEngine) -> asyncio.Task[tuple[int, str]]:
    """A call of /sleep that waits for what runs."""
    sleeping = asyncio.create_task(call(engine, "/sleep?mode=wait", {}))
    async with asyncio.timeout(60):
        while not await _is_sleeping(engine):
            assert not sleeping.done()
    assert not sleeping.done()
    return sleeping


async def test_wait_is_answered_when_all_is_done(engine: EmulatedEngine) -> None:
    """By `wait` the engine finishes what runs, drops its cache and only then says that it sleeps; what comes
    meanwhile waits for the waking."""
    asked = await _running(engine)
    sleeping = await _going_to_sleep(engine)
    late = asyncio.create_task(call(engine, "/v1/completions", SHORT))
    await _until(lambda: engine.records.num_open == 2)
    assert not sleeping.done()
    engine.pace.cost = steady()
    assert await sleeping == (200, '{"status":"sleeping","level":1}')
    assert engine.counters.num_generated == NUM_TOKENS
    assert engine.num_running == 0
    assert json.loads((await asked)[1])["choices"][0]["finish_reason"] == "length"
    assert await _is_sleeping(engine)
    assert not late.done()
    assert (await call(engine, "/wake_up", {}))[0] == 200
    assert (await late)[0] == 200
    assert engine.counters.num_prefix_hits == 0


@pytest.mark.parametrize(("mode", "finish"), [("abort", "abort"), ("keep", "length")])
async def test_other_modes_are_answered_at_once(engine: EmulatedEngine, mode: str, finish: str) -> None:
    """What runs is given up, or goes on after the waking."""
    asked = await _running(engine)
    assert (await call(engine, f"/sleep?mode={mode}", {}))[0] == 200
    assert engine.counters.num_generated < NUM_TOKENS
    engine.pace.cost = steady()
    assert (await call(engine, "/wake_up", {}))[0] == 200
    assert json.loads((await asked)[1])["choices"][0]["finish_reason"] == finish


async def test_what_is_woken_before_it_slept_keeps_its_cache(engine: EmulatedEngine) -> None:
    """Woken while /sleep still waits: the wait ends with what runs, and the engine is as it was."""
    asked = await _running(engine)
    sleeping = await _going_to_sleep(engine)
    assert (await call(engine, "/wake_up", {}))[0] == 200
    engine.pace.cost = steady()
    assert (await sleeping)[0] == 200
    await asked
    assert not await _is_sleeping(engine)
    again = {**SHORT, "prompt": list(range(5, 60))}
    for _ in range(2):
        assert (await call(engine, "/v1/completions", again))[0] == 200
    sleeping_again = await call(engine, "/sleep?mode=wait", {})
    assert sleeping_again[0] == 200
    assert (await call(engine, "/wake_up", {}))[0] == 200
    assert engine.counters.num_prefix_hits == 48


@pytest.mark.parametrize(
    ("level", "tags", "statuses"),
    [
        (0, ["scheduling"], ["awake"]),
        (0, ["weights"], ["awake"]),
        (1, ["scheduling"], ["sleeping"]),
        (1, ["weights", "kv_cache"], ["sleeping", "awake"]),
        (2, ["weights", "nothing", "kv_cache"], ["sleeping", "sleeping", "awake"]),
    ],
)
async def test_waking_by_tags(
    engine: EmulatedEngine, level: int, tags: list[str], statuses: list[str]
) -> None:
    """Level 0 keeps the memory, so that any tag wakes it; the others wake when all parts are named."""
    assert (await call(engine, f"/sleep?level={level}", {}))[0] == 200
    answers = [json.loads((await call(engine, f"/wake_up?tags={tag}", {}))[1])["status"] for tag in tags]
    assert answers == statuses
    assert await _is_sleeping(engine) == (statuses[-1] == "sleeping")
    assert json.loads((await call(engine, "/wake_up", {}))[1])["status"] == "awake"


async def test_wait_ends_when_the_last_client_leaves(engine: EmulatedEngine) -> None:
    """Nobody is left to wait for, and nothing runs: asleep at once."""
    asked = await _running(engine)
    sleeping = await _going_to_sleep(engine)
    asked.cancel()
    assert (await sleeping)[0] == 200
    assert engine.counters.num_generated < NUM_TOKENS
    assert (await call(engine, "/sleep?mode=wait", {}))[0] == 200


class Sleepy(EmulatedEngine):
    """Goes to sleep as soon as it has a first few sequences, and gives up what it has."""

    num_submitted = 0

    def submit(self, run: SequenceRun) -> None:
        super().submit(run)
        self.num_submitted += 1
        if self.num_submitted == 1:
            asyncio.get_running_loop().call_soon(self.sleep, 1, SleepMode.ABORT, lambda: None)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_half_begun_is_given_up(model_dir: Path, stream: bool) -> None:
    """So many choices that they are made over several turns, and the engine sleeps after the first: all end,
    with no waking, and the engine hears of no more."""
    num_choices = 100
    async with Sleepy(EngineSettings(model_dir=model_dir, port=0)) as engine:
        body = {"prompt": "a", "n": num_choices, "max_tokens": 40, "ignore_eos": True, "stream": stream}
        status, text = await call(engine, "/v1/completions", body)
        assert status == 200
        assert text.count('"finish_reason":"abort"') == num_choices
        assert engine.num_submitted < num_choices
        assert engine.num_defects == engine.num_running == engine.num_waiting == 0


async def test_embeddings_that_are_half_begun_are_given_up(model_dir: Path) -> None:
    """Refused once, and what has not begun never does."""
    async with Sleepy(EngineSettings(model_dir=model_dir, port=0, runner=Runner.POOLING)) as engine:
        status, text = await call(engine, "/v1/embeddings", {"input": [[5, 6]] * 100})
        assert (status, "Request was aborted" in text) == (500, True)
        assert engine.num_submitted < 100
        assert engine.num_defects == engine.num_running == engine.num_waiting == 0


def _num_runs() -> int:
    return sum(isinstance(thing, SequenceRun) for thing in gc.get_objects())


def _run(engine: EmulatedEngine) -> SequenceRun:
    """A sequence with listeners that know it."""
    rules = AnswerRules(max_tokens=NUM_TOKENS, ignore_eos=True)
    plan = SequencePlan("a", (5, 6, 7), engine.write_answer((5, 6, 7), None, 0, rules))
    run = engine.sequence(plan, lambda *_: repr(run), lambda: repr(run))
    return run


@pytest.mark.parametrize("how", ["leaves", "leaves_early", "sleeps"])
async def test_what_did_not_end_by_itself_is_freed_at_once(engine: EmulatedEngine, how: str) -> None:
    """Its client leaves, before or after the engine got it, or the engine gives it up: it knows its listeners
    no more, which know it, so that it is not left to the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        before = _num_runs()
        if how == "leaves_early":
            engine.pace.cost = steady(front_s=1000.0)
        run = _run(engine)
        engine.submit(run)
        assert len(engine.life.coming) == (how == "leaves_early")
        assert _num_runs() == before + 1
        if how == "sleeps":
            engine.sleep(1, SleepMode.ABORT, lambda: None)
        else:
            engine.withdraw(run)
        del run
        assert _num_runs() == before
    finally:
        gc.enable()
