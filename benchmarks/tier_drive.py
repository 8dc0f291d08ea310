"""Drives vLLM's own scheduler and a KV connector without a model, and says what CPU the connector took; runs
in the interpreter of the engine.

    python -m benchmarks.tier_drive <model directory> <scratch directory> <output file> [options]

Everything but the model is vLLM's: scheduler, prefix cache, connector, offloading spec with a host region,
and the worker that copies blocks of 4 KiB (one layer, one head). A step is planned, its copies are made,
every prompt that is complete gets a token, and the scheduler is told, as in an engine. Steps come
100 times a second and bring 100 chunks each: 10,000 chunks/s are looked up and stored, or loaded.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from anbar.config.lmcache import LmcacheConfig
from anbar.config.models import CacheConfig, CacheMode, Device, Dtype, LaunchConfig
from anbar.config.render import EngineSlot, engine_command
from benchmarks.tier_null import NULL_MODULE

BLOCK = 32
"""Tokens of a block, and of a chunk."""

CHUNKS = 50
"""Of a prompt: 1,600 tokens and a last token that is never cached."""

STEP_S = 0.01
"""Between two steps: a fast GPU's."""

PROMPTS_PER_STEP = 2
DEVICE_BLOCKS, HOST_ROWS = 2048, 8192
PAGE = 2 * BLOCK * 16 * 4
"""Bytes of a block: keys and values of 16 float32 each. A page of memory, as the host region wants it."""

LAYER = "layers.0"


@dataclass
class Meter:
    """CPU seconds of the calling thread in methods that are wrapped, by their names. What wrapping itself
    takes is measured, and taken off."""

    ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    overhead_ns: float = 0.0
    _is_inside: bool = False
    _wrapped: list[tuple[object, str]] = field(default_factory=list)

    def wrap(self, thing: object, names: Sequence[str]) -> None:
        """Replaces methods of one object by measured ones."""
        for name in names:
            setattr(thing, name, self.timed(name, getattr(thing, name)))
            self._wrapped.append((thing, name))

    def unwrap(self) -> None:
        """Gives all objects their methods back."""
        for thing, name in self._wrapped:
            delattr(thing, name)
        self._wrapped.clear()

    def timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        ns, calls, now = self.ns, self.calls, time.thread_time_ns

        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:  # one that another one calls is counted there
                return method(*args, **kwargs)
            self._is_inside = True
            began = now()
            try:
                return method(*args, **kwargs)
            finally:
                ns[name] += now() - began
                calls[name] += 1
                self._is_inside = False

        return measured

    def calibrate(self, num: int = 20_000) -> None:
        probe = self.timed("nothing", lambda key, context: None)
        for _ in range(num):
            probe(None, None)
        self.overhead_ns = self.ns.pop("nothing") / num
        del self.calls["nothing"]

    def take(self) -> dict[str, float]:
        """CPU seconds by method since the last call."""
        taken = {
            name: max(0.0, ns - self.calls[name] * self.overhead_ns) / 1e9 for name, ns in self.ns.items()
        }
        self.ns.clear()
        self.calls.clear()
        return taken


TIER_METHODS = (
    "on_new_request",
    "on_request_finished",
    "lookup",
    "touch",
    "submit_store",
    "submit_load",
    "get_finished_jobs",
    "on_schedule_end",
    "has_pending_work",
    "take_events",
    "get_stats",
    "serve_external_requests",
)
"""Of a `SecondaryTierManager`: all that vLLM calls in its scheduler's loop."""

SCHEDULER_METHODS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "get_external_cache_hit_sources",
    "update_state_after_alloc",
    "build_connector_meta",
    "has_pending_push_work",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "take_events",
    "get_kv_connector_stats",
)
WORKER_METHODS = (
    "bind_connector_metadata",
    "handle_preemptions",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "build_connector_worker_meta",
    "clear_connector_metadata",
)
"""Of a `KVConnectorBase_V1`: all that vLLM calls in a step."""


class Drive:
    """A scheduler and a worker's connector, stepped by hand."""

    def __init__(self, config: VllmConfig) -> None:
        layout = kv_layout()
        config.cache_config.num_gpu_blocks = DEVICE_BLOCKS
        config.cache_config.kv_cache_layout = "LBHNC"  # what the engine would have found for a connector
        self.memory = torch.zeros((DEVICE_BLOCKS, PAGE), dtype=torch.uint8)
        self.worker: Any = None
        if config.kv_transfer_config is not None:  # first, as in an engine: it makes the host region
            self.worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, layout)
            shaped = self.memory.view(torch.float32).view(DEVICE_BLOCKS, 1, BLOCK, 32)
            self.worker.register_kv_caches({LAYER: shaped})
        self.scheduler = Scheduler(
            config, layout, StructuredOutputManager(config), BLOCK, BLOCK, log_stats=True
        )
        self.connector: Any = self.scheduler.connector
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._num_requests = 0

    @property
    def tier(self) -> Any:
        """The first secondary tier; None where there is none."""
        inner = getattr(self.connector, "connector_scheduler", None)
        return next(iter(getattr(getattr(inner, "manager", None), "secondary_tiers", ())), None)

    def measured_by(self, meter: Meter, what: str) -> bool:
        """Wraps the methods of the tier, or of the connector; False when there is none."""
        if what == "tier" and self.tier is not None:
            meter.wrap(self.tier, TIER_METHODS)
        elif what == "connector" and self.connector is not None:
            meter.wrap(self.connector, SCHEDULER_METHODS)
            meter.wrap(self.worker, WORKER_METHODS)
        else:
            return False
        return True

    def request(self, tokens: list[int], max_tokens: int = 1) -> Request:
        self._num_requests += 1
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return Request(f"r{self._num_requests}", tokens, params, None, block_hasher=self._hasher)

    def step(self) -> int:
        """One step; how many tokens it computed."""
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        tokens = [[7] if requests[n].num_computed_tokens >= requests[n].num_tokens else [] for n in names]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=tokens,
                kv_connector_output=self._transfer(output),
            ),
        )
        return int(output.total_num_scheduled_tokens)

    def is_busy(self) -> bool:
        return bool(self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_requests())

    def close(self) -> None:
        self.scheduler.shutdown()
        if self.worker is not None:
            self.worker.shutdown()

    def _transfer(self, output: SchedulerOutput) -> KVConnectorOutput | None:
        """As vLLM's model runner has it, for a connector whose loads are asynchronous."""
        worker = self.worker
        if worker is None:
            return None
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.handle_preemptions(output.kv_connector_metadata)
        worker.start_load_kv(None)
        worker.wait_for_layer_load(LAYER)
        worker.save_kv_layer(LAYER, self.memory, None)
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        told = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_stats=worker.get_kv_connector_stats(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return told


def kv_layout() -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    assert spec.page_size_bytes == PAGE
    tensor = KVCacheTensor(DEVICE_BLOCKS * PAGE, [LAYER], DEVICE_BLOCKS * PAGE, PAGE)
    return KVCacheConfig(DEVICE_BLOCKS, [tensor], [KVCacheGroupSpec([LAYER], spec)], hash_block_size=BLOCK)


def vllm_config(model: str, transfer: dict[str, Any] | None) -> VllmConfig:
    return EngineArgs(
        model=model,
        dtype="float32",
        block_size=BLOCK,
        enforce_eager=True,
        max_model_len=8192,
        max_num_seqs=64,
        max_num_batched_tokens=16_384,
        async_scheduling=False,
        kv_transfer_config=transfer,
    ).create_engine_config()


def offloading(kind: str, root: Path, lmcache: int, host_rows: int = HOST_ROWS) -> dict[str, Any] | None:
    """`--kv-transfer-config` of one kind; `lmcache`: the port of its server."""
    if kind == "none":
        return None
    if kind == "lmcache":
        slot = EngineSlot(kind, "", "", Device.CPU, Dtype.FLOAT32, 0, root, f"drive-{root.parent.name}")
        cache = CacheConfig(mode=CacheMode.LMCACHE, lmcache=LmcacheConfig(server=f"127.0.0.1:{lmcache}"))
        argv = engine_command(Path("python"), LaunchConfig(), cache, slot, {}).argv
        rendered: dict[str, Any] = json.loads(argv[argv.index("--kv-transfer-config") + 1])
        return rendered
    extra: dict[str, Any] = {
        "spec_name": "AnbarOffloadingSpec",
        "spec_module_path": "anbar.apps.plugin",
        "cpu_bytes_to_use": host_rows * PAGE,
        "offload_prompt_only": False,
    }
    tiers: dict[str, dict[str, Any]] = {
        "fs": {"type": "fs", "root_dir": str(root)},
        "files": {"type": "AnbarSharedTier", "module_path": "anbar.apps.plugin"},
        "nothing": {"type": "NullTier", "module_path": NULL_MODULE, "weighs_loads": False},
    }
    if kind in tiers:
        extra["secondary_tiers"] = [tiers[kind]]
    if kind == "files":
        store = {"kind": "files", "path": str(root), "capacity_bytes": 1 << 30}
        tiers[kind].update(store=store, load="always", weights_id="none")
    ours = kind in ("files", "nothing")
    connector = {"kv_connector": "OffloadingConnector"}
    if ours:
        connector = {"kv_connector": "AnbarConnector", "kv_connector_module_path": "anbar.apps.plugin"}
    return {
        **connector,
        "kv_role": "kv_both",
        "engine_id": f"drive-{root.parent.name}-{kind}",
        "kv_connector_extra_config": extra,
    }


@dataclass(frozen=True)
class Load:
    """What one run of steps took. `wall_s` without the waiting between steps; `cpu_s` of the whole process,
    `main_s` of the thread of the scheduler."""

    what: str
    num_chunks: int
    num_cached: int
    """Of these, chunks that were not computed."""
    num_steps: int
    wall_s: float
    cpu_s: float
    main_s: float
    steps_us: list[float]
    methods_s: dict[str, float]


def paced(drive: Drive, meter: Meter, what: str, arrivals: Iterator[list[Request]]) -> Load:
    """Steps until all requests are answered, a new batch of them before each step."""
    requests: list[Request] = []
    meter.take()
    steps_us, busy_s, computed = [], 0.0, 0
    cpu_s, main_s = time.process_time(), time.thread_time()
    next_s = time.monotonic()
    while True:
        for request in next(arrivals, []):
            requests.append(request)
            drive.scheduler.add_request(request)
        if requests and not drive.is_busy():
            break
        began_s, before = time.perf_counter(), sum(meter.ns.values())
        calls = sum(meter.calls.values())
        computed += drive.step()
        busy_s += time.perf_counter() - began_s
        inside = float(sum(meter.ns.values()) - before)
        inside -= (sum(meter.calls.values()) - calls) * meter.overhead_ns
        steps_us.append(inside / 1e3)
        next_s = max(next_s + STEP_S, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))
    return Load(
        what,
        sum(len(request.block_hashes) for request in requests),
        (sum(request.num_prompt_tokens for request in requests) - computed) // BLOCK,
        len(steps_us),
        busy_s,
        time.process_time() - cpu_s,
        time.thread_time() - main_s,
        steps_us,
        meter.take(),
    )


def prompts(seed: int, num: int, chunks: int = CHUNKS) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(1000, 40_000) for _ in range(chunks * BLOCK + 1)] for _ in range(num)]


def batches(drive: Drive, texts: list[list[int]], size: int) -> Iterator[list[Request]]:
    """Made before they are measured: hashing is the engine's."""
    requests = [drive.request(text) for text in texts]
    return iter([requests[i : i + size] for i in range(0, len(requests), size)])


def one_round(drive: Drive, meter: Meter, seed: int, seconds: float) -> list[Load]:
    """Unknown prompts; the same again, from the store, since neither device nor host RAM holds so many; and
    steps of answers in which no chunk is filled."""
    num = int(seconds / STEP_S) * PROMPTS_PER_STEP
    texts = prompts(seed, num)
    loads = [
        paced(drive, meter, "unknown", batches(drive, texts, PROMPTS_PER_STEP)),
        paced(drive, meter, "again", batches(drive, texts, PROMPTS_PER_STEP)),
    ]
    short = [drive.request(text, max_tokens=BLOCK - 2) for text in prompts(seed + 1, 32, 0)]
    loads.append(paced(drive, meter, "answers", iter([short])))
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["native", "nothing", "files", "fs"])
    parser.add_argument("--lmcache", type=int, default=0, help="port of a server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    init_none_hash(sha256)
    drives: dict[str, Drive] = {}
    for kind in options.kinds:
        root = options.scratch / kind
        root.mkdir(parents=True)
        drives[kind] = Drive(vllm_config(options.model, offloading(kind, root, options.lmcache)))
    meter = Meter()
    meter.calibrate()
    results: dict[str, Any] = {kind: {"tier": [], "connector": []} for kind in drives}
    for number in range(options.rounds + 1):
        for kind in options.kinds if number % 2 else options.kinds[::-1]:
            for index, what in enumerate(("tier", "connector")):
                if (not number and index) or not drives[kind].measured_by(meter, what):
                    continue
                seconds = options.seconds if number else 0.5  # the first round warms up
                loads = one_round(drives[kind], meter, 1000 * number + 100 * index, seconds)
                meter.unwrap()
                if number:
                    results[kind][what].append([asdict(load) for load in loads])
    for drive in drives.values():
        drive.close()
    options.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
