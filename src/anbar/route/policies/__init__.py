"""The routing policies, one file each; a new one is a class that obeys `anbar.route.contract` and a line
here."""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

from anbar.core.errors import ConfigError
from anbar.route.contract import Policy
from anbar.route.options import PolicyOptions
from anbar.route.policies.least_loaded import LeastLoaded
from anbar.route.policies.predicted_ttft import PredictedTtft
from anbar.route.policies.prefix import Prefix
from anbar.route.policies.random_choice import RandomChoice
from anbar.route.policies.round_robin import RoundRobin
from anbar.route.policies.session import Session

POLICIES: Mapping[str, Callable[[Random, PolicyOptions], Policy]] = MappingProxyType(
    {
        "predicted_ttft": lambda rng, _options: PredictedTtft(rng),
        "least_loaded": lambda rng, _options: LeastLoaded(rng),
        "round_robin": lambda _rng, _options: RoundRobin(),
        "session": Session,
        "prefix": Prefix,
        "random": lambda rng, _options: RandomChoice(rng),
    }
)
"""Name in `anbar.yaml` (`router.policy`) → constructor, given the random source and everybody's settings."""


def make_policy(name: str, rng: Random, options: PolicyOptions | None = None) -> Policy:
    """The policy called `name`; raises `ConfigError` naming what is allowed."""
    try:
        make = POLICIES[name]
    except KeyError:
        allowed = ", ".join(sorted(POLICIES))
        raise ConfigError(f"router.policy: {name!r} is not a policy; allowed: {allowed}") from None
    return make(rng, options if options is not None else PolicyOptions())


__all__ = [
    "POLICIES",
    "LeastLoaded",
    "PredictedTtft",
    "Prefix",
    "RandomChoice",
    "RoundRobin",
    "Session",
    "make_policy",
]
