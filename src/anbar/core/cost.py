"""Costs in seconds: what it takes to compute tokens, and to load them from a tier."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Time to compute prompt tokens m..L: `overhead + a*(L-m) + b*(L^2-m^2)`.

    The quadratic term is attention: token i attends to i predecessors.
    """

    a_s_per_token: float
    b_s_per_token2: float = 0.0
    overhead_s: float = 0.0

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        """Seconds to compute tokens `num_cached`..`num_tokens`; 0.0 when nothing is left to compute."""
        if num_tokens <= num_cached:
            return 0.0
        linear = self.a_s_per_token * (num_tokens - num_cached)
        quadratic = self.b_s_per_token2 * (num_tokens**2 - num_cached**2)
        return self.overhead_s + linear + quadratic


@dataclass(frozen=True, slots=True)
class TierCost:
    """Time to bring bytes from a tier to the device: `latency + bytes / bandwidth`."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: int) -> float:
        """Seconds to load `num_bytes`; 0.0 for nothing."""
        return self.latency_s + num_bytes / self.bytes_per_s if num_bytes > 0 else 0.0
