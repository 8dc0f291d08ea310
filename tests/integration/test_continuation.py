"""A stream whose engine dies is gone on with by the other engine: what the client and that engine see.

That the text is the uninterrupted one at temperature 0 needs a model: an emulated engine answers every prompt
with words of its own."""

import asyncio
import json
from pathlib import Path

import pytest

from anbar.apps.emulator import Fault, FaultKind
from tests.integration.harness import Raw
from tests.integration.stack import (
    CHAT,
    COMPLETIONS,
    MODEL,
    Setup,
    parsed,
    read_events,
    read_some,
    running_stack,
)
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("with_usage", [True, False])
async def test_killed_engine_in_mid_stream(
    tokenizer_dir: Path, socket_dir: Path, path: str, with_usage: bool
) -> None:
    """The engine is killed after three events: one stream with one id, no error, and [DONE]. The other engine
    got the prompt and the text so far as tokens; the usage is that of one answer to the client's prompt."""
    prompt = (
        {"messages": [{"role": "user", "content": "سلام grain"}]} if path == CHAT else {"prompt": "a store"}
    )
    body = {"model": MODEL, "max_tokens": 60, "temperature": 0, "stream": True, **prompt}
    if with_usage:
        body["stream_options"] = {"include_usage": True}
    async with running_stack(Setup(tokenizer_dir, socket_dir, router={"policy": "round_robin"})) as stack:
        whole = (await stack.post(path, body | {"stream": False, "stream_options": None})).json
        for engine in stack.engines.values():
            engine.records.clear()
            engine.arm(Fault(FaultKind.HANG_MID_STREAM, after_events=3))
        async with Raw.open(stack.port) as raw:
            raw.post(path, body)
            status, _ = await asyncio.wait_for(raw.head(), PATIENCE_S)
            assert status == 200
            (lost,) = (engine for engine in stack.engines.values() if engine.records.seen)
            (other,) = (engine for engine in stack.engines.values() if engine is not lost)
            other.faults.clear()
            events = await read_some(raw, 3)
            await lost.die()
            events += await asyncio.wait_for(read_events(raw), PATIENCE_S)
        chunks = parsed(events)
        assert events[-1] == b"[DONE]"
        assert not any("error" in chunk for chunk in chunks)
        kind = "chat.completion.chunk" if path == CHAT else "text_completion"
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {kind}
        finished = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
        assert finished[-1] in ("stop", "length")
        assert not any(finished[:-1])
        sent = json.loads(other.records.seen[-1].body)
        num_prompt = whole["usage"]["prompt_tokens"]
        num_before = len(sent["prompt"]) - num_prompt
        assert other.records.seen[-1].target == COMPLETIONS
        assert num_before > 0
        assert sent["max_tokens"] == 60 - num_before
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        assert len(usages) == with_usage
        if with_usage:
            assert usages[0]["prompt_tokens"] == num_prompt
            assert num_before < usages[0]["completion_tokens"] <= 60
            assert usages[0]["total_tokens"] == num_prompt + usages[0]["completion_tokens"]
        assert await stack.samples("anbar_router_continued_streams_total") == {"": 1.0}
        await lost.revive()
