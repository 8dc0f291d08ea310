"""Where a LoRA adapter would run at once, and where it would have to be brought first.

An engine that serves an adapter keeps up to `max_loras` of all that it serves in slots next to the weights.
One that is not in a slot is loaded into a free one, or in place of one that no running request uses; while
running requests use all slots, vLLM lets the request wait (`v1/core/sched/scheduler.py`, `max_loras`).
"""

from enum import Enum

from anbar.core.fleet import EngineView
from anbar.core.request import RouteQuery

LOAD_S = 0.05
"""Seconds to bring an adapter into a slot: a guess. One of rank 16 to 64 for a model of 8B has 40 to 160
MB, which come from host memory or a disk."""


class AdapterPlace(Enum):
    """What a request's adapter finds at an engine."""

    LOADED = "loaded"
    """A slot has it, or the request needs none."""
    FREE_SLOT = "free_slot"
    NO_SLOT = "no_slot"
    """Running requests use all slots for others."""


def adapter_place(query: RouteQuery, engine: EngineView) -> AdapterPlace:
    """What the adapter of `query` would find at `engine`, which serves it."""
    if query.lora is None or query.lora in engine.adapters:
        return AdapterPlace.LOADED
    return AdapterPlace.NO_SLOT if engine.adapters_full else AdapterPlace.FREE_SLOT


def adapter_wait_s(query: RouteQuery, engine: EngineView) -> float:
    """Seconds until the adapter is there; how long a slot takes to come free nobody knows, and where that
    counts it counts for all candidates."""
    return 0.0 if adapter_place(query, engine) is AdapterPlace.LOADED else LOAD_S
