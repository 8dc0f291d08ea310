"""The emulator keeps the contract that real vLLM keeps, and its faults do what they say."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from anbar.adapters.vllm.kv_publish import Framing, PublisherConfig
from anbar.apps.emulator import (
    EmulatedEngine,
    Ending,
    EngineSettings,
    Fault,
    FaultKind,
    Runner,
    steady,
)
from anbar.sim.engine.shape import EngineShape
from tests.integration.harness import Raw, call, eventually
from tests.ports import free_port, free_ports
from tests.waiting import PATIENCE_S

MODEL = "emulated-model"
COMPLETIONS = "/v1/completions"
PROMPT = "the store and the water " * 8
START_S = 90.0
"""For a process to import everything: seconds, and many times as long on a busy machine."""


def _shape(**sizes: Any) -> EngineShape:
    return EngineShape(**{"block_size": 16, "num_blocks": 4096, **sizes})


@asynccontextmanager
async def emulated(tokenizer_dir: Path, **changes: Any) -> AsyncIterator[EmulatedEngine]:
    settings = EngineSettings(model_dir=tokenizer_dir, port=free_port(), prompt_tokens_details=True)
    async with EmulatedEngine(replace(settings, **changes)) as engine:
        yield engine


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, **fields}


async def test_restart_begins_at_sequence_zero(tokenizer_dir: Path, socket_dir: Path) -> None:
    """After a restart on the same addresses the cache is cold, the first batch has sequence 0, and who
    subscribed before hears on."""
    events = PublisherConfig(f"ipc://{socket_dir}/events", f"ipc://{socket_dir}/replay")
    async with emulated(tokenizer_dir, events=events) as engine:
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(events.endpoint)
            for _ in range(2):
                assert (await call(engine.port, "POST", COMPLETIONS, completion())).cached == 0
                assert (await call(engine.port, "POST", COMPLETIONS, completion())).cached > 0
                numbers = itertools.count()
                while True:  # what is published before the subscriber is connected (again) it does not hear
                    new = completion(prompt=f"{next(numbers)} {PROMPT}")
                    assert (await call(engine.port, "POST", COMPLETIONS, new)).status == 200
                    replayed = await _replay(context, events.replay_endpoint)
                    assert [seq for seq, _ in replayed] == list(range(len(replayed)))
                    # What it still has from the life before is not among these: each batch bears its time.
                    if await _heard(socket, {payload for _, payload in replayed}):
                        break
                await engine.restart()


async def _replay(context: zmq.asyncio.Context, address: str) -> list[tuple[int, bytes]]:
    """Number and bytes of all batches of this life."""
    found = []
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        await socket.send_multipart([b"", bytes(8)])
        while True:
            *_, seq, payload = await asyncio.wait_for(socket.recv_multipart(), PATIENCE_S)
            number = int.from_bytes(seq, "big", signed=True)
            if number == -1:
                return found
            found.append((number, payload))


async def _heard(socket: zmq.asyncio.Socket, wanted: set[bytes]) -> bool:
    """Whether one of these payloads comes soon. Waiting matters: libzmq renews subscriptions from within its
    calls."""
    while await socket.poll(200):
        if (await socket.recv_multipart())[-1] in wanted:
            return True
    return False


async def test_old_framing(tokenizer_dir: Path, socket_dir: Path) -> None:
    """With the older framing events are tagged arrays and replay answers carry no topic."""
    events = PublisherConfig(f"ipc://{socket_dir}/e", f"ipc://{socket_dir}/r", framing=Framing.ARRAYS)
    async with emulated(tokenizer_dir, events=events) as engine:
        await call(engine.port, "POST", COMPLETIONS, completion())
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(events.replay_endpoint)
            await socket.send_multipart([b"", bytes(8)])
            empty, seq, payload = await asyncio.wait_for(socket.recv_multipart(), PATIENCE_S)
            assert (empty, seq) == (b"", bytes(8))
            assert msgspec.msgpack.decode(payload)[1][0][0] == "BlockStored"


async def test_preemption_keeps_answers(tokenizer_dir: Path) -> None:
    """More running tokens than blocks: somebody is preempted, and every answer is what it is when alone."""
    async with emulated(tokenizer_dir, shape=_shape(num_blocks=13, max_model_len=128)) as engine:

        async def ask(name: int) -> str:
            body = completion(prompt=f"{name} the store and the water", max_tokens=80, ignore_eos=True)
            return (await call(engine.port, "POST", COMPLETIONS, body)).json["choices"][0]["text"]

        alone = [await ask(name) for name in range(4)]
        assert await asyncio.gather(*map(ask, range(4))) == alone
        assert engine.counters.num_preemptions > 0
        assert (engine.num_running, engine.num_waiting, engine.usage) == (0, 0, 0)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault(FaultKind.STATUS, status=429, retry_after_s=2), 429), (Fault(FaultKind.STATUS, status=503), 503)],
)
async def test_status_faults(tokenizer_dir: Path, fault: Fault, status: int) -> None:
    """A status fault answers once in vLLM's shape, and is then over."""
    async with (
        emulated(tokenizer_dir) as engine,
        AsyncOpenAI(base_url=engine.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        engine.arm(fault)
        with pytest.raises(APIStatusError) as caught:
            await client.completions.create(model=MODEL, prompt="a")
        assert caught.value.status_code == status
        assert caught.value.response.headers.get("retry-after") == ("2" if status == 429 else None)
        await client.completions.create(model=MODEL, prompt="a")


async def test_hanging_ends_when_cleared(tokenizer_dir: Path) -> None:
    """A request that hangs, before or amid its stream, goes on when faults are cleared, and loses nothing."""
    async with emulated(tokenizer_dir) as engine:
        body = completion(stream=True, max_tokens=8, ignore_eos=True)
        whole = (await call(engine.port, "POST", COMPLETIONS, body)).body
        for kind in (FaultKind.HANG, FaultKind.HANG_MID_STREAM):
            engine.records.clear()
            engine.arm(Fault(kind))
            asked = asyncio.create_task(call(engine.port, "POST", COMPLETIONS, body))
            await eventually(lambda: engine.records.seen)
            await asyncio.sleep(0.1)
            assert not asked.done()
            engine.faults.clear()
            assert _texts((await asked).body) == _texts(whole)


def _texts(body: bytes) -> list[str]:
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    assert events.pop() == b"[DONE]"
    return [json.loads(event)["choices"][0]["text"] for event in events]


async def test_half_an_event(tokenizer_dir: Path) -> None:
    """TRUNCATE closes within the third SSE event; RESET_MID_STREAM resets behind the second."""
    async with emulated(tokenizer_dir) as engine:
        body = completion(stream=True, max_tokens=8, ignore_eos=True)
        engine.arm(Fault(FaultKind.TRUNCATE))
        async with Raw.open(engine.port) as raw:
            raw.post(COMPLETIONS, body)
            data = await raw.read_all()
        assert data.count(b"\n\n\r\n") == 2
        assert data.rpartition(b"\r\n")[2].startswith(b"data: {")
        engine.arm(Fault(FaultKind.RESET_MID_STREAM))
        async with Raw.open(engine.port) as raw:
            raw.post(COMPLETIONS, body)
            with pytest.raises(ConnectionError):
                await raw.read_all()
        assert engine.records.count(Ending.FAULT) == 2
        assert (engine.num_running, engine.usage) == (0, 0)


@pytest.mark.parametrize("phase", ["front", "waiting", "prefill", "decode"])
async def test_disconnects_free_blocks_at_once(tokenizer_dir: Path, phase: str) -> None:
    """A client that leaves while its request is outside, waits, is prefilled or decoded holds nothing."""
    shape = _shape(max_model_len=512, num_blocks=60, max_num_seqs=1)
    async with emulated(tokenizer_dir, shape=shape) as engine:
        engine.pace.cost = steady(step_s=0.0 if phase == "front" else 0.1)
        if phase == "front":
            engine.pace.cost = steady(front_s=30.0)
        if phase == "prefill":
            engine.pace.cost = steady(step_s=30.0)
        async with Raw.open(engine.port) as first, Raw.open(engine.port) as second:
            body = completion(max_tokens=300, ignore_eos=True, stream=True)
            first.post(COMPLETIONS, body)
            await first.head()
            leaver = first
            if phase == "waiting":
                second.post(COMPLETIONS, body)
                leaver = second
                await eventually(lambda: engine.num_waiting == 1)
            elif phase == "decode":
                await first.chunk()
            elif phase == "prefill":
                await eventually(lambda: engine.num_running == 1)
            open_before = engine.records.num_open
            await leaver.abort()
            await eventually(lambda: engine.records.num_open == open_before - 1)
            assert engine.num_waiting == 0
            assert (engine.usage > 0) == (phase == "waiting")
            engine.check_integrity()
        await eventually(lambda: engine.usage == 0)
        assert engine.records.count(Ending.CANCELLED) == (2 if phase == "waiting" else 1)
        assert not any(engine.stats.finished.values()), "vLLM does not count them as finished"


async def test_sleep_and_wake(tokenizer_dir: Path) -> None:
    """Sleeping ends what runs with reason `abort`, drops the cache and lets new requests wait."""
    async with emulated(tokenizer_dir, dev_mode=True, cost=steady(step_s=0.1)) as engine:
        first = asyncio.create_task(
            call(engine.port, "POST", COMPLETIONS, completion(max_tokens=500, ignore_eos=True))
        )
        await eventually(lambda: engine.num_running == 1)
        assert (await call(engine.port, "POST", "/sleep?level=2")).json == {"status": "sleeping", "level": 2}
        assert (await first).json["choices"][0]["finish_reason"] == "abort"
        assert (await call(engine.port, "GET", "/is_sleeping")).json == {"is_sleeping": True}
        second = asyncio.create_task(call(engine.port, "POST", COMPLETIONS, completion()))
        await asyncio.sleep(0.1)
        assert not second.done()
        assert (await call(engine.port, "POST", "/wake_up")).json == {"status": "awake", "tags": None}
        assert (await second).cached == 0
        refused = await call(engine.port, "POST", "/sleep?level=7")
        assert (refused.status, refused.json["error"]["param"]) == (400, "query.level")


async def test_adapters_come_and_go(tokenizer_dir: Path) -> None:
    """An adapter that is loaded serves under its name with blocks of its own, until it is unloaded."""
    async with emulated(tokenizer_dir, runtime_loras=True) as engine:

        async def post(path: str, body: dict[str, Any]) -> Any:
            return await call(engine.port, "POST", path, body)

        adapter = {"lora_name": "tuned", "lora_path": "/adapters/tuned"}
        assert (await post(COMPLETIONS, completion(model="tuned"))).status == 404
        assert (await post("/v1/load_lora_adapter", adapter)).status == 200
        assert (await post("/v1/load_lora_adapter", adapter)).json["error"]["type"] == "InvalidUserInput"
        await post(COMPLETIONS, completion())
        first = await post(COMPLETIONS, completion(model="tuned"))
        assert (first.json["model"], first.cached) == ("tuned", 0)
        assert (await post(COMPLETIONS, completion(model="tuned"))).cached > 0
        names = [card["id"] for card in (await call(engine.port, "GET", "/v1/models")).json["data"]]
        assert names == [MODEL, "tuned"]
        assert (await post("/v1/unload_lora_adapter", adapter)).status == 200
        assert (await post("/v1/unload_lora_adapter", adapter)).status == 404
        assert (await post(COMPLETIONS, completion(model="tuned"))).status == 404


async def test_embeddings(tokenizer_dir: Path) -> None:
    """A pooling model embeds: unit vectors, equal for equal inputs, as numbers or base64; it cannot chat."""
    async with (
        emulated(tokenizer_dir, runner=Runner.POOLING) as engine,
        AsyncOpenAI(base_url=engine.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        given = ["grain", "water", "grain"]
        page = await client.embeddings.create(model=MODEL, input=given, encoding_format="float")
        vectors = [item.embedding for item in page.data]
        assert vectors[0] == vectors[2] != vectors[1]
        assert sum(x * x for x in vectors[0]) == pytest.approx(1)
        assert page.usage.prompt_tokens == page.usage.total_tokens > 0
        packed = await client.embeddings.create(model=MODEL, input=given)  # the client asks for base64
        assert packed.data[1].embedding == pytest.approx(vectors[1])
        with pytest.raises(BadRequestError, match="does not support Matryoshka"):
            await client.embeddings.create(model=MODEL, input="grain", dimensions=8)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        assert (await call(engine.port, "POST", "/v1/chat/completions", body)).status == 404
        await eventually(lambda: engine.is_idle)
        assert engine.usage == 0


async def test_admin_calls(tokenizer_dir: Path) -> None:
    """They act over HTTP, are described, and refuse by name what they do not know."""
    async with emulated(tokenizer_dir) as engine:

        async def post(path: str, body: object) -> Any:
            return await call(engine.port, "POST", path, body)

        described = (await call(engine.port, "GET", "/emulator")).json
        assert described["POST /emulator/fault"]["fields"]["kind"] == [kind.value for kind in FaultKind]
        assert (await post("/emulator/fault", {"kind": "status", "status": 500})).json == {"armed": "status"}
        assert (await post(COMPLETIONS, completion())).status == 500
        assert (await post("/emulator/answer", {"text": "grain and water"})).status == 200
        answer = (await post(COMPLETIONS, completion(max_tokens=100))).json["choices"][0]
        assert (answer["text"], answer["finish_reason"]) == ("grain and water", "stop")
        assert (await post("/emulator/health", {"healthy": False})).status == 200
        assert (await call(engine.port, "GET", "/health")).status == 503
        assert (await call(engine.port, "GET", "/emulator/requests")).json["generation"]["answered"] == 1
        for path, body, named in (
            ("/emulator/fault", {"kind": "explode"}, "explode"),
            ("/emulator/fault", {"kind": "drip", "drip_byte": 1}, "drip_byte"),
            ("/emulator/fault", {"kind": "drip", "drip_bytes": 0}, "drip_bytes"),
            ("/emulator/fault", {}, "kind"),
            ("/emulator/pace", {"step_s": -1}, "step_s"),
            ("/emulator/pace", {"step_s": "slow"}, "step_s"),
            ("/emulator/die", {"for": 1}, "for_s"),
        ):
            refused = await post(path, body)
            assert refused.status == 400, path
            assert named in refused.json["error"]["message"]
        assert (await post("/emulator/nothing", {})).status == 404


async def test_the_dead_answer_nobody(tokenizer_dir: Path) -> None:
    """When the call to restart is answered, a connection that is kept open from before gets no answer of the
    old life: it breaks."""
    async with emulated(tokenizer_dir) as engine, Raw.open(engine.port) as kept:
        for path, answered in (("/emulator/restart", True), ("/health", False)):
            kept.write(
                b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
                % (b"POST" if answered else b"GET", path.encode())
            )
            if answered:
                assert b"200" in await kept.reader.readline()
                await kept.reader.readuntil(b"}")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await kept.reader.readuntil(b"\n")
        await eventually(lambda: engine.is_alive and not engine.is_changing)


async def test_death_over_http(tokenizer_dir: Path) -> None:
    """`/emulator/die` cuts every connection and refuses new ones, for good or until the time given is over;
    then the engine is back on its port, cold."""
    async with emulated(tokenizer_dir) as engine:

        async def is_back() -> bool:
            try:
                return (await call(engine.port, "GET", "/health")).status == 200
            except (ConnectionError, asyncio.IncompleteReadError):
                return False

        for dead_s in (-1.0, 0.1):
            await call(engine.port, "POST", COMPLETIONS, completion())
            engine.arm(Fault(FaultKind.HANG))
            hanging = asyncio.create_task(call(engine.port, "POST", COMPLETIONS, completion()))
            await eventually(lambda: engine.records.num_open == 1)
            died = await call(engine.port, "POST", "/emulator/die", {"for_s": dead_s})
            assert died.json == {"dead_for_s": dead_s}
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await hanging
            assert engine.records.num_open == 0
            if dead_s < 0:
                with pytest.raises(ConnectionError):
                    await call(engine.port, "GET", "/health")
                await engine.revive()
            await eventually(is_back)
            assert (await call(engine.port, "POST", COMPLETIONS, completion())).cached == 0


async def test_speed(tokenizer_dir: Path) -> None:
    """At a hundred times the speed, sixty steps of a second each take about a hundredth of their minute."""
    async with emulated(tokenizer_dir, cost=steady(step_s=1.0), speed=100.0) as engine:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await call(engine.port, "POST", COMPLETIONS, completion(max_tokens=60, ignore_eos=True))
        took_s = loop.time() - began_s
        assert 0.57 < took_s < 30


async def test_as_a_process(tokenizer_dir: Path, socket_dir: Path) -> None:
    """`anbar emulate` starts many engines, says where they are, names what it ignores, and ends by SIGTERM;
    a port that is taken is one line and status 1."""
    port, _ = free_ports(2)
    command = [sys.executable, "-m", "anbar.cli.main", "emulate", str(tokenizer_dir), "--port", str(port)]
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": f"ipc://{socket_dir}/kv"})
    more = ["--count", "2", "--cost", "none", "--enforce-eager", "--kv-events-config", events]
    process = await asyncio.create_subprocess_exec(*command, *more, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        lines = [(await asyncio.wait_for(process.stderr.readline(), START_S)).decode() for _ in range(3)]
        assert "--enforce-eager" in lines[0]
        for index, line in enumerate(lines[1:]):
            assert line.endswith(f"on http://127.0.0.1:{port + index}\n"), lines
            body = {"prompt": PROMPT, "max_tokens": 4}
            assert (await call(port + index, "POST", COMPLETIONS, body)).json["model"] == str(tokenizer_dir)
            sources = (await call(port + index, "GET", "/kv_event_sources")).json
            assert sources["0"]["endpoint"] == f"ipc://{socket_dir}/kv" + (".1" if index else "")
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(second.communicate(), START_S)
        assert (second.returncode, said.count(b"\n")) == (1, 1), said
        assert str(port).encode() in said
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_survives_what_is_not_http(tokenizer_dir: Path) -> None:
    """An HTTP/2 preface and garbage get 400 and a closed connection; the engine goes on."""
    async with emulated(tokenizer_dir) as engine:
        for data in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"\x16\x03\x01\x00garbage\r\n\r\n"):
            async with Raw.open(engine.port) as raw:
                raw.write(data)
                assert (await raw.read_all()).startswith(b"HTTP/1.1 400")
        async with Raw.open(engine.port) as raw:
            raw.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
            for _ in range(3):
                assert (await raw.answer()).status == 200
