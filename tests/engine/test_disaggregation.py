"""Two real engines behind a router: one computes a prompt, the other one answers with its KV."""

import asyncio
import json
import os
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import yaml

from anbar.config.split import SplitVia
from tests.engine.conftest import Launcher, StorePair, unique
from tests.engine.engine import BLOCK, SERVED_NAME, Engine, EngineConfig, plain, story
from tests.integration.harness import Answer, call, eventually
from tests.integration.router import running_router
from tests.ports import free_port

pytestmark = pytest.mark.disaggregation

FETCHED = "vllm:prompt_tokens_by_source_total"
SEEDS = count(900)
"""Each prompt is asked once."""


@dataclass(frozen=True)
class Pair:
    """An engine for prefill and one that answers."""

    via: SplitVia
    prefill: Engine
    decode: Engine

    def num_unheard(self) -> float:
        """What a store did not do in time, on a machine that stood still."""
        stores = self.prefill.metric("anbar_tier_stores_total")
        stored = self.prefill.metric("anbar_tier_stores_total", result="hit")
        return self.decode.num_unheard() + stores - stored


@pytest.fixture
def shared_pair(store_pair: Callable[[], StorePair]) -> Pair:
    engines = store_pair()
    return Pair(SplitVia.SHARED, engines.first, engines.second)


@pytest.fixture
def nixl_pair(launch: Launcher, smollm2: Path, engine_python: Path) -> Iterator[Pair]:
    """Started together, ended together; each polls on a core of its own."""
    if subprocess.run([engine_python, "-c", "import nixl"], check=False).returncode:
        pytest.skip("the engine's interpreter has no nixl")
    cores = sorted(os.sched_getaffinity(0))
    prefill, decode = (
        launch(EngineConfig(unique(name), smollm2, plain(), 96, cores=((core,),), via=SplitVia.NIXL))
        for name, core in (("p", cores[0]), ("d", cores[-1]))
    )
    for engine in (prefill, decode):
        engine.wait_ready()
    yield Pair(SplitVia.NIXL, prefill, decode)
    for engine in (prefill, decode):
        engine.kill()


@asynccontextmanager
async def router_before(pair: Pair, directory: Path) -> AsyncIterator[int]:
    """Its port, once both engines are ready. It waits for a store for longer than a machine stands still."""
    port = free_port()
    config = {
        "state_dir": str(directory / "state"),
        "engines": [
            {"name": "p", "url": pair.prefill.url, "role": "prefill"},
            {"name": "d", "url": pair.decode.url, "role": "decode"},
        ],
        "cache": {"mode": "none" if pair.via is SplitVia.NIXL else "shared", "store": {"id": "test"}},
        "router": {
            "port": port,
            "split": {"via": pair.via.value, "min_uncached_tokens": 64, "wait_ms": 60_000},
        },
    }
    path = directory / "anbar.yaml"
    path.write_text(yaml.safe_dump(config))

    async def is_ready() -> bool:
        page = (await call(port, "GET", "/admin/engines")).json
        return all(engine["state"] == "ready" for engine in page["engines"])

    async with running_router(path):
        await eventually(is_ready, what="both engines are ready")
        yield port


async def ask(port: int, prompt: str) -> Answer:
    """Without haste: both engines may have to compute on a machine that others use."""
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "model": SERVED_NAME}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})

    def read() -> Answer:
        with urllib.request.urlopen(request, timeout=300) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, headers, response.read())

    return await asyncio.to_thread(read)


async def test_over_nixl(nixl_pair: Pair, tmp_path: Path) -> None:
    """The one fetches the blocks from the other."""
    await one_computes_and_the_other_answers(nixl_pair, tmp_path)


async def test_through_the_store(shared_pair: Pair, tmp_path: Path) -> None:
    """What the one has stored the other one loads."""
    await one_computes_and_the_other_answers(shared_pair, tmp_path)


async def one_computes_and_the_other_answers(pair: Pair, tmp_path: Path) -> None:
    """A prompt of some six blocks: the engine that answers has loaded all of them, and its text is the one
    that it makes when it computes everything itself. A short prompt is not split."""
    async with router_before(pair, tmp_path) as port:
        while True:
            prompt, before = story(next(SEEDS), 12), pair.num_unheard()
            answer = await ask(port, prompt)
            if pair.num_unheard() == before:
                break
        assert answer.status == 200, answer.body
        assert (answer.engine, answer.headers.get("x-anbar-prefill-engine")) == ("d", "p")
        num_blocks = answer.json["usage"]["prompt_tokens"] // BLOCK
        assert pair.decode.metric(FETCHED, source="external_kv_transfer") >= num_blocks * BLOCK
        reported = num_blocks * BLOCK if pair.via is SplitVia.SHARED else 0  # then the prefill engine's
        assert answer.cached == answer.predicted == reported
        short = await ask(port, "The river rose")
        assert (short.engine, short.headers.get("x-anbar-prefill-engine")) == ("d", None)
    pair.decode.forget(host=True)
    alone = pair.decode.complete(prompt, 12, kv_transfer_params={"max_load_tokens": 0})
    assert alone.cached == 0
    assert alone.text == answer.json["choices"][0]["text"]
