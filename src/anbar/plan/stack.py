"""What the advisor is asked about: engines, and what there is below them for KV."""

from dataclasses import dataclass

from anbar.plan.answer import in_words
from anbar.plan.catalogue import GEN4_BYTES_PER_S
from anbar.plan.deployment import Deployment, Impossible
from anbar.plan.media import MEDIA, Medium

NATIVE_OVERHEAD = 0.025
"""Share of an engine's throughput that storing to host RAM takes: vLLM's own test at no hits (published: 1.5
% on 16 x H100, 2.5 % with copy engines)."""
SHARED_OVERHEAD = 0.04
"""With a store behind it: published 3.4 to 4.0 % for host RAM and storage together."""


LOOKUP_S = 0.001
"""Asking a store that is not in the machine, within a data centre: what Valkey takes."""


@dataclass(frozen=True, slots=True)
class StoreTier:
    """A store below host RAM."""

    name: str
    """In the catalogue of media."""
    medium: Medium
    num_bytes: int | None = None
    """None: nobody said; as if without bounds."""
    round_trip_s: float = 0.0
    """To it, on top of the medium's own latency."""

    @property
    def lookup_s(self) -> float:
        """Every prompt that may be in it waits so long to hear whether it is."""
        return (0.0 if self.medium.is_local else LOOKUP_S) + self.round_trip_s


@dataclass(frozen=True, slots=True)
class Stack:
    """Equal engines. Sizes are of one engine, over all its ranks, unless they say otherwise."""

    engine: Deployment
    num_engines: int = 1
    pool_tokens: int | None = None
    """Of the device, as vLLM logs it; None: estimated."""
    host_bytes: int | None = None
    """RAM that can be given to each engine; None: nobody said."""
    host: Medium | None = None
    """How it is reached; None: by the GPU's PCIe."""
    store: StoreTier | None = None
    chunk_tokens: int = 256
    """Stored and loaded together: of a shorter prompt nothing is stored."""
    has_affinity: bool = True
    """Requests go where their prefix is, so that the engines' caches count as one."""
    concurrency: float | None = None
    """Requests at a time, on all engines, that wait for answers before they send more; None: requests come
    when the log says."""
    slo_ttft_s: float | None = None
    uses_speculation: bool = False
    runs_lmcache: bool = False
    """An LMCache server is there already."""
    native_overhead: float = NATIVE_OVERHEAD
    shared_overhead: float = SHARED_OVERHEAD

    def check(self) -> None:
        """Raises Impossible, which names the field."""
        self.engine.check(self.pool_tokens, self.host_bytes)
        chunk = self.chunk_tokens * self.engine.host_bytes_per_token
        sizes = {"ram": self.host_bytes, "store": None if self.store is None else self.store.num_bytes}
        for field, num_bytes in sizes.items():
            if num_bytes is not None and num_bytes < chunk and (num_bytes or field == "store"):
                none = "0 for none, or " if field == "ram" else ""
                raise Impossible(
                    field,
                    f"is {num_bytes:,} bytes; allowed: {none}at least one chunk of {self.chunk_tokens} "
                    f"tokens, {in_words(chunk, 'bytes')}; sizes have units, such as 100GB",
                )

    @property
    def pool(self) -> int:
        """Tokens that one engine's device holds."""
        return self.pool_tokens if self.pool_tokens is not None else self.engine.pool_tokens

    @property
    def host_medium(self) -> Medium:
        if self.host is not None:
            return self.host
        is_gen4 = self.engine.gpu.host_bytes_per_s <= GEN4_BYTES_PER_S
        return MEDIA["host-pcie4" if is_gen4 else "host-pcie5"]

    @property
    def host_tokens(self) -> int:
        """That the RAM of one engine holds; 0 without."""
        return (self.host_bytes or 0) // self.engine.host_bytes_per_token

    @property
    def num_joined(self) -> int:
        """Engines whose caches count as one."""
        return self.num_engines if self.has_affinity else 1

    @property
    def num_apart(self) -> int:
        """Caches between which requests go round, without regard to what is in them."""
        return 1 if self.has_affinity else self.num_engines
