"""A store of the configuration as a modelled one: the same kinds, members and deadlines, other bytes."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anbar.adapters.store.key_directory import KeyDirectory
from anbar.adapters.store.record import short_digest
from anbar.apps.emulator.store_costs import FREE
from anbar.config.store_checks import read_store
from anbar.config.stores import COMPOSED, StoreConfig, StoreKind, WriteOrder, store_settings
from anbar.core.cost import StoreCost
from anbar.core.errors import StoreError
from anbar.sim.engine.chunks import Chunks, ChunkTable
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import Node, SharedCost, StorePart, StoreParts
from anbar.tier.placement import Layers, Rendezvous

_STORE_BYTES = 1 << 40
"""Room of a store that has no `capacity_bytes`."""
_MAX_LOOKUP_TIMEOUT_S = 0.5
"""As the plugin has it."""
_NOWHERE = "/emulated"
"""Path of a `files` store that was given none: none is touched."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """What is said of the store beside its configuration. `costs`: by kind; `directory`: where engines of
    several processes note what is in it, None: in this process."""

    costs: Mapping[str, StoreCost]
    chunk_bytes: int
    directory: Path | None = None
    weighs_loads: bool = True


def modelled(settings: Mapping[str, Any], plan: StorePlan) -> tuple[SharedTier, str]:
    """The store, and its id. ConfigError for settings that a real engine would refuse, StoreError when the
    directory cannot be used."""
    is_files = settings.get("kind", StoreKind.FILES) == StoreKind.FILES
    config = read_store({"path": _NOWHERE, **settings} if is_files else settings)
    if plan.directory is not None:
        _check(plan.directory)
    store = _node(config, plan)
    whole = _cost(config, plan.costs)
    return SharedTier(store, whole, _capacity(config), weighs_loads=plan.weighs_loads), store.id


def _node(config: StoreConfig, plan: StorePlan) -> Node:
    name = _id(config)
    if config.kind not in COMPOSED:
        return StorePart(name, _chunks(config, name, plan), _cost(config, plan.costs))
    members = tuple(_node(member, plan) for member in config.members)
    if config.kind is StoreKind.REPLICATED:
        return StoreParts(name, members, Rendezvous([member.id for member in members], config.copies))
    return StoreParts(name, members, Layers(len(members)), write_back=config.write is WriteOrder.BACK)


def _id(config: StoreConfig) -> str:
    if config.id is None and str(config.path) == _NOWHERE:
        return "emulated"
    name: str = store_settings(config, Path())["id"]
    return name


def _cost(config: StoreConfig, costs: Mapping[str, StoreCost]) -> SharedCost:
    """Of a store that is made of others only the deadlines count."""
    cost = costs.get(config.kind, FREE)
    lookup_s = min(_MAX_LOOKUP_TIMEOUT_S, config.timeout_s)
    return SharedCost(cost.lookup_s, cost.load, cost.store, timeout_s=lookup_s, deadline_s=config.timeout_s)


def _chunks(config: StoreConfig, name: str, plan: StorePlan) -> Chunks:
    num_chunks = max(1, (config.capacity_bytes or _STORE_BYTES) // plan.chunk_bytes)
    if plan.directory is None:
        return ChunkTable(num_chunks)
    directory = plan.directory / short_digest(name.encode()).hex()
    directory.mkdir(exist_ok=True)
    return KeyDirectory(directory, num_chunks)


def _capacity(config: StoreConfig) -> int | None:
    """As the real ones count it: copies as they are stored, of layers the last one's."""
    if config.kind is StoreKind.LAYERED:
        return _capacity(config.members[-1])
    if config.kind is StoreKind.REPLICATED:
        known = [size for size in map(_capacity, config.members) if size is not None]
        return sum(known) if len(known) == len(config.members) else None
    return config.capacity_bytes


def _check(directory: Path) -> None:
    """StoreError when files cannot be put there."""
    probe = directory / f".probe-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise StoreError(f"--shared-dir {directory} cannot be used: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
