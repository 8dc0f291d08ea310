"""A request's `kv_transfer_params`: what vLLM and Anbar's shared tier read from it.

What cannot be understood is ignored, as vLLM does (0.32
`distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from anbar.apps.emulator.nixl import gives, reported, takes
from anbar.tier.wish import DEFAULT, Wish
from anbar.tier.wish import parse as parse_wish

_MEDIA, _LOCALITIES = ("CPU", "STORAGE"), ("LOCAL", "REMOTE")


@dataclass(frozen=True, slots=True)
class TransferParams:
    """What a request asks of the tiers below the device."""

    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    loads_shared: bool = True
    """Whether `kv_load_tiers` lets it load from a shared store."""
    wish: Wish = DEFAULT
    gives: bool = False
    """Another engine is to fetch the prompt's blocks."""
    takes: bool = False
    """The prompt's blocks are another engine's."""
    reported_cached: int | None = None
    """What usage shows as cached, instead of what was."""


NOTHING = TransferParams()


def parse(params: Mapping[str, object] | None) -> TransferParams:
    """Never raises."""
    if not params:
        return NOTHING
    return TransferParams(
        _limit(params, "max_load_tokens"),
        _limit(params, "max_offload_tokens"),
        _allows_store(params.get("kv_load_tiers")),
        parse_wish(params),
        gives(params),
        takes(params),
        reported(params),
    )


def _limit(params: Mapping[str, object], name: str) -> int | None:
    value = params.get(name)
    return value if type(value) is int and value >= 0 else None


def _allows_store(tiers: object) -> bool:
    """An empty list allows nothing, one without an entry that can be read everything."""
    if not isinstance(tiers, list) or not tiers:
        return tiers != []
    matchers = [matcher for matcher in map(_matcher, tiers) if matcher is not None]
    return not matchers or any(
        medium in (None, "STORAGE") and locality in (None, "REMOTE") for medium, locality in matchers
    )


def _matcher(entry: object) -> tuple[str | None, str | None] | None:
    """Medium and locality that an entry names; None when it cannot be read."""
    if not isinstance(entry, dict):
        return None
    found = []
    for name, known in (("medium", _MEDIA), ("locality", _LOCALITIES)):
        value = entry.get(name)
        if value is not None:
            value = value.upper() if isinstance(value, str) else ""
            if value not in known:
                return None
        found.append(value)
    return found[0], found[1]
