"""A router in front of emulated engines, driven and judged from outside: HTTP in, records and metrics out."""

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator import EmulatedEngine, EngineSettings, Fault, FaultKind
from anbar.apps.router.app import LOG_DELAY_S
from anbar.sim.engine.shape import EngineShape
from tests.integration.harness import Answer, Raw, call, eventually
from tests.integration.router import running_router
from tests.ports import free_port
from tests.waiting import PATIENCE_S

MODEL = "fake-model"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_SHAPE = ("block_size", "num_blocks", "max_model_len")
QUICK = {
    "health_interval_s": 0.1,
    "first_byte_timeout_s": PATIENCE_S,
    "connect_timeout_s": PATIENCE_S,
    "idle_timeout_s": PATIENCE_S,
    "drain_timeout_s": PATIENCE_S,
    "load_check_interval_s": 0,
}
"""Router settings of a test: engines are looked at often, nothing that works is given up, and what a test
asks an engine behind the router's back changes no choice."""


_numbers = itertools.count()


def text_prompt(name: str, words: int = 60) -> str:
    """A prompt of some hundred tokens that shares no block with a prompt of another name."""
    return f"{name}: " + "the water in the store and the grain " * (words // 8)


@dataclass
class Stack:
    """The router's port and the engines behind it, by their ids."""

    port: int
    engines: dict[str, EmulatedEngine]
    log: io.BytesIO
    """What the router writes to standard error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_seen(self) -> int:
        """Generation requests that reached any engine."""
        return sum(len(engine.records.seen) for engine in self.engines.values())

    @property
    def num_open(self) -> int:
        """Generation requests that an engine has and has not ended."""
        return sum(engine.records.num_open for engine in self.engines.values())

    async def get(self, path: str) -> Answer:
        return await call(self.port, "GET", path)

    async def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
        return await call(self.port, "POST", path, body, headers)

    async def complete(self, prompt: object, **fields: object) -> Answer:
        return await self.post(COMPLETIONS, completion(prompt, **fields))

    async def chat(self, messages: object, **fields: object) -> Answer:
        return await self.post(CHAT, chat(messages, **fields))

    async def at_once(self, prompts: Sequence[object], **fields: object) -> list[Answer]:
        """Answers to requests that were all with an engine before any was answered: who gets which does not
        depend on how fast they come and go."""
        for engine in self.engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = [asyncio.create_task(self.complete(prompt, **fields)) for prompt in prompts]
        await eventually(lambda: self.num_open == len(asked), what="all requests are with an engine")
        for engine in self.engines.values():
            engine.faults.clear()
        return await asyncio.gather(*asked)

    async def warm(self) -> tuple[str, str]:
        """A prompt that nobody used yet, and the one engine that now has it: it is known where it goes
        next."""
        prompt = text_prompt(f"warm {next(_numbers)}")
        first = await self.complete(prompt)
        await self.followed()
        return prompt, first.engine

    async def logged(self) -> list[dict[str, Any]]:
        """The lines of the router's log. It gathers them for a moment, by a timer of this very loop, which
        this one comes after."""
        await asyncio.sleep(2 * LOG_DELAY_S)
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    async def described(self) -> dict[str, dict[str, Any]]:
        """What the router knows of each engine."""
        page = (await self.get("/admin/engines")).json
        return {engine["id"]: engine for engine in page["engines"]}

    async def followed(self) -> None:
        """Wait until the router has taken in every KV event that the engines published."""

        async def is_current() -> bool:
            known = await self.described()
            return all(
                engine.is_idle
                and known[name]["kv_events"]["complete"]
                and known[name]["kv_events"]["last_sequence"] == engine.publisher.next_seq - 1
                for name, engine in self.engines.items()
                if engine.publisher is not None
            )

        await eventually(is_current, what="the router follows all KV events")

    async def compared(self) -> None:
        """Wait until the router's tokens were compared with those of every engine."""

        async def are_known() -> bool:
            return all(engine["tokens"] != "comparing" for engine in (await self.described()).values())

        await eventually(are_known, what="tokens are compared")

    async def forget(self, *names: str) -> None:
        """Drop the device caches of engines (all, when none is named). An engine says so with its next step,
        which a short prompt brings about."""
        for name in names or self.engines:
            engine = self.engines[name]
            assert engine.reset_prefix_cache()
            assert (await call(engine.port, "POST", COMPLETIONS, completion("a", max_tokens=1))).status == 200
        await self.followed()

    async def restart(self, name: str) -> None:
        """Another process takes an engine's place, the router has seen both its end and its beginning, and
        has found out by itself that what it knew of the cache is void."""
        engine, before = self.engines[name], (await self.described())[name]["kv_events"]["restarts"]
        await engine.die()
        await self.becomes(name, "unhealthy")
        await engine.revive()
        await self.becomes(name, "ready")

        async def is_noticed() -> bool:
            return (await self.described())[name]["kv_events"]["restarts"] > before

        await eventually(is_noticed, what=f"the router knows that {name} was restarted")

    async def state(self, engine: str) -> str:
        return (await self.described())[engine]["state"]

    async def becomes(self, engine: str, state: str) -> None:
        async def is_so() -> bool:
            return await self.state(engine) == state

        await eventually(is_so, what=f"{engine} becomes {state}")

    async def samples(self, name: str) -> dict[str, float]:
        """Labels (as text) and values of one of the router's metrics."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        found = (line for line in lines if line.startswith((name + "{", name + " ")))
        return {line[len(name) :].rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in found}

    async def num_failed_attempts(self) -> float:
        """Requests that an engine was given and did not answer, each counted once for each engine."""
        return sum((await self.samples("anbar_router_attempt_failures_total")).values())

    def restore(self) -> None:
        """Engines as they were made: quick, faultless, without a fixed answer or a record."""
        for engine in self.engines.values():
            engine.faults.clear()
            engine.records.clear()
            engine.answer = None
            engine.pace.cost = engine.settings.cost

    async def recover(self) -> None:
        """After a test: judged for leaks, and as at the start, but for what is cached."""
        await self.assert_idle()
        self.restore()
        for name in self.engines:
            await self.becomes(name, "ready")
        await self.trusted()
        await self.followed()

    async def trusted(self) -> None:
        """Until every breaker is closed again: an engine that failed is tried with one request first, which
        it gets where the others are busy."""

        async def breakers() -> set[str]:
            return {engine["breaker"] for engine in (await self.described()).values()}

        async def none_is_open() -> bool:
            return "open" not in await breakers()

        await eventually(none_is_open)
        while await breakers() != {"closed"}:
            await self.at_once([text_prompt(f"trial {next(_numbers)}") for _ in range(8)])
        self.restore()

    async def assert_idle(self) -> None:
        """All accounting is back at zero, in the router and in the engines, and nothing went wrong inside."""
        gauges = (
            "anbar_router_in_flight_requests",
            "anbar_router_queued_prefill_tokens",
            "anbar_router_decoding_requests",
        )

        async def is_idle() -> bool:
            values = [value for name in gauges for value in (await self.samples(name)).values()]
            assert len(values) == len(gauges) * len(self.engines)
            return not any(values)

        await eventually(is_idle, what="the router's accounting returns to zero")
        await eventually(lambda: not self.num_open, what="every request ended in its engine")
        for engine in self.engines.values():
            assert (engine.num_running, engine.num_waiting, engine.usage) == (0, 0, 0)
            engine.check_integrity()
        assert not any((await self.samples("anbar_router_defects_total")).values())


def completion(prompt: object, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **fields}


def chat(messages: object, **fields: object) -> dict[str, object]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": MODEL, "messages": messages, "max_tokens": 4, **fields}


@dataclass
class Setup:
    """What a test asks for: see `running_stack`."""

    tokenizer: Path
    directory: Path
    num_engines: int = 2
    router: Mapping[str, object] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the engines' settings; `events` are changes to those, sizes go to the shape."""
    cache: Mapping[str, object] = field(default_factory=dict)
    entries: Sequence[Mapping[str, object]] = ()
    """Further keys of each engine's entry in the file."""
    file: Mapping[str, object] = field(default_factory=dict)
    """Further tables of the file."""

    def engines(self) -> dict[str, EmulatedEngine]:
        """The engines `e0`, `e1`, ..., not started."""
        made: dict[str, EmulatedEngine] = {}
        for index in range(self.num_engines):
            made[f"e{index}"] = EmulatedEngine(self._settings(index))
        return made

    def _settings(self, index: int) -> EngineSettings:
        """An engine with this setup's changes: to its shape, to its events, and to the rest."""
        changes = dict(self.engine)
        sizes = {name: changes.pop(name) for name in _SHAPE if name in changes}
        wanted = changes.pop("events", {})
        events = PublisherConfig(f"ipc://{self.directory}/e{index}", f"ipc://{self.directory}/r{index}")
        base = EngineSettings(
            model_dir=self.tokenizer,
            served_names=(MODEL,),
            port=free_port(),  # not the kernel's choice: an engine that dies comes back there
            shape=replace(EngineShape(block_size=16, num_blocks=4096), **sizes),
            events=None if wanted is None else replace(events, **wanted),
            store_owner="anbar:test",
            prompt_tokens_details=True,
        )
        return replace(base, **changes)

    def write(self, engines: Mapping[str, EmulatedEngine], port: int) -> Path:
        """The router's file, as `anbar up` would write it."""
        entries = []
        for index, (name, engine) in enumerate(engines.items()):
            more = self.entries[index] if index < len(self.entries) else {}
            entries.append({"name": name, "url": engine.url, **more})
        settings = {"host": "127.0.0.1", "port": port, **QUICK, **self.router}
        path = self.directory / "anbar.yaml"
        cache = {"mode": "shared", "store": {"id": "test"}, **self.cache}
        content = {
            "state_dir": str(self.directory / "state"),
            "engines": entries,
            "cache": cache,
            "router": settings,
            **self.file,
        }
        path.write_text(yaml.safe_dump(content))
        return path


@asynccontextmanager
async def engines_of(setup: Setup) -> AsyncIterator[dict[str, EmulatedEngine]]:
    """The engines of a setup, running."""
    engines = setup.engines()
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            await stack.enter_async_context(engine)
        yield engines


@asynccontextmanager
async def router_of(
    setup: Setup, engines: dict[str, EmulatedEngine], ready: Sequence[str] | None = None
) -> AsyncIterator[Stack]:
    """A router in this process in front of engines, once those in `ready` (None: all) are; judged for leaks
    at the end."""
    port = free_port()
    async with running_router(setup.write(engines, port)) as log:
        stack = Stack(port, engines, log)
        for name in engines if ready is None else ready:
            await stack.becomes(name, "ready")
        yield stack
        await stack.assert_idle()


@asynccontextmanager
async def running_stack(setup: Setup) -> AsyncIterator[Stack]:
    """Engines and a router in front of them."""
    async with engines_of(setup) as engines, router_of(setup, engines) as stack:
        await stack.followed()
        await stack.compared()
        yield stack


async def read_events(raw: Raw) -> list[bytes]:
    """The data of all SSE events of an answer whose head was read, to the end of its body."""
    data = b""
    while part := await raw.chunk():
        data += part
    return [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]


async def read_some(raw: Raw, num_events: int) -> list[bytes]:
    """The data of the first events of an answer whose head was read, at least so many."""
    data = b""
    while data.count(b"\n\n") < num_events:
        data += await asyncio.wait_for(raw.chunk(), PATIENCE_S)
    return [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]


def assert_broken_off(events: Sequence[bytes]) -> None:
    """A stream that began well and ended with the router's error event, and without [DONE]; the event before
    that may have been cut."""
    assert b"[DONE]" not in events
    whole = [event for event in events if _is_json(event)]
    assert "choices" in json.loads(whole[0])
    error = json.loads(whole[-1])["error"]
    assert set(error) == {"message", "type", "param", "code"}


def _is_json(event: bytes) -> bool:
    try:
        json.loads(event)
    except ValueError:
        return False
    return True


def parsed(events: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event) for event in events if event != b"[DONE]"]


@contextlib.asynccontextmanager
async def open_stream(port: int, body: Mapping[str, object], path: str = COMPLETIONS) -> AsyncIterator[Raw]:
    """A streaming request of which the head and the first chunk were read."""
    async with Raw.open(port) as raw:
        raw.post(path, {**body, "stream": True})
        status, headers = await asyncio.wait_for(raw.head(), PATIENCE_S)
        assert status == 200, headers
        raw.headers = headers  # type: ignore[attr-defined]
        assert await raw.chunk()
        yield raw
