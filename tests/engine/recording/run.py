"""Serve the batches of a scenario with `vllm.LLM` under a watched scheduler.

The model's weights are random: only blocks matter here, and which tokens it answers is recorded."""

import gc
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.inputs import TokensPrompt

from anbar.config.render import PLUGIN_MODULE
from anbar.sim.engine.shape import Offload
from tests.engine.batches import Ask, Batch, Scenario
from tests.engine.recording import model, recorded
from tests.engine.recording.scheduler import RecordingScheduler

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
            settings=scheduler.settings(),
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
        requests = tuple(
            self._scheduler.asked(ask.id, arrives=arrived[ask.id], aborts=ask.aborts) for ask in batch.asks
        )
        self._turns.update((asked.id, asked.prompt + asked.answer) for asked in requests)
        return recorded.Batch(
            batch.name, batch.clears, requests, tuple(self._scheduler.steps), self._scheduler.lookups
        )

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


@contextmanager
def _engine(scenario: Scenario) -> Iterator[Any]:
    """vLLM's engine in this process, gone when the block ends."""
    shape = scenario.shape
    with tempfile.TemporaryDirectory() as directory:
        model.write_config(directory)
        llm = LLM(
            model=directory,
            load_format="dummy",
            scheduler_cls=RecordingScheduler,
            kv_cache_memory_bytes=2 * shape.num_blocks * shape.block_size * model.KV_BYTES_PER_TOKEN,
            kv_transfer_config=_transfer(scenario),
            **model.options(shape),
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
    chunk_bytes = host.chunk_blocks * scenario.shape.block_size * model.KV_BYTES_PER_TOKEN
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
