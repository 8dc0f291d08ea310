"""What fails inside the emulator ends one request alone, and a life begins and ends one at a time."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from anbar.adapters.http.message import Request
from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.records import Ending, Records
from anbar.apps.emulator.sequence import SequenceRun
from tests.ports import free_port

from .client import call

PROMPT = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
POISON = 11
"""A request with so many tokens is one that the engine below fails at."""


class Frail(EmulatedEngine):
    """Fails when it counts a token of certain requests: at their first or their last one."""

    fails_at = 0

    def tokens(self, run: SequenceRun, at_s: float) -> None:
        if run.request.num_answer_tokens == POISON and run.request.num_generated == self.fails_at:
            raise ZeroDivisionError
        super().tokens(run, at_s)


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[Frail]:
    async with Frail(EngineSettings(model_dir=model_dir, port=0)) as engine:
        yield engine


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fails_at", [1, POISON])
async def test_one_that_fails_harms_no_other(engine: Frail, stream: bool, fails_at: int) -> None:
    """Ten requests in the same steps, of which one fails: that client is cut off, the defect is counted, the
    others are answered, and nothing of it stays."""
    engine.fails_at = fails_at
    bad = {**PROMPT, "max_tokens": POISON, "stream": stream}
    asked = [
        call(engine, "/v1/completions", bad),
        *(call(engine, "/v1/completions", PROMPT) for _ in "123456789"),
    ]
    cut, *answered = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(cut, BaseException) or "[DONE]" not in cut[1]
    for answer in answered:
        assert not isinstance(answer, BaseException)
        assert json.loads(answer[1])["usage"]["completion_tokens"] == 3
    assert engine.num_defects == 1
    await _until(lambda: engine.is_idle)
    assert engine.num_running == engine.num_waiting == engine.records.num_open == 0
    engine.check_integrity()


async def test_restarts_in_quick_succession(model_dir: Path, tmp_path: Path) -> None:
    """Several orders to restart before the first has been obeyed: lives end and begin one after the
    other, and the last one's events have the only publisher."""
    events = PublisherConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    settings = EngineSettings(model_dir=model_dir, port=free_port(), events=events)
    async with EmulatedEngine(settings) as engine:
        orders = (call(engine, "/emulator/restart", {}) for _ in range(4))
        await asyncio.gather(*orders, return_exceptions=True)
        await _until(lambda: not engine.is_changing)
        assert (await call(engine, "/v1/completions", PROMPT))[0] == 200
    assert not os.listdir(tmp_path)


async def test_the_last_order_counts(model_dir: Path) -> None:
    """Who is killed while it waits to come back stays dead."""
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=free_port())) as engine:
        assert (await call(engine, "/emulator/die", {"for_s": 0.05}))[0] == 200
        await engine.die()
        await _until(lambda: not engine.is_changing)
        assert not engine.is_alive


async def test_two_restarts_at_once(model_dir: Path, tmp_path: Path) -> None:
    """Both have ended its life before the first begins one: there is one listener and one publisher, and both
    are gone with the engine."""
    events = PublisherConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    port = free_port()
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=port, events=events)) as engine:
        await asyncio.gather(engine.restart(), engine.restart())
        await engine.start()
        assert (await call(engine, "/v1/completions", PROMPT))[0] == 200
    assert not os.listdir(tmp_path)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_start_is_cancelled(model_dir: Path, tmp_path: Path) -> None:
    """While it waits for its port it publishes already; nothing of that is left, and it can start again."""
    events = PublisherConfig(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    engine = EmulatedEngine(EngineSettings(model_dir=model_dir, port=free_port(), events=events))
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", engine.port))
        taken.listen()
        starting = asyncio.create_task(engine.start())
        async with asyncio.timeout(60):
            while not os.listdir(tmp_path):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert not os.listdir(tmp_path)
    assert not engine.is_alive
    async with engine:
        assert (await call(engine, "/v1/completions", PROMPT))[0] == 200


async def test_one_that_cannot_come_back_is_reported(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its port is taken while it is dead: the log says so, and nothing is left behind."""
    port = free_port()
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=port)) as engine:
        assert (await call(engine, "/emulator/die", {"for_s": 0.05}))[0] == 200
        await _until(lambda: not engine.is_alive)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            await _until(lambda: not engine.is_changing)
        assert f"127.0.0.1:{port} cannot be listened on" in caplog.text


def test_endings_are_counted_beyond_what_is_kept() -> None:
    """The last few hundred requests are kept, but how they ended is known of all."""
    records = Records()
    most = records.seen.maxlen
    assert most is not None
    for number in range(most + 3):
        records.open(Request(b"POST", b"/", (), b"")).end(Ending.REFUSED if number else Ending.ANSWERED)
    running = records.open(Request(b"POST", b"/", (), b""))
    counts = [records.count(ending) for ending in (Ending.ANSWERED, Ending.REFUSED, Ending.RUNNING)]
    assert counts == [1, most + 2, 1]
    assert list(records.seen)[-1] is running
    assert len(records.seen) == most


async def test_paths_that_do_not_exist_are_counted_together(engine: Frail) -> None:
    """Clients may make up any number of them."""
    for path in ("/a", "/b", "/v1/c", "/health", "/v1/completions"):
        await call(engine, path)
    page = json.loads((await call(engine, "/emulator/requests"))[1])
    assert page["others"] == {"(unknown)": 3, "/health": 1, "/v1/completions": 1}
