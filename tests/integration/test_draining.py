"""Draining one engine by hand, and what /ready says, from outside."""

import asyncio

import pytest

from anbar.apps.emulator import Fault, FaultKind
from tests.integration.stack import Stack, completion, open_stream, read_events, text_prompt
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_drained_engine_finishes_and_gets_nothing_new(stack: Stack) -> None:
    """An engine is drained in the middle of a stream: the stream ends well, everything new goes to the other
    one, /ready stays green; the other one drained too, it is red and requests get 503; then both return."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.HANG_MID_STREAM, count=0))
    async with open_stream(stack.port, completion("a", max_tokens=20)) as raw:
        (busy,) = (name for name, engine in stack.engines.items() if engine.records.seen)
        (other,) = stack.engines.keys() - {busy}
        drained = await stack.post(f"/admin/engines/{busy}/drain", b"")
        assert drained.json == {"id": busy, "state": "draining", "in_flight": 1}
        stack.engines[other].faults.clear()
        answers = [await stack.complete(text_prompt(str(index))) for index in range(6)]
        assert {answer.engine for answer in answers} == {other}
        assert (await stack.get("/ready")).status == 200
        assert (await stack.get("/ready")).json["models"]["fake-model"]["others"] == {
            busy: "draining: by an admin call"
        }
        stack.engines[busy].faults.clear()
        events = await asyncio.wait_for(read_events(raw), PATIENCE_S)
    assert events[-1] == b"[DONE]"
    await stack.post(f"/admin/engines/{other}/drain", b"")
    assert (await stack.get("/ready")).status == 503
    assert (await stack.complete("b")).status == 503
    for name in stack.engines:
        assert (await stack.post(f"/admin/engines/{name}/undrain", b"")).json["state"] == "ready"
    assert (await stack.get("/ready")).status == 200
    assert (await stack.complete("b")).status == 200
