"""Serve the batches of a scenario with `vllm.LLM` under a watched scheduler.

The model is the smallest that has a paged KV cache; its weights are random. Only blocks matter here, and
which tokens it answers is recorded."""

import gc
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vllm
from vllm import LLM, SamplingParams
from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.inputs import TokensPrompt

from anbar.config.render import PLUGIN_MODULE
from anbar.sim.engine.shape import Offload
from tests.engine.batches import VOCABULARY, Ask, Batch, Scenario
from tests.engine.recording import recorded
from tests.engine.recording.scheduler import RecordingScheduler

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
_KV_BYTES_PER_TOKEN = 2 * 64 * 4
_MAX_STEPS = 5000
"""A batch that is not over by then is a defect."""


def record(scenario: Scenario) -> recorded.Recording:
    """Serve all batches, one after the other, in one engine."""
    with _engine(scenario) as engine:
        scheduler = engine.engine_core.engine_core.scheduler
        assert isinstance(scheduler, RecordingScheduler)
        session = _Session(engine, scheduler)
        return recorded.Recording(
            scenario=scenario.name,
            vllm=vllm.__version__,
            settings=_settings(scheduler),
            batches=tuple(session.serve(batch) for batch in scenario.batches),
        )


class _Session:
    """One engine and the answers that it has given."""

    def __init__(self, engine: Any, scheduler: RecordingScheduler) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._turns: dict[str, tuple[int, ...]] = {}
        """Prompt and answer of finished requests."""

    def serve(self, batch: Batch) -> recorded.Batch:
        """Turn vLLM's loop until nothing is left to do, as its server does: after the last answer too."""
        self._scheduler.steps = []
        if batch.clears:
            assert self._engine.reset_prefix_cache()
        prompts = {
            ask.id: (self._turns[ask.after] if ask.after is not None else ()) + ask.prompt
            for ask in batch.asks
        }
        due = deque(sorted(batch.asks, key=lambda ask: ask.arrives))
        arrived: dict[str, int] = {}
        while True:
            step = len(self._scheduler.steps)
            assert step < _MAX_STEPS, f"{batch.name} is not over"
            while due and (due[0].arrives <= step or not self._scheduler.has_requests()):
                ask = due.popleft()
                arrived[ask.id] = step
                self._add(ask, prompts[ask.id])
            for ask in batch.asks:
                if ask.aborts == step:
                    self._engine.abort_request([ask.id])  # of several at once, vLLM makes a set
            if not due and not self._scheduler.has_requests():
                break
            self._engine.step()
        requests = tuple(self._asked(ask, arrived[ask.id]) for ask in batch.asks)
        self._turns.update((asked.id, asked.prompt + asked.answer) for asked in requests)
        return recorded.Batch(batch.name, batch.clears, requests, tuple(self._scheduler.steps))

    def _add(self, ask: Ask, tokens: tuple[int, ...]) -> None:
        limits = {"max_load_tokens": ask.max_load_tokens, "max_offload_tokens": ask.max_offload_tokens}
        transfer = {name: limit for name, limit in limits.items() if limit is not None}
        prompt = TokensPrompt(prompt_token_ids=list(tokens))
        if ask.salt is not None:
            prompt["cache_salt"] = ask.salt
        self._engine.add_request(
            ask.id,
            prompt,
            SamplingParams(
                temperature=1.0 if ask.sampled else 0.0,
                max_tokens=ask.max_tokens,
                ignore_eos=True,
                detokenize=False,
                skip_reading_prefix_cache=not ask.reads_cache,
                extra_args={"kv_transfer_params": transfer} if transfer else None,
            ),
        )

    def _asked(self, ask: Ask, arrived: int) -> recorded.Asked:
        request = self._scheduler.seen[ask.id]
        device_hit, external_hit = self._scheduler.hits.get(ask.id, (0, 0))
        return recorded.Asked(
            id=ask.id,
            prompt=tuple(request.prompt_token_ids),
            max_tokens=ask.max_tokens,
            salt=ask.salt,
            reads_cache=ask.reads_cache,
            max_load_tokens=ask.max_load_tokens,
            max_offload_tokens=ask.max_offload_tokens,
            arrives=arrived,
            aborts=ask.aborts,
            answer=tuple(request.output_token_ids),
            keys=tuple(block_hash.hex() for block_hash in request.block_hashes),
            cached_tokens=device_hit + external_hit,
            device_hit=device_hit,
            external_hit=external_hit,
            num_preemptions=request.num_preemptions,
        )


@contextmanager
def _engine(scenario: Scenario) -> Iterator[Any]:
    """vLLM's engine in this process, gone when the block ends."""
    shape = scenario.shape
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(_MODEL))
        llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            scheduler_cls=RecordingScheduler,
            block_size=shape.block_size,
            num_gpu_blocks_override=shape.num_blocks,
            kv_cache_memory_bytes=2 * shape.num_blocks * shape.block_size * _KV_BYTES_PER_TOKEN,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_len,
            enable_prefix_caching=shape.prefix_caching,
            watermark=shape.watermark,
            scheduler_reserve_full_isl=shape.reserve_full_prompt,
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
            kv_transfer_config=_transfer(scenario),
        )
        try:
            yield llm.llm_engine
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()


def _transfer(scenario: Scenario) -> KVTransferConfig | None:
    """The host tier as `anbar up` configures it on a machine without a GPU."""
    host = scenario.host
    if host is None:
        return None
    chunk_bytes = host.chunk_blocks * scenario.shape.block_size * _KV_BYTES_PER_TOKEN
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id=f"anbar-recording-{os.getpid()}-{scenario.name}",
        kv_connector_extra_config={
            "spec_name": "AnbarOffloadingSpec",
            "spec_module_path": PLUGIN_MODULE,
            "cpu_bytes_to_use": host.num_chunks * chunk_bytes,
            "blocks_per_chunk": host.chunk_blocks,
            "offload_prompt_only": host.offload is Offload.PROMPT,
        },
    )


def _settings(scheduler: RecordingScheduler) -> recorded.Settings:
    """As vLLM has them."""
    config = scheduler.vllm_config
    connector = scheduler.connector.scheduler if scheduler.connector is not None else None
    return recorded.Settings(
        block_size=scheduler.block_size,
        num_blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_model_len=config.model_config.max_model_len,
        watermark=config.scheduler_config.watermark,
        reserve_full_prompt=config.scheduler_config.scheduler_reserve_full_isl,
        host_chunks=connector.manager.primary_tier._num_chunks if connector is not None else 0,
        chunk_blocks=connector.config.blocks_per_chunk if connector is not None else 1,
        offload_prompt_only=connector.config.offload_prompt_only if connector is not None else False,
    )
