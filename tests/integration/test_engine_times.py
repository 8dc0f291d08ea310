"""Engines that tell their own times: what the router makes of them."""

import json
from pathlib import Path

import pytest

from tests.integration.stack import COMPLETIONS, Setup, completion, running_stack, text_prompt

pytestmark = pytest.mark.asyncio


async def test_the_first_token_of_a_whole_answer_is_known(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Each one whole answer and stream, the latter of a client that does not ask for usage: of both the
    router's metrics have the engine's first token, queue and time between tokens, and the explanation has the
    first token. The client's stream shows nothing of it."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, engine={"per_request_metrics": True})
    async with running_stack(setup) as stack:
        whole = await stack.complete(text_prompt("whole"))
        stream = await stack.post(COMPLETIONS, completion(text_prompt("stream"), stream=True))
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert b"metrics" not in stream.body
        await stack.assert_idle()
        for name in ("engine_ttft", "engine_queue", "engine_itl", "ttft_to_predicted"):
            unit = "ratio" if name == "ttft_to_predicted" else "seconds"
            (count,) = (await stack.samples(f"anbar_router_{name}_{unit}_count")).values()
            assert count == 2, name
        request_id = whole.headers["x-anbar-request-id"]
        (explained,) = (await stack.get(f"/admin/explain/{request_id}")).json["requests"]
        told = json.loads(whole.body)["metrics"]
        expected = told["queue_time_ms"] + told["time_to_first_token_ms"]
        assert explained["outcome"]["reported_ttft_ms"] == pytest.approx(expected, abs=0.01)
