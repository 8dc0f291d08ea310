"""Requests without a model, for `soak_tiers`: vLLM's real manager of tiers over the real shared tier and
store; runs in the engine's interpreter.

    python soak_worker.py <settings of the store, JSON> <seconds> <seed>

What stands for KV are bytes that follow from the chunk's key. Each row that a request would read is compared.
A line of JSON on standard output for each moment of rest, in which nothing runs; a failed assertion ends it.
"""

import hashlib
import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import psutil
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingKVEventsConfig,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import OffloadingGroupConfig
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

from anbar.adapters.vllm.shared_tier import SharedTier, SharedTierOptions
from anbar.apps.clock import SystemClock
from anbar.apps.plugin import timeouts
from anbar.apps.stores import open_store
from anbar.config.store_checks import read_store

ROWS, ROW_BYTES, CHUNK_TOKENS = 96, 65_536, 32
REQUESTS = 6
"""At the same time."""
DOCUMENTS, LONGEST = 150, 24
"""Prompts that come again and again, and chunks of the longest: more than host RAM and the stores hold."""
SCOPES = ("", "one", "two")
STUCK_S = 120.0
"""A request whose prompt was not decided for so long, on however busy a machine, is stuck."""
REST_S = 10.0
STEP_S = 0.01


class Region:
    """Host RAM, in place of vLLM's file in /dev/shm."""

    def __init__(self) -> None:
        self.rows = np.zeros((ROWS, ROW_BYTES), dtype=np.int8)

    def create_kv_memoryview(self) -> memoryview:
        return memoryview(self.rows)

    def cleanup(self) -> None:
        """Nothing to remove."""


@dataclass
class Request:
    """A prompt on its way."""

    context: ReqContext
    keys: list[OffloadKey]
    since_s: float = field(default_factory=time.monotonic)


class Soak:
    """vLLM's scheduler, as far as the tiers see it."""

    def __init__(self, settings: dict[str, object], seed: int) -> None:
        self._random = random.Random(seed)
        self._region = Region()
        primary = CPUPrimaryTierOffloadingManager(ROWS, self._region)
        spec = SimpleNamespace(
            kv_events_config=OffloadingKVEventsConfig(True, False),
            config=SimpleNamespace(groups=(OffloadingGroupConfig(CHUNK_TOKENS, ("layers.0",), 0),)),
            blocks_per_chunk=1,
        )
        store = read_store(settings)
        tier = SharedTier(
            spec,
            primary.get_kv_memoryview(),
            "AnbarSharedTier",
            None,
            store=open_store(store, b"soak" * 8),
            clock=SystemClock(),
            options=SharedTierOptions(timeouts(store)),
        )
        self._primary = primary
        self._manager = TieringOffloadingManager(primary, [tier])
        self._requests: list[Request] = []
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0

    def step(self, *, more: bool) -> None:
        """One step of an engine; with `more`, new requests take the places of finished ones."""
        while more and len(self._requests) < REQUESTS:
            self._requests.append(self._new())
        self._requests = [request for request in self._requests if not self._advance(request)]
        self._manager.on_schedule_end(ScheduleEndContext((), ()))
        self.counts["events"] += sum(1 for _ in self._manager.take_events())
        stats = self._manager.get_stats()
        if stats is not None:
            for labels, number in stats.data.get("data", {}).get("anbar_tier_loads", {}).items():
                self.counts[f"loads {labels[-1]}"] += int(number)

    def rest(self) -> dict[str, object]:
        """No new requests until all have ended; then no slot of host RAM is held."""
        deadline_s = time.monotonic() + STUCK_S
        while self._requests or self._manager.has_pending_work():
            assert time.monotonic() < deadline_s, f"stuck: {len(self._requests)} requests"
            self.step(more=False)
            time.sleep(STEP_S)
        held = self._primary._num_allocated_chunks - len(self._primary._free_list)
        assert self._primary._num_write_pending_chunks == 0
        assert held == self._primary._num_evictable_cache_chunks, "a slot was not returned"
        process = psutil.Process()
        return {
            "memory_mib": round(process.memory_info().rss / 2**20, 1),
            "threads": threading.active_count(),
            "files": process.num_fds(),
            "longest_s": round(self.longest_s, 2),
            **self.counts,
        }

    def close(self) -> None:
        self._manager.shutdown()

    def _new(self) -> Request:
        choose = self._random
        number = self.counts["requests"] = self.counts["requests"] + 1
        scope = choose.choice(SCOPES)
        fields: dict[str, object] = {"v": 1, "scope": scope}
        if choose.random() < 0.1:
            fields["store"] = choose.choice(("always", "never"))
        document = min(choose.randrange(DOCUMENTS), choose.randrange(DOCUMENTS))
        keys = [key(scope, document, index) for index in range(choose.randint(1, LONGEST))]
        context = ReqContext(str(number), {"anbar": fields})
        for index, one in enumerate(keys):
            context.set_offload_key_position(one, CHUNK_TOKENS * (index + 1))
        self._manager.on_new_request(context)
        return Request(context, keys)

    def _advance(self, request: Request) -> bool:
        """Whether it has ended: what the tiers have of its prompt was read, and the rest is stored."""
        num_found, waits = 0, False
        for one in request.keys:
            answer = self._manager.lookup(one, request.context)
            if answer is LookupResult.MISS:
                break
            waits |= answer is not LookupResult.HIT
            num_found += 1
        taken_s = time.monotonic() - request.since_s
        if waits:
            assert taken_s < STUCK_S, "stuck: the tiers neither have it nor say so"
            return False
        self.longest_s = max(self.longest_s, taken_s)
        self._read(request, request.keys[:num_found])
        self._write(request, request.keys[num_found:])
        self._manager.on_request_finished(request.context)
        return True

    def _read(self, request: Request, keys: list[OffloadKey]) -> None:
        if not keys:
            return
        rows = self._manager.prepare_load(keys, request.context).chunk_ids
        for one, row in zip(keys, rows, strict=True):
            assert np.array_equal(self._region.rows[row], content(one)), "another chunk's bytes"
        self._manager.complete_load(keys, request.context)
        self.counts["read"] += len(keys)

    def _write(self, request: Request, keys: list[OffloadKey]) -> None:
        prepared = self._manager.prepare_store(keys, request.context) if keys else None
        if prepared is None or not prepared.keys_to_store:
            return
        for one, row in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self._region.rows[row] = content(one)
        self._manager.complete_store(prepared.keys_to_store, request.context)
        self.counts["written"] += len(prepared.keys_to_store)


def key(scope: str, document: int, index: int) -> OffloadKey:
    return make_offload_key(hashlib.sha256(f"{scope}/{document}/{index}".encode()).digest(), 0)


def content(one: OffloadKey) -> np.ndarray:
    """What a chunk of this key holds."""
    return np.resize(np.frombuffer(hashlib.sha512(one).digest(), dtype=np.int8), ROW_BYTES)


def main(settings: dict[str, object], seconds: float, seed: int) -> None:
    soak = Soak(settings, seed)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        rest_s = time.monotonic() + REST_S
        while time.monotonic() < rest_s:
            soak.step(more=True)
            time.sleep(STEP_S)
        print(json.dumps(soak.rest()), flush=True)
    soak.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
