"""Writes chat_golden.json: what vLLM's own renderer makes of the requests in chat_cases.py.

    <python with vLLM 0.32> tests/unit/kv/make_chat_golden.py <directory of any small text model>

A request that vLLM refuses, or whose template fails, has null. Not a test: run it when vLLM's release
changes.
"""

import asyncio
import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chat_cases import bodies  # type: ignore[import-not-found]
from vllm.config import ModelConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers.registry import cached_tokenizer_from_config


async def main(model: str) -> None:
    config = ModelConfig(model=model, tokenizer=model, dtype="float32")
    parallel = SimpleNamespace(_api_process_rank=0, _api_process_count=1)
    shell = SimpleNamespace(model_config=config, parallel_config=parallel)
    seen: list[str] = []

    class Listening(HfRenderer):
        async def render_messages_async(self, messages: Any, params: Any) -> Any:
            conversation, prompt = await super().render_messages_async(messages, params)
            seen.append(prompt["prompt"])
            return conversation, prompt

    renderer = Listening(shell, cached_tokenizer_from_config(config))
    online = OnlineRenderer(
        config,
        renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        trust_request_chat_template=True,
        enable_auto_tools=True,
    )
    golden: list[str | None] = []
    for body in bodies():
        seen.clear()
        try:
            await online.render_chat(ChatCompletionRequest.model_validate(copy.deepcopy(body)))
        except ValueError:
            seen.clear()
        golden.append(seen[0] if seen else None)
    target = Path(__file__).with_name("chat_golden.json")
    target.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", "utf-8")


asyncio.run(main(sys.argv[1]))
