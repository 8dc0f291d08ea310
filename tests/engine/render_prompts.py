"""Writes the token ids that vLLM's own renderer makes of requests; runs in the engine's interpreter.

python render_prompts.py <model directory> <requests.json> <output.json>

Each request has "body", "chat" (whether it is one) and what the server was started with ("server"). A request
that vLLM refuses has null.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.config import ModelConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers.registry import cached_tokenizer_from_config

MAX_MODEL_LEN = 2048


class Renderers:
    """vLLM's renderer, made as its server makes it."""

    def __init__(self, model: str) -> None:
        self._config = ModelConfig(model=model, tokenizer=model, dtype="float32", max_model_len=MAX_MODEL_LEN)
        parallel = SimpleNamespace(_api_process_rank=0, _api_process_count=1)
        shell = SimpleNamespace(model_config=self._config, parallel_config=parallel)
        self._renderer = HfRenderer(shell, cached_tokenizer_from_config(self._config))

    def _online(self, server: dict[str, Any]) -> OnlineRenderer:
        defaults = {"chat_template": None, "chat_template_content_format": "auto", "enable_auto_tools": True}
        return OnlineRenderer(self._config, self._renderer, request_logger=None, **defaults | server)

    async def ids(self, case: dict[str, Any]) -> list[int] | None:
        online = self._online(case["server"])
        try:
            if not case["chat"]:
                request = CompletionRequest.model_validate(case["body"])
                (made,) = await online.preprocess_completion(request, request.prompt, request.prompt_embeds)
                return list(made["prompt_token_ids"])
            found = await online.render_chat(ChatCompletionRequest.model_validate(case["body"]))
            if not isinstance(found, tuple):
                return None
            return list(found[1][0]["prompt_token_ids"])
        except (ValueError, TypeError, VLLMValidationError):  # what its server answers with 400
            return None


async def rendered(model: str, cases: list[dict[str, Any]]) -> list[list[int] | None]:
    renderers = Renderers(model)
    return [await renderers.ids(case) for case in cases]


def main(model: str, source: str, target: str) -> None:
    found = asyncio.run(rendered(model, json.loads(Path(source).read_text("utf-8"))))
    Path(target).write_text(json.dumps(found))


main(*sys.argv[1:])
