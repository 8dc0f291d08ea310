"""What a request waits for in front of the engine: its text to be tokenized, and not token ids."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.settings import Runner
from anbar.core.cost import EngineCost

from .client import call

CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOKEN_S = 1000.0
"""A token's tokenizing outlasts every test."""
HELLO = [{"role": "user", "content": "a"}]


def engine_of(model_dir: Path, runner: Runner = Runner.GENERATE) -> EmulatedEngine:
    cost = EngineCost(front_s_per_token=TOKEN_S)
    return EmulatedEngine(EngineSettings(model_dir=model_dir, port=0, runner=runner, cost=cost))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": [5, 6, 7]}),
        (COMPLETION, {"prompt": [[5, 6, 7], [8]]}),
        (CHAT, {"messages": HELLO, "kv_transfer_params": {"prompt_token_ids": [5, 6, 7]}}),
        (EMBEDDINGS, {"input": [5, 6, 7]}),
        (EMBEDDINGS, {"input": [[5, 6, 7], [8]]}),
    ],
)
async def test_ids_need_not_be_tokenized(model_dir: Path, path: str, body: dict[str, object]) -> None:
    """They are answered at once, however long tokenizing takes."""
    runner = Runner.POOLING if path == EMBEDDINGS else Runner.GENERATE
    async with engine_of(model_dir, runner) as engine:
        assert (await call(engine, path, body))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "num_sequences"),
    [
        (COMPLETION, {"prompt": "the water", "n": 3}, 3),
        (COMPLETION, {"prompt": ["the water"] * 2}, 2),
        (CHAT, {"messages": HELLO}, 1),
        (EMBEDDINGS, {"input": "the water"}, 1),
        (EMBEDDINGS, {"messages": HELLO}, 1),
    ],
)
async def test_texts_are_tokenized_first(
    model_dir: Path, path: str, body: dict[str, object], num_sequences: int
) -> None:
    """Each sequence waits as long as its own prompt takes, once: choices of a prompt wait together."""
    runner = Runner.POOLING if path == EMBEDDINGS else Runner.GENERATE
    async with engine_of(model_dir, runner) as engine:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        asked = asyncio.create_task(call(engine, path, body))
        coming = engine.life.coming
        await _until(lambda: len(coming) == num_sequences)
        if path == CHAT:
            tokens = engine.text.chat({**body, "add_generation_prompt": True})
        elif "messages" in body:
            tokens = engine.text.chat({**body, "add_generation_prompt": False})
        else:
            tokens = engine.text.completion({"prompt": "the water"})
        assert isinstance(tokens, list)
        waits_s = TOKEN_S * len(tokens)
        for handle in coming.values():
            assert started_s + waits_s <= handle.when() <= loop.time() + waits_s
        asked.cancel()
        await _until(lambda: not coming)
