"""vLLM's scheduler, watched: given to vLLM by its option `scheduler_cls`, it decides nothing itself.

It runs in the engine's interpreter. What the comparison reads of vLLM's internals beyond the scheduler's own
interface is read here and nowhere else.
"""

from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventPublisher,
    KVEventBatch,
)
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_offload.base import get_offload_block_hash
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tests.engine.recording.recorded import (
    Asked,
    Event,
    Lookups,
    Output,
    Piece,
    Settings,
    Step,
    Transfer,
)


class InOrder(set[str]):
    """A set of strings that is iterated in the order in which they were added.

    vLLM keeps the ids of finished requests in a set, and its connector stores their last blocks in the order
    of that set: another one in every process. This makes it one and the same."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[str, None] = {}

    def add(self, item: str) -> None:
        super().add(item)
        self._order[item] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)


class Kept(EventPublisher):  # type: ignore[misc]
    """A publisher that keeps the last batch."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: KVEventBatch | None = None

    def publish(self, events: KVEventBatch) -> None:
        assert self._batch is None
        self._batch = events

    def take(self) -> tuple[Event, ...]:
        batch, self._batch = self._batch, None
        return tuple(_event(event) for event in batch.events) if batch is not None else ()

    def shutdown(self) -> None:
        """Nothing runs."""


class RecordingScheduler(Scheduler):  # type: ignore[misc]
    """Keeps a `Step` of every turn in `steps`, and all requests with what they came to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"log_stats": True})
        self.steps: list[Step] = []
        self._device = PrefixCacheStats()
        self._external = PrefixCacheStats()
        """Lookups of all steps."""
        self._seen: dict[str, Request] = {}
        self._hits: dict[str, tuple[int, int]] = {}
        """By request: prompt tokens that its first admission found on the device, and below."""
        self.finished_req_ids: set[str] = InOrder()
        self.kv_event_publisher = Kept()
        self._preempted: list[str] = []
        self._decided: dict[str, Any] = {}

    @property
    def lookups(self) -> Lookups:
        """What has been counted so far."""
        return Lookups(
            self._device.queries,
            self._device.hits,
            self._external.queries,
            self._external.hits,
            {source.value: number for source, number in self._external.hits_by_source.items()},
        )

    def settings(self) -> Settings:
        """As vLLM has them."""
        config = self.vllm_config
        connector = self.connector.scheduler if self.connector is not None else None
        return Settings(
            block_size=self.block_size,
            num_blocks=self.kv_cache_manager.block_pool.num_gpu_blocks,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            max_model_len=config.model_config.max_model_len,
            watermark=config.scheduler_config.watermark,
            reserve_full_prompt=config.scheduler_config.scheduler_reserve_full_isl,
            prefix_caching=self.kv_cache_manager.enable_caching,
            host_chunks=connector.manager.primary_tier._num_chunks if connector is not None else 0,
            chunk_blocks=connector.config.blocks_per_chunk if connector is not None else 1,
            offload_prompt_only=connector.config.offload_prompt_only if connector is not None else False,
        )

    def asked(self, request_id: str, *, arrives: int, aborts: int | None) -> Asked:
        """A request that was added before step `arrives`, and what became of it."""
        request = self._seen[request_id]
        limits = request.kv_transfer_params or {}
        device_hit, external_hit = self._hits.get(request_id, (0, 0))
        return Asked(
            id=request_id,
            prompt=tuple(request.prompt_token_ids),
            max_tokens=request.max_tokens,
            salt=request.cache_salt,
            reads_cache=not request.skip_reading_prefix_cache,
            max_load_tokens=limits.get("max_load_tokens"),
            max_offload_tokens=limits.get("max_offload_tokens"),
            arrives=arrives,
            aborts=aborts,
            answer=tuple(request.output_token_ids),
            keys=tuple(block_hash.hex() for block_hash in request.block_hashes),
            device_hit=device_hit,
            external_hit=external_hit,
            num_preemptions=request.num_preemptions,
        )

    def add_request(self, request: Request) -> None:
        self._seen[request.request_id] = request
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self._preempted = []
        output = super().schedule(*args, **kwargs)
        self._decided = self._decisions(output)
        return output

    def update_from_output(self, scheduled: SchedulerOutput, computed: ModelRunnerOutput) -> Any:
        result = super().update_from_output(scheduled, computed)
        for client in result.values():
            if (counted := client.scheduler_stats) is not None:
                _add(self._device, counted.prefix_cache_stats)
                _add(self._external, counted.connector_prefix_cache_stats)
        outputs = []
        for output in (one for client in result.values() for one in client.outputs):
            if (stats := output.prefill_stats) is not None:
                hits = (stats.num_local_cached_tokens, stats.num_external_cached_tokens)
                self._hits.setdefault(output.request_id, hits)
            finished = output.finish_reason is not None
            outputs.append(Output(output.request_id, tuple(output.new_token_ids), finished))
        pool = self.kv_cache_manager.block_pool
        self.steps.append(
            Step(
                **self._decided,
                completed=_completed(computed),
                outputs=tuple(outputs),
                events=self.kv_event_publisher.take(),
                free_after=self._free(),
                cached=tuple(
                    get_block_hash(b.block_hash).hex() if b.block_hash else None for b in pool.blocks
                ),
                host=self._host(),
            )
        )
        return result

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._preempted.append(request.request_id)
        super()._preempt_request(request, *args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        self.finished_req_ids = InOrder()

    def _decisions(self, output: SchedulerOutput) -> dict[str, Any]:
        """The first part of a `Step`. Copies are read now: the worker changes the connector's lists."""
        meta = output.kv_connector_metadata
        waiting = [*self.kv_holding_waiting, *self.waiting]
        loading = [r for r in waiting if r.status is RequestStatus.WAITING_FOR_REMOTE_KVS]
        return {
            "pieces": tuple(
                Piece(id_, self.requests[id_].num_computed_tokens - num_new, num_new)
                for id_, num_new in output.num_scheduled_tokens.items()
            ),
            "preempted": tuple(self._preempted),
            "running": tuple(request.request_id for request in self.running),
            "loading": tuple(request.request_id for request in loading),
            "waiting": tuple(request.request_id for request in waiting if request not in loading),
            "num_deferred": len(self.deferred_waiting),
            "blocks": {id_: blocks for id_ in self.requests if (blocks := self._blocks(id_))},
            "free": self._free(),
            "loads": self._transfers(meta.load_jobs, store=False) if meta else (),
            "stores": self._transfers(meta.store_jobs, store=True) if meta else (),
            "flushed": tuple(sorted(meta.jobs_to_flush or ())) if meta else (),
        }

    def _transfers(self, jobs: dict[int, Any], *, store: bool) -> tuple[Transfer, ...]:
        assert self.connector is not None
        connector = self.connector.scheduler
        transfers = []
        for number, job in jobs.items():
            position = connector._req_status[job.req_id].req_context.get_offload_key_position
            keys = sorted(connector._jobs[number].keys, key=position)
            device, host = (job.src_spec, job.dst_spec) if store else (job.dst_spec, job.src_spec)
            transfers.append(
                Transfer(
                    job=number,
                    request=job.req_id,
                    keys=tuple(get_offload_block_hash(key).hex() for key in keys),
                    blocks=tuple(device.block_ids.tolist()),
                    chunks=tuple(host.block_ids.tolist()),
                )
            )
        return tuple(transfers)

    def _blocks(self, request_id: str) -> tuple[int, ...]:
        (blocks,) = self.kv_cache_manager.get_block_ids(request_id)
        return tuple(blocks)

    def _free(self) -> tuple[int, ...]:
        queue = self.kv_cache_manager.block_pool.free_block_queue
        return tuple(block.block_id for block in queue.get_all_free_blocks())

    def _host(self) -> tuple[str, ...]:
        """Keys of the host tier by the rank that its policy has given them."""
        if self.connector is None:
            return ()
        ranks = self.connector.scheduler.manager.primary_tier._policy._ranks
        return tuple(get_offload_block_hash(key).hex() for key in sorted(ranks, key=ranks.__getitem__))


def _completed(computed: ModelRunnerOutput) -> tuple[int, ...]:
    output = computed.kv_connector_output
    meta = output.kv_connector_worker_meta if output is not None else None
    return tuple(meta.completed_jobs) if meta is not None else ()


def _event(event: object) -> Event:
    if isinstance(event, BlockStored):
        return Event(
            "stored",
            event.medium,
            _keys(event.block_hashes),
            _key(event.parent_block_hash) if event.parent_block_hash is not None else None,
            tuple(event.token_ids),
        )
    if isinstance(event, BlockRemoved):
        return Event("removed", event.medium, _keys(event.block_hashes))
    assert isinstance(event, AllBlocksCleared)
    return Event("cleared")


def _add(total: PrefixCacheStats, stats: PrefixCacheStats | None) -> None:
    if stats is not None:
        total.record(stats.queries, stats.hits, preempted=False, hits_by_source=stats.hits_by_source or None)


def _keys(hashes: list[bytes | int]) -> tuple[str, ...]:
    return tuple(map(_key, hashes))


def _key(block_hash: bytes | int) -> str:
    assert isinstance(block_hash, bytes), "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES must be 0"
    return block_hash.hex()
