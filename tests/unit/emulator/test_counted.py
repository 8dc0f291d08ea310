"""What /metrics and usage count: prompts, choices, embeddings; and what /kv_event_sources shows."""

import json
import re
from pathlib import Path

from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator import EmulatedEngine, EngineSettings, steady
from anbar.apps.emulator.settings import Runner

from .client import call


async def _sums(engine: EmulatedEngine, *names: str) -> list[tuple[float, float]]:
    """Count and sum of histograms."""
    _, page = await call(engine, "/metrics")

    def value(name: str) -> float:
        found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    return [(value(f"{name}_count"), value(f"{name}_sum")) for name in names]


async def test_each_prompt_is_a_request(model_dir: Path) -> None:
    """Two prompts of three choices, one of which is longer than the others: `n` and the longest choice are
    observed once per prompt."""
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0)) as engine:
        body = {"prompt": ["a", "b"], "n": 3, "max_tokens": 4, "ignore_eos": True}
        assert (await call(engine, "/v1/completions", body))[0] == 200
        names = ("request_params_n", "request_max_num_generation_tokens", "request_generation_tokens")
        assert await _sums(engine, *names) == [(2, 6), (2, 8), (6, 24)]


async def test_embeddings_generate_nothing(model_dir: Path) -> None:
    """Two inputs: requests with prompts, and neither tokens nor a limit of them."""
    settings = EngineSettings(model_dir=model_dir, port=0, runner=Runner.POOLING)
    async with EmulatedEngine(settings) as engine:
        assert (await call(engine, "/v1/embeddings", {"input": [[5, 6, 7], [8, 9]]}))[0] == 200
        names = ("request_params_n", "request_max_num_generation_tokens", "request_prompt_tokens")
        assert await _sums(engine, *names) == [(2, 2), (2, 0), (2, 5)]
        names = ("request_generation_tokens", "request_params_max_tokens")
        assert await _sums(engine, *names) == [(2, 0), (0, 0)]
        _, page = await call(engine, "/metrics")
        assert re.search(r"^vllm:generation_tokens_total{[^}]*} 0.0$", page, re.MULTILINE)


async def test_adapters_that_run(model_dir: Path) -> None:
    """Without adapters there is no such family; with them, who ran and that nobody does any more."""
    family, asked = "# TYPE vllm:lora_requests_info gauge", {"prompt": "a", "max_tokens": 1, "model": "ad"}
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0)) as engine:
        assert family not in (await call(engine, "/metrics"))[1]
    cost = steady(step_s=0.001)  # else three tokens are one step
    settings = EngineSettings(model_dir=model_dir, port=0, loras={"ad": "/x"}, cost=cost)
    async with EmulatedEngine(settings) as engine:
        assert family in (await call(engine, "/metrics"))[1]
        assert (await call(engine, "/v1/completions", {**asked, "max_tokens": 3}))[0] == 200
        _, page = await call(engine, "/metrics")
        shown = re.findall(r"^vllm:lora_requests_info{(.*)} (\S+)$", page, re.MULTILINE)
        names = 'max_lora="1",running_lora_adapters="{}",waiting_lora_adapters=""'
        assert {labels for labels, _ in shown} == {names.format("ad"), names.format("")}
        assert all(float(at_s) >= engine.started_s for _, at_s in shown)


async def test_continuous_usage_is_of_one_prompt(model_dir: Path) -> None:
    """Prompts of one and of three tokens: each chunk shows its own prompt's, the last one all."""
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0)) as engine:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": [[5], [6, 7, 8]], "max_tokens": 1, "stream": True, "stream_options": options}
        _, text = await call(engine, "/v1/completions", body)
        chunks = [json.loads(data) for data in re.findall(r"^data: ({.*})", text, re.MULTILINE)]
        *of_choices, whole = chunks
        shown = {chunk["choices"][0]["index"]: chunk["usage"]["prompt_tokens"] for chunk in of_choices}
        assert shown == {0: 1, 1: 3}
        assert whole["usage"]["prompt_tokens"] == 4


async def test_sources_of_events_are_where_they_are(model_dir: Path, tmp_path: Path) -> None:
    """A port of the system's choice is shown as the address that a subscriber needs; other addresses and
    numbers are shown as given."""
    events = PublisherConfig(f"ipc://{tmp_path}/events", "tcp://127.0.0.1:0", max_queue_size=7)
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0, events=events)) as engine:
        source = json.loads((await call(engine, "/kv_event_sources"))[1])["0"]
        assert source["endpoint"] == events.endpoint
        assert re.fullmatch(r"tcp://127.0.0.1:[1-9]\d*", source["replay_endpoint"])
        assert source["max_queue_size"] == 7


async def test_long_texts_are_tokenized_beside_the_loop(model_dir: Path) -> None:
    """A body beyond the limit is answered as a short one is, refusals too."""
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0)) as engine:
        text = "grain and water " * 1200
        status, page = await call(engine, "/tokenize", {"prompt": text})
        assert status == 200
        tokens = json.loads(page)["tokens"]
        assert tokens == engine.text.words(text)
        assert json.loads((await call(engine, "/detokenize", {"tokens": tokens}))[1]) == {"prompt": text}
        status, page = await call(engine, "/tokenize", {"prompt": text, "model": "nobody"})
        assert status == 404
