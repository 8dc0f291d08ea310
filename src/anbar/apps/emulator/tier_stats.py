"""What an emulated engine measures of its connector and of the tiers below the device, as vLLM does."""

import contextlib
from collections.abc import Sequence

from anbar.apps.emulator.histograms import Page
from anbar.apps.emulator.settings import EngineSettings
from anbar.apps.emulator.tier_families import Family, connector, shared_tier, tiering
from anbar.core.cost import EngineCost
from anbar.sim.engine.connector import Connector
from anbar.sim.engine.shared import SharedLink
from anbar.sim.engine.step import Step
from anbar.sim.engine.tier_work import Answers, Move, TierWork
from anbar.tier import part_counts
from anbar.tier.admission import cost_gauges
from anbar.tier.tally import LOAD_BANDWIDTH, Series
from anbar.tier.transfers import Direction

_TIMES = frozenset(
    {
        Series.SECONDS,
        Series.COMPUTE_SECONDS,
        Series.LOAD_SECONDS,
        Series.SECONDS_SAVED,
        Series.SECONDS_FORGONE,
        Series.FILTERED_SECONDS,
    }
)
_HOST = "0:primary"
_LOAD, _STORE = "CPU_to_GPU", "GPU_to_CPU"


class TierStats:
    """Metrics of the connector. Times of the model's clock are divided by `speed`. A lookup takes none of it:
    what a real one blocks the scheduler is part of a step's cost."""

    def __init__(self, settings: EngineSettings) -> None:
        shape = settings.shape
        self._token_bytes = shape.kv_bytes_per_token
        self._chunk_bytes = self._token_bytes * shape.block_size
        self._chunk_bytes *= settings.host_tier.chunk_blocks if settings.host_tier is not None else 1
        self._speed = settings.speed
        self._tier = f"1:{settings.tier_type}"
        self._store = settings.store_owner.removeprefix("anbar:")
        self._is_ours = settings.shared is not None and settings.tier_type == "AnbarSharedTier"
        families = connector()
        families += tiering() if settings.tiering else []
        families += shared_tier() if self._is_ours else []
        self._families: dict[str, Family] = {
            family.name.removeprefix("vllm:kv_offload_"): family for family in families
        }
        for name in ("total_bytes", "total_time", "size"):
            for direction in (_LOAD, _STORE):
                self._families[name].begin(direction)
        self._is_tiering = settings.tiering
        self._part_counts = part_counts.PartCounts()

    def show(self, page: Page, tiers: Connector) -> None:
        """All families, measured or not. What the store holds is looked up now: counting takes too long for
        every step."""
        if self._is_ours and tiers.link is not None:
            with contextlib.suppress(OSError):
                self._families["anbar_tier_used_bytes"].set(tiers.link.used_bytes, self._store)
        for family in self._families.values():
            family.show(page)

    def step_ended(self, step: Step, tiers: Connector, cost: EngineCost) -> None:
        """A step is over; `tiers` are as it left them."""
        work, family = step.tier_work, self._families
        assert work is not None
        load_s = cost.load.seconds(step.num_loaded_tokens * self._token_bytes, step.num_load_copies)
        store_s = cost.store.seconds(step.num_stored_tokens * self._token_bytes, step.num_store_copies)
        self._copied("load", _LOAD, work.loads, load_s)
        self._copied("store", _STORE, work.stores, store_s)
        family["lookup_sync_delay_seconds"].observe([0.0] * work.num_lookups)
        family["lookup_async_delay_seconds"].observe(self._passed(work.delays_s))
        if work.num_refused:
            family["allocation_failure"].add(work.num_refused)
        family["cpu_allocation_size"].observe(work.allocations)
        writes, reads = tiers.host.write_usage, tiers.host.read_usage
        family["cpu_cache_usage_perc"].set(writes + reads)
        family["cpu_cache_write_usage_perc"].set(writes)
        family["cpu_cache_read_usage_perc"].set(reads)
        if self._is_tiering:
            self._tiers(work, tiers)

    def _copied(self, verb: str, direction: str, tokens: Sequence[int], seconds: float) -> None:
        if not tokens:
            return
        sizes = [num * self._token_bytes for num in tokens]
        family = self._families
        for names in ((f"{verb}_bytes",), ("total_bytes", direction)):
            family[names[0]].add(sum(sizes), *names[1:])
        for names in ((f"{verb}_time",), ("total_time", direction)):
            family[names[0]].add(seconds / self._speed, *names[1:])
        for names in ((f"{verb}_size",), ("size", direction)):
            family[names[0]].observe(sizes, *names[1:])

    def _tiers(self, work: TierWork, tiers: Connector) -> None:
        self._answered(work.host, _HOST)
        if work.num_unplaced:
            self._families["tiering_promotion_allocation_failures"].add(work.num_unplaced)
        if tiers.link is None:
            return
        self._answered(work.shared, self._tier)
        for move in work.moves:
            self._moved(move)
        moves = (("promotion", "write", Direction.LOAD), ("cascade", "read", Direction.STORE))
        for name, usage, direction in moves:
            num_jobs, num_chunks = tiers.link.under_way(direction)
            self._families[f"tiering_active_{name}_jobs"].set(num_jobs, self._tier)
            share = num_chunks / tiers.host.num_chunks
            self._families[f"tiering_primary_{usage}_usage_perc"].set(share, self._tier)
        if self._is_ours:
            self._counted(tiers.link)

    def _answered(self, answers: Answers, tier: str) -> None:
        family = self._families
        if answers.num_queries:
            family["tiering_chunk_queries"].add(answers.num_queries, tier)
        if answers.num_hits:
            family["tiering_chunk_hits"].add(answers.num_hits, tier)
        family["tiering_lookup_sync_delay_seconds"].observe([0.0] * answers.num_queries, tier)
        family["tiering_lookup_async_delay_seconds"].observe(self._passed(answers.delays_s), tier)

    def _moved(self, move: Move) -> None:
        """A part of a load is worth something, a part of a store is not."""
        loads = move.direction is Direction.LOAD
        name, verb = ("promotion", "read") if loads else ("cascade", "write")
        if not move.ok:
            self._families[f"tiering_{name}_job_failures"].add(1, self._tier)
            if not (loads and move.num_chunks):
                return
        self._families[f"tiering_{verb}_bytes"].add(move.num_chunks * self._chunk_bytes, self._tier)
        self._families[f"tiering_{verb}_time"].add(move.seconds / self._speed, self._tier)

    def _counted(self, link: SharedLink) -> None:
        family, store = self._families, self._store
        for (series, label), amount in link.tally.take().items():
            divisor = self._speed if series in _TIMES else 1
            family[series.value].add(amount / divisor, store, label)
        family["anbar_tier_defects"].add(0, store)
        family["anbar_tier_breaker_opened"].add(link.breaker.take_num_opened(), store)
        family["anbar_tier_breaker_state"].set(link.breaker.state().value, store)
        family["anbar_tier_store_writable"].set(link.is_writable, store)
        if num_evicted := link.take_num_evicted():
            family["anbar_tier_evicted"].add(num_evicted, store)
        family["anbar_tier_reuse_filter"].set(link.gate.is_engaged, store)
        for name, value in cost_gauges(link.admission).items():
            family[name].set(value / (self._speed if name != LOAD_BANDWIDTH else 1 / self._speed), store)
        if link.capacity_bytes is not None:
            family["anbar_tier_capacity_bytes"].set(link.capacity_bytes, store)
        parts = link.part_stats()
        for sample in part_counts.gauges(parts):
            family[sample.name].set(sample.value, store, *sample.labels)
        for sample in self._part_counts.take(parts):
            family[sample.name].add(sample.value, store, *sample.labels)

    def _passed(self, seconds: Sequence[float]) -> list[float]:
        return [value / self._speed for value in seconds]
