"""The fake engine keeps the contract that real vLLM keeps, and its faults do what they say."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIStatusError, AsyncOpenAI

from anbar.testing import engine_contract
from anbar.testing.engine_contract import Target
from anbar.testing.fake_engine import (
    FakeEngine,
    FakeEngineConfig,
    Fault,
    FaultKind,
    Framing,
    Identity,
    Pace,
    PagedCache,
    SharedStore,
    Tiers,
    block_hashes,
)
from anbar.testing.fake_engine.blocks import NoFreeBlocks
from anbar.testing.fake_engine.wire import AllBlocksCleared, BlockRemoved, BlockStored
from tests.integration.harness import Raw, call


@pytest.mark.parametrize("check", engine_contract.ALL, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Target], None], tokenizer_dir: Path, socket_dir: Path) -> None:
    """Every assertion of the engine contract holds for the fake."""
    events, replay = f"ipc://{socket_dir}/events", f"ipc://{socket_dir}/replay"
    config = FakeEngineConfig(
        tokenizer=tokenizer_dir, events=events, replay=replay, max_model_len=512, pace=Pace(token_s=0.0005)
    )
    async with FakeEngine(config) as engine:
        target = Target(engine.url, "fake-model", events, replay, timeout_s=5)
        await asyncio.to_thread(check, target)
        assert engine.records.num_open == 0
        engine.cache.check_integrity()


class Model:
    """The cache as one would write it without caring for speed: a list of blocks, oldest use first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.free: list[bytes | None] = [None] * num_blocks

    def serve(self, tokens: list[int]) -> int:
        """Cached tokens of a prompt that runs alone and is then released."""
        hashes = block_hashes(tokens, self.size, Identity())
        hits: list[bytes] = []
        for h in hashes[: (len(tokens) - 1) // self.size]:
            if h not in self.free:
                break
            self.free.remove(h)
            hits.append(h)
        needed = -(-len(tokens) // self.size) - len(hits)
        del self.free[:needed]
        held: list[bytes | None] = [*hashes, *[None] * (needed + len(hits) - len(hashes))]
        for block in reversed(held):
            self.free.insert(0, block) if block is None else self.free.append(block)
        return len(hits) * self.size


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=25))
def test_cache_equals_naive_model(prompts: list[list[int]]) -> None:
    """Any series of prompts finds the cached tokens that the naive LRU model predicts."""
    cache, model = PagedCache(num_blocks=7, block_size=2), Model(num_blocks=7, block_size=2)
    for prompt in prompts:
        allocation = cache.admit(prompt, Identity())
        cached = allocation.num_cached_tokens
        cache.release(allocation)
        cache.check_integrity()
        assert cached == model.serve(prompt)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=9)), max_size=40))
def test_events_mirror_the_cache(steps: list[tuple[bool, list[int]]]) -> None:
    """A reader that counts stores and removals of each hash knows exactly which blocks are there."""
    cache = PagedCache(num_blocks=9, block_size=2)
    running: list = []
    counted: dict[bytes, int] = {}
    for ends_one, prompt in steps:
        if ends_one and running:
            cache.release(running.pop(0))
        with contextlib.suppress(NoFreeBlocks):
            running.append(cache.admit(prompt, Identity()))
        for event in cache.take_events():
            match event:
                case BlockStored():
                    for h in event.block_hashes:
                        counted[h] = counted.get(h, 0) + 1
                case BlockRemoved():
                    for h in event.block_hashes:
                        counted[h] -= 1
                case AllBlocksCleared():
                    counted.clear()
        cache.check_integrity()
        assert all(cache.holds(h) == (count > 0) for h, count in counted.items())


def test_generated_blocks_and_eviction_events() -> None:
    """Blocks that fill while decoding are cached and announced with their parent; eviction announces them."""
    cache = PagedCache(num_blocks=3, block_size=2)
    allocation = cache.admit([1, 2, 3], Identity(salt="s"))
    cache.append(allocation, 4)
    first, second = cache.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.extra_keys == [("s",)]
    assert (second.token_ids, second.parent_block_hash) == ([3, 4], first.block_hashes[0])
    cache.release(allocation)
    cache.admit([9] * 6, Identity())
    removed = [e.block_hashes[0] for e in cache.take_events() if isinstance(e, BlockRemoved)]
    assert removed == [second.block_hashes[0], first.block_hashes[0]]


def test_tiers_continue_the_device_prefix() -> None:
    """What left the device comes back from host RAM or the shared store, which announce hashes alone."""
    shared = SharedStore("anbar:s")
    cache = PagedCache(num_blocks=4, block_size=2, tiers=Tiers(host_chunks=2, shared=shared))
    cache.release(cache.admit([1, 2, 3, 4, 5, 6, 7], Identity()))
    stored = [e for e in cache.take_events() if isinstance(e, BlockStored)]
    media = [(e.medium, e.ownership, list(e.token_ids), e.block_size) for e in stored]
    assert media[0] == ("GPU", None, [1, 2, 3, 4, 5, 6], 2)
    assert ("CPU", None, [], 0) in media
    assert ("STORAGE", "anbar:s", [], 0) in media
    cache.release(cache.admit([9] * 8, Identity()))
    again = cache.admit([1, 2, 3, 4, 5, 6, 7], Identity())
    assert (again.num_device, again.num_host + again.num_shared) == (0, 6)
    other = PagedCache(num_blocks=4, block_size=2, tiers=Tiers(shared=shared))
    assert other.admit([1, 2, 3, 4, 5, 6, 7], Identity()).num_shared == 6


def test_tiers_serve_whole_chunks() -> None:
    """Chunks are served whole, to a prompt's last token, but never for less than one chunk."""
    shared = SharedStore("anbar:s")
    tiers = Tiers(shared=shared, chunk_blocks=2)
    first = PagedCache(num_blocks=8, block_size=2, tiers=tiers)
    first.release(first.admit(list(range(12)), Identity()))
    assert len(shared.blocks) == 3
    other = PagedCache(num_blocks=8, block_size=2, tiers=tiers)
    assert other.admit(list(range(11)), Identity()).num_shared == 8
    whole = PagedCache(num_blocks=8, block_size=2, tiers=tiers)
    assert whole.admit(list(range(12)), Identity()).num_shared == 12
    half = PagedCache(num_blocks=8, block_size=2, tiers=tiers)
    half.release(half.admit([0, 1, 2, 3, 4, 5, 99], Identity()))
    again = half.admit(list(range(8)), Identity())
    assert (again.num_device, again.num_shared) == (6, 0), "two tokens are less than a chunk"


async def test_restart_begins_at_sequence_zero(tokenizer_dir: Path, socket_dir: Path) -> None:
    """After a restart on the same addresses the cache is cold and the first batch has sequence 0."""
    events = f"ipc://{socket_dir}/events"
    async with FakeEngine(FakeEngineConfig(tokenizer=tokenizer_dir, events=events)) as engine:
        body = {"model": "fake-model", "prompt": "the store and the water " * 8, "max_tokens": 1}
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(events)
            for _ in range(2):
                # The subscriber must be reading: libzmq renews subscriptions from within its calls.
                frames = socket.recv_multipart()
                await asyncio.sleep(0.4)  # it reconnects after 100 to 200 ms
                assert (await call(engine.port, "POST", "/v1/completions", body)).cached == 0
                assert (await asyncio.wait_for(frames, 5))[1] == bytes(8)
                await engine.restart()


async def test_old_framing(tokenizer_dir: Path, socket_dir: Path) -> None:
    """With the older framing events are tagged arrays and replay answers carry no topic."""
    config = FakeEngineConfig(
        tokenizer=tokenizer_dir,
        events=f"ipc://{socket_dir}/e",
        replay=f"ipc://{socket_dir}/r",
        framing=Framing.ARRAYS,
    )
    async with FakeEngine(config) as engine, AsyncOpenAI(base_url=engine.url + "/v1", api_key="k") as client:
        await client.completions.create(model="fake-model", prompt="the store " * 30, max_tokens=1)
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(config.replay)
            await socket.send_multipart([b"", bytes(8)])
            empty, seq, payload = await asyncio.wait_for(socket.recv_multipart(), 5)
            assert (empty, seq) == (b"", bytes(8))
            assert msgspec.msgpack.decode(payload)[1][0][0] == "BlockStored"


async def test_preemption_keeps_answers(tokenizer_dir: Path) -> None:
    """More running tokens than blocks: somebody is preempted, and every answer is what it is when alone."""
    config = FakeEngineConfig(
        tokenizer=tokenizer_dir, num_blocks=12, block_size=16, max_model_len=128, pace=Pace(token_s=0.0002)
    )
    async with FakeEngine(config) as engine, AsyncOpenAI(base_url=engine.url + "/v1", api_key="k") as client:

        async def ask(name: int) -> str:
            body = {"ignore_eos": True}
            prompt = f"{name} the store and the water"
            answer = await client.completions.create(
                model="fake-model", prompt=prompt, max_tokens=80, extra_body=body
            )
            return answer.choices[0].text

        alone = [await ask(name) for name in range(4)]
        assert await asyncio.gather(*map(ask, range(4))) == alone
        assert engine.counters.preemptions > 0
        assert engine.counters.running == engine.counters.waiting == engine.cache.num_used == 0


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault(FaultKind.STATUS, status=429, retry_after_s=2), 429), (Fault(FaultKind.STATUS, status=503), 503)],
)
async def test_status_faults(tokenizer_dir: Path, fault: Fault, status: int) -> None:
    """A status fault answers once in vLLM's shape, and is then over."""
    async with (
        FakeEngine(FakeEngineConfig(tokenizer=tokenizer_dir)) as engine,
        AsyncOpenAI(base_url=engine.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        engine.arm(fault)
        with pytest.raises(APIStatusError) as caught:
            await client.completions.create(model="fake-model", prompt="a")
        assert caught.value.status_code == status
        assert caught.value.response.headers.get("retry-after") == ("2" if status == 429 else None)
        await client.completions.create(model="fake-model", prompt="a")


async def test_survives_what_is_not_http(tokenizer_dir: Path) -> None:
    """An HTTP/2 preface and garbage get 400 and a closed connection; the engine goes on."""
    async with FakeEngine(FakeEngineConfig(tokenizer=tokenizer_dir)) as engine:
        for data in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"\x16\x03\x01\x00garbage\r\n\r\n"):
            async with Raw.open(engine.port) as raw:
                raw.write(data)
                assert (await raw.read_all()).startswith(b"HTTP/1.1 400")
        async with Raw.open(engine.port) as raw:
            raw.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
            for _ in range(3):
                assert (await raw.answer()).status == 200
