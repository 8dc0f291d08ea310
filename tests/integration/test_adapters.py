"""Requests with LoRA adapters go where their adapter can run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.emulator import Fault, FaultKind
from tests.integration.harness import call, eventually
from tests.integration.stack import COMPLETIONS, Setup, Stack, completion, running_stack, text_prompt

pytestmark = pytest.mark.asyncio
ADAPTERS = {"x": "/adapters/x", "y": "/adapters/y"}


async def slots(stack: Stack) -> dict[str, Any]:
    return {name: known["adapters"] for name, known in (await stack.described()).items()}


async def know_their_slots(stack: Stack) -> None:
    """Until both engines have told that they have one slot, and that nobody uses it. They tell of slots from
    the first request with an adapter on."""
    for engine in stack.engines.values():
        body = completion("hello", model="x", max_tokens=1)
        assert (await call(engine.port, "POST", COMPLETIONS, body)).status == 200

    async def is_told() -> bool:
        told = (await slots(stack)).values()
        return all((known["slots"], known["running"]) == (1, []) for known in told)

    await eventually(is_told, what="the engines have told of their slots")


async def test_each_adapter_stays_where_it_runs(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Of eight requests that are all there before one is answered, those with one adapter are together, and
    those with the other are where the slot is free; afterwards both adapters are known to be there."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, engine={"loras": ADAPTERS})) as stack:
        await know_their_slots(stack)
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asking = []
        for at in range(8):
            body = completion(text_prompt(f"{at}"), model="xy"[at % 2])
            asking.append(asyncio.create_task(stack.post(COMPLETIONS, body)))
            await eventually(lambda num=at + 1: stack.num_open == num, what="an engine has it")
        for engine in stack.engines.values():
            engine.faults.clear()
        answers = await asyncio.gather(*asking)
        (of_x,), (of_y,) = ({answer.engine for answer in answers[at::2]} for at in (0, 1))
        assert of_x != of_y
        known = await slots(stack)
        assert (known[of_x]["loaded"], known[of_y]["loaded"]) == (["x"], ["y"])
