"""The router as a process of its own: signals, memory, exit codes."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from anbar.apps.emulator import EmulatedEngine, Fault, FaultKind, Script
from tests.integration.harness import Raw, call, eventually
from tests.integration.stack import (
    COMPLETIONS,
    Setup,
    completion,
    engines_of,
    open_stream,
    read_events,
)
from tests.ports import free_port
from tests.waiting import PATIENCE_S

PART = bytes(range(256)) * 256
NUM_PARTS = 960
"""60 MiB in parts of 64 KiB."""
START_S = 90.0
"""For a process to import everything: seconds, and many times as long on a busy machine."""


@dataclass
class Running:
    """A router process that is ready."""

    process: Process
    port: int
    engines: dict[str, EmulatedEngine]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Exit code and everything it wrote."""
        out, err = await asyncio.wait_for(self.process.communicate(), PATIENCE_S)
        code = self.process.returncode
        assert code is not None
        return code, (out + err).decode()


async def start(path: Path) -> Process:
    command = (sys.executable, "-m", "anbar.cli.main", "router", "--config", str(path))
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=dict(os.environ))


@asynccontextmanager
async def running(setup: Setup) -> AsyncIterator[Running]:
    async with engines_of(setup) as engines:
        port = free_port()
        process = await start(setup.write(engines, port))

        async def is_ready() -> bool:
            assert process.returncode is None, (await process.communicate())[1].decode()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                page = await call(port, "GET", "/ready")
                return page.status == 200 and set(page.json["engines"]) == set(engines)
            return False

        try:
            await eventually(is_ready, START_S, "the router process becomes ready")
            yield Running(process, port, engines)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


async def test_sigterm_lets_a_stream_finish(tokenizer_dir: Path, socket_dir: Path) -> None:
    """After SIGTERM a running stream comes to its end, new work is not accepted, and the exit code is 0."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1)
    async with running(setup) as router:
        router.engines["e0"].arm(Fault(FaultKind.HANG_MID_STREAM))
        async with open_stream(router.port, completion("secret-prompt", max_tokens=60)) as raw:
            router.signal(signal.SIGTERM)

            async def is_draining() -> bool:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    return (await call(router.port, "GET", "/ready")).status == 503
                return True

            await eventually(is_draining)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                refused = await call(router.port, "POST", COMPLETIONS, completion("new"))
                assert refused.status == 503
            router.engines["e0"].faults.clear()
            events = await asyncio.wait_for(read_events(raw), PATIENCE_S)
        assert events[-1] == b"[DONE]"
        code, output = await router.ended()
        assert code == 0, output
        assert "secret-prompt" not in output
        assert "Traceback" not in output
        assert len(router.engines["e0"].records.seen) == 1


async def test_sighup_takes_in_the_file(tokenizer_dir: Path, socket_dir: Path) -> None:
    """An engine is taken out of the file and SIGHUP sent: it gets nothing any more. A file that is no YAML is
    refused, and requests are served as before."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=2)
    async with running(setup) as router:
        path = setup.directory / "anbar.yaml"

        async def page() -> dict[str, Any]:
            return (await call(router.port, "GET", "/admin/config")).json

        async def is_in_force(generation: int) -> bool:
            return (await page())["generation"] == generation

        config = yaml.safe_load(path.read_text())
        config["engines"] = config["engines"][1:]
        path.write_text(yaml.safe_dump(config))
        router.signal(signal.SIGHUP)
        await eventually(lambda: is_in_force(2))
        for number in range(4):
            answer = await call(router.port, "POST", COMPLETIONS, completion(f"{number}"))
            assert answer.engine == "e1"
        path.write_text("engines: [")
        router.signal(signal.SIGHUP)

        async def is_refused() -> bool:
            return bool((await page())["refusal"])

        await eventually(is_refused)
        assert str(path) in (await page())["refusal"]
        assert (await call(router.port, "POST", COMPLETIONS, completion("after"))).status == 200
        router.signal(signal.SIGTERM)
        code, output = await router.ended()
        assert code == 0, output
        assert "Traceback" not in output


async def test_slow_readers_cost_no_memory(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Four clients that stop reading streams of 60 MiB hold their engines back; then all arrives unharmed."""
    setup = Setup(tokenizer_dir, socket_dir, router={"idle_timeout_s": 600.0})
    async with running(setup) as router:
        for engine in router.engines.values():
            for _ in range(4):
                headers = ((b"content-type", b"text/event-stream"),)
                engine.script(Script((PART,) * NUM_PARTS, headers=headers, chunked=True))
        process = psutil.Process(router.process.pid)
        await call(router.port, "GET", "/health")
        before = process.memory_info().rss
        async with contextlib.AsyncExitStack() as stack:
            raws = []
            for number in range(4):
                raw = await stack.enter_async_context(Raw.open(router.port))
                raw.post(COMPLETIONS, completion(str(number), stream=True))
                assert (await raw.head())[0] == 200
                raws.append(raw)
            await asyncio.sleep(1.0)
            grown = process.memory_info().rss - before
            assert grown < 40 * 1024**2, f"{grown / 1024**2:.0f} MiB for streams that nobody reads"
            assert sum(engine.records.num_open for engine in router.engines.values()) == 4
            received, expected = hashlib.sha256(), hashlib.sha256()
            while part := await raws[0].chunk():
                received.update(part)
            for _ in range(NUM_PARTS):
                expected.update(PART)
            assert received.digest() == expected.digest()
            for raw in raws[1:]:
                await raw.abort()
        await eventually(lambda: not any(e.records.num_open for e in router.engines.values()))
        assert process.memory_info().rss - before < 60 * 1024**2


async def test_wrong_files_are_refused(socket_dir: Path) -> None:
    """An unknown key and a missing file end the start with a sentence, not with a stack trace."""
    path = socket_dir / "wrong.yaml"
    path.write_text(yaml.safe_dump({"engines": [{"name": "a", "url": "http://127.0.0.1:1"}], "ruoter": {}}))
    for wrong, word in ((path, "ruoter"), (socket_dir / "missing.yaml", "missing.yaml")):
        process = await start(wrong)
        out, err = await asyncio.wait_for(process.communicate(), START_S)
        assert process.returncode not in (0, None)
        assert word in (out + err).decode()
        assert b"Traceback" not in out + err


async def test_port_in_use(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A port that is taken is named in the message."""
    async with engines_of(Setup(tokenizer_dir, socket_dir, num_engines=1)) as engines:
        setup = Setup(tokenizer_dir, socket_dir, num_engines=1)
        process = await start(setup.write(engines, engines["e0"].port))
        out, err = await asyncio.wait_for(process.communicate(), START_S)
        assert process.returncode not in (0, None)
        assert str(engines["e0"].port) in (out + err).decode()
        assert b"Traceback" not in out + err
