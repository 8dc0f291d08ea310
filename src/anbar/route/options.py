"""What can be set of the policies; `router` in `anbar.yaml` has the same keys."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The settings of all policies; each reads its own."""

    session_bound: float = 1.5
    """`session`: an engine with more than this times the mean of requests in flight gets no more."""
    prefix_min_match: float = 0.3
    """`prefix`: share of the prompt that must be matched for the engine to be chosen for it."""
    prefix_spill_ratio: float = 1.5
    """`prefix`: an engine with more than this times the mean of requests in flight is not chosen for what it
    has matched."""

    def __post_init__(self) -> None:
        if self.session_bound < 1 or self.prefix_spill_ratio < 1:
            raise ValueError("a bound on load below the mean leaves no engine")
        if not 0 <= self.prefix_min_match <= 1:
            raise ValueError(f"prefix_min_match is {self.prefix_min_match}, must be from 0 to 1")
