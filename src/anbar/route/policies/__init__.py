"""The routing policies, one file each; a new one is a class with `name` and `decide` and a line here."""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

from anbar.core.errors import ConfigError
from anbar.route.contract import Policy
from anbar.route.policies.least_loaded import LeastLoaded
from anbar.route.policies.predicted_ttft import PredictedTtft
from anbar.route.policies.round_robin import RoundRobin

POLICIES: Mapping[str, Callable[[Random], Policy]] = MappingProxyType(
    {
        "predicted_ttft": PredictedTtft,
        "least_loaded": LeastLoaded,
        "round_robin": lambda _rng: RoundRobin(),
    }
)
"""Name in `anbar.yaml` (`router.policy`) → constructor, given the random source that breaks ties."""


def make_policy(name: str, rng: Random) -> Policy:
    """The policy called `name`; raises `ConfigError` naming what is allowed."""
    try:
        return POLICIES[name](rng)
    except KeyError:
        allowed = ", ".join(sorted(POLICIES))
        raise ConfigError(f"router.policy: {name!r} is not a policy; allowed: {allowed}") from None


__all__ = ["POLICIES", "LeastLoaded", "PredictedTtft", "RoundRobin", "make_policy"]
