"""One of vLLM's engine cores without workers; runs in the engine's interpreter."""

import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from anbar.adapters.vllm.connector import SharingConnector
from anbar.sim.engine.shape import Offload
from tests.engine.dry.tier import CLOCK, ClockedTier
from tests.engine.recording import model
from tests.engine.recording.scheduler import RecordingScheduler
from tests.unit.sim.workload import Ask, Workload

_PAGE_BYTES = 4096
"""Rows of the host tier are multiples of that."""
_ABORTED = RequestStatus.FINISHED_ABORTED


class _InlineCopies:
    """A copy worker that has nothing to copy: done when submitted, as ours on the CPU platform."""

    def __init__(self) -> None:
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: object, dst_spec: object) -> bool:
        self._done.append(TransferResult(job_id, success=True))
        return True

    submit_load = submit_store

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for."""


class DryEngine:
    """A scheduler, and what stands for its worker. Steps take a second of `CLOCK`."""

    def __init__(self, workload: Workload, name: str) -> None:
        shape = workload.shape
        config = _config(workload, name)
        spec = FullAttentionSpec(
            block_size=shape.block_size, num_kv_heads=1, head_size=64, dtype=torch.float32
        )
        page = spec.page_size_bytes
        tensor = KVCacheTensor(page * shape.num_blocks, ["layer"], page * shape.num_blocks, page)
        cache = KVCacheConfig(shape.num_blocks, [tensor], [KVCacheGroupSpec(["layer"], spec)])
        self.scheduler = RecordingScheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=shape.block_size,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(shape.block_size, sha256)
        self._worker: Any = None
        if workload.host is not None:
            self._worker = OffloadingConnectorWorker(SimpleNamespace(replicated_layout=False), config, cache)
            self._worker.worker = _InlineCopies()
        self._answers: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, ask: Ask) -> None:
        params = SamplingParams(
            max_tokens=len(ask.answer),
            ignore_eos=True,
            skip_reading_prefix_cache=not ask.reads_cache,
            extra_args={"kv_transfer_params": _transfer_params(ask)},
        )
        self._answers[name] = ask.answer
        self.scheduler.add_request(self._request(name, ask.prompt, ask, params))

    def abort(self, names: Sequence[str]) -> None:
        """One call each: of several in one call, vLLM chooses the order by chance."""
        for name in names:
            self.scheduler.finish_requests(name, _ABORTED)

    def step(self, aborts: Sequence[str]) -> None:
        """One turn of the loop, in which requests are aborted while it computes."""
        scheduled = self.scheduler.schedule()
        copied = self._copy(scheduled) if self._worker is not None else None
        names = list(scheduled.num_scheduled_tokens)
        sampled = [self._sample(name) for name in names]
        self.abort(aborts)
        started_s = CLOCK.value_s
        CLOCK.value_s = started_s + (1.0 if names else 0.001)
        computed = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=copied,
        )
        self.scheduler.update_from_output(scheduled, computed)
        CLOCK.value_s = started_s + 1.0

    def _sample(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        if request.num_computed_tokens < request.num_tokens:
            return []
        return [self._answers[name][request.num_output_tokens]]

    def _copy(self, scheduled: Any) -> KVConnectorOutput:
        meta = scheduled.kv_connector_metadata
        self._worker.handle_preemptions(meta)
        self._worker.start_kv_transfers(meta)
        self._worker.prepare_store_kv(meta)
        _, loaded = self._worker.get_finished(scheduled.finished_req_ids)
        return KVConnectorOutput(
            finished_sending=set(),
            finished_recving=loaded,
            kv_connector_worker_meta=self._worker.build_connector_worker_meta(),
        )

    def _request(self, name: str, prompt: Sequence[int], ask: Ask, params: SamplingParams) -> Request:
        salt = str(ask.salt) if ask.salt else None
        return Request(name, list(prompt), params, None, cache_salt=salt, block_hasher=self._hasher)


def _transfer_params(ask: Ask) -> dict[str, object]:
    wish = ask.wish
    params: dict[str, object] = {"anbar": {"v": 1, "scope": wish.scope, "store": wish.storing.value}}
    if wish.wait_s is not None:
        params["anbar"] |= {"wait_ms": round(1000 * wish.wait_s)}  # type: ignore[operator]
    if wish.prefill is not None:
        params["anbar"] |= {"prefill_s_per_token": wish.prefill.a_s_per_token}  # type: ignore[operator]
    limits = {"max_load_tokens": ask.max_load_tokens, "max_offload_tokens": ask.max_offload_tokens}
    params |= {name: limit for name, limit in limits.items() if limit is not None}
    return params if ask.loads_shared else params | {"kv_load_tiers": [{"medium": "CPU"}]}


def _config(workload: Workload, name: str) -> VllmConfig:
    shape = workload.shape
    with tempfile.TemporaryDirectory() as directory:
        model.write_config(directory)
        config = EngineArgs(
            model=directory, kv_transfer_config=_transfer(workload, name), **model.options(shape)
        ).create_engine_config()
    config.cache_config.num_gpu_blocks = shape.num_blocks
    config.cache_config.block_size = shape.block_size  # smaller than the platform would take
    return config


def _transfer(workload: Workload, name: str) -> KVTransferConfig | None:
    host, shape = workload.host, workload.shape
    if host is None:
        return None
    chunk_tokens = host.chunk_blocks * shape.block_size
    extra: dict[str, object] = {
        "spec_name": "TieringOffloadingSpec",
        "spec_module_path": "vllm.v1.kv_offload.tiering.spec",
        "cpu_bytes_to_use": host.num_chunks
        * -(-chunk_tokens * model.KV_BYTES_PER_TOKEN // _PAGE_BYTES)
        * _PAGE_BYTES,
        "blocks_per_chunk": host.chunk_blocks,
        "offload_prompt_only": host.offload is Offload.PROMPT,
    }
    if workload.store is not None:
        num_chunks, cost = workload.store
        tier = {"type": ClockedTier.__name__, "module_path": ClockedTier.__module__}
        options = {
            "num_chunks": num_chunks,
            "cost": cost,
            "chunk_bytes": chunk_tokens * shape.kv_bytes_per_token,
        }
        extra["secondary_tiers"] = [tier | options]
    return KVTransferConfig(
        kv_connector=SharingConnector.__name__,
        kv_connector_module_path=SharingConnector.__module__,
        kv_role="kv_both",
        engine_id=name,
        kv_connector_extra_config=extra,
    )
