"""More work than may wait: what is refused, with which words, and that it is taken on again."""

import asyncio
from pathlib import Path

from anbar.apps.emulator import Fault, FaultKind
from tests.integration.harness import eventually
from tests.integration.stack import Setup, running_stack, text_prompt


async def test_full_queue_refuses_and_recovers(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Four streams wait on engines that do not answer, and no more may: the fifth gets 429 with a Retry-After
    and reaches no engine; the four are answered well, and then the next one is."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, router={"max_waiting": 4})) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        waiting = [
            asyncio.create_task(stack.complete(text_prompt(str(index)), stream=True)) for index in range(4)
        ]
        await eventually(lambda: stack.num_open == 4)
        refused = await stack.complete(text_prompt("one too many"))
        assert (refused.status, refused.json["error"]["code"]) == (429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert stack.num_seen == 4
        assert await stack.samples("anbar_router_refusals_total") == {'{reason="overloaded"}': 1.0}
        stack.restore()
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        assert (await stack.complete(text_prompt("one too many"))).status == 200
