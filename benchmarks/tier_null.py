"""A shared tier over a store that holds nothing and does nothing: what is left is the plugin itself. Loaded
by vLLM, by module path."""

from collections.abc import Sequence

from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

from anbar.adapters.vllm.shared_tier import SharedTier, SharedTierOptions
from anbar.apps.clock import SystemClock
from anbar.tier.store import Outcome, PutItem, Scope, StoreStats

NULL_MODULE = __name__


class NullStore:
    """Remembers which keys it was given, and answers at once. What it "reads" is what was in the buffer."""

    id = "null"

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        known = self._keys
        return [Outcome.HIT if key in known else Outcome.MISS for key in keys]

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        return self.exists(keys, scope=scope, timeout_s=timeout_s)

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        self._keys.update([item.key for item in items])
        return [Outcome.HIT] * len(items)

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        return [Outcome.MISS] * len(keys)

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        return Outcome.MISS

    def take_evicted(self) -> list[bytes]:
        return []

    def stats(self) -> StoreStats:
        return StoreStats(None, None, None)

    def close(self) -> None:
        pass


class NullTier(SharedTier):
    """The shared tier over it."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        *,
        weighs_loads: bool = True,
    ) -> None:
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            backpressure_detector,
            store=NullStore(),
            clock=SystemClock(),
            options=SharedTierOptions(weighs_loads=weighs_loads),
        )
