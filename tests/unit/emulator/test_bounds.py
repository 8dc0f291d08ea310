"""What one request may ask for, and that others are answered while it gets much."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.flags import parse
from anbar.apps.emulator.launch import plan
from anbar.core.errors import ConfigError

from .client import call


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[EmulatedEngine]:
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0)) as engine:
        yield engine


async def test_too_many_choices(engine: EmulatedEngine) -> None:
    """A million choices are refused, in vLLM's words, before any is begun."""
    status, text = await call(engine, "/v1/completions", {"prompt": "a", "n": 1_000_000})
    error = json.loads(text)["error"]
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", None)
    assert error["message"] == (
        "n must be at most 16384, got 1000000. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
        "environment variable."
    )
    assert engine.counters.num_prompt == 0


async def test_too_many_prompts(engine: EmulatedEngine) -> None:
    """A list of more prompts than vLLM takes is refused; one prompt of as many tokens is not."""
    status, text = await call(engine, "/v1/completions", {"prompt": ["a"] * 1025})
    assert status == 400
    assert "prompt list length 1025 exceeds the maximum allowed count of 1024." in text
    status, _ = await call(engine, "/v1/completions", {"prompt": [5] * 1025, "max_tokens": 1})
    assert status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_many_choices_come_in_slices(engine: EmulatedEngine, stream: bool) -> None:
    """Of many choices some are begun at a time: the engine works on the first before the last is there, and
    each of them is answered once."""
    asked = asyncio.create_task(
        call(engine, "/v1/chat/completions",
             {"messages": [{"role": "user", "content": "a"}], "n": 300, "max_tokens": 1, "stream": stream})
    )  # fmt: skip
    most = 0
    while not asked.done():
        most = max(most, engine.num_running + engine.num_waiting)
        await asyncio.sleep(0)
    assert 0 < most < 300
    status, text = await asked
    assert status == 200
    assert engine.counters.num_generated == 300
    if stream:
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert sorted(c["index"] for c in choices if c["delta"].get("role")) == list(range(300))
        assert sorted(c["index"] for c in choices if c["finish_reason"]) == list(range(300))
    else:
        assert [choice["index"] for choice in json.loads(text)["choices"]] == list(range(300))


async def test_a_client_that_leaves_early(engine: EmulatedEngine) -> None:
    """What was not begun when the client left is not begun any more."""
    asked = asyncio.create_task(call(engine, "/v1/completions", {"prompt": "a", "n": 16_384}))
    while not engine.num_waiting + engine.num_running:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    asked.cancel()
    async with asyncio.timeout(60):
        while engine.records.num_open or not engine.is_idle:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    assert engine.num_waiting == engine.num_running == 0
    assert engine.counters.num_prompt < 16_384


def test_bounds_are_vllms_variables(model_dir: Path) -> None:
    """The variables that the refusals name raise the bounds; what is no number is refused."""
    environ = {"VLLM_MAX_N_SEQUENCES": "20000", "VLLM_MAX_COMPLETION_PROMPTS": "7"}
    (settings,) = plan(parse([]), model_dir, environ)
    assert (settings.max_n, settings.max_prompts) == (20_000, 7)
    with pytest.raises(ConfigError, match="VLLM_MAX_N_SEQUENCES is 'many'"):
        plan(parse([]), model_dir, {"VLLM_MAX_N_SEQUENCES": "many"})
