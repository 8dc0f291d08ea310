"""The models of `cache.store`, and what engines and router make of it."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from anbar.config.fields import Bytes, ConfigModel, Name, NamedPath, Seconds
from anbar.config.problems import dotted, from_pydantic
from anbar.core.errors import ConfigError


class StoreKind(StrEnum):
    """What holds the shared tier."""

    FILES = "files"


class StoreConfig(ConfigModel):
    """The shared store: one per stack, the same for all engines."""

    kind: StoreKind = StoreKind.FILES
    """files: a directory, on a local disk or a file system that all machines mount."""

    path: NamedPath | None = None
    """Directory of a `files` store. null: `<state_dir>/store`."""

    id: Name | None = None
    """Stable name of the store in KV events; equal on every machine that shares it. null: `files-` and a
    digest of the absolute path."""

    capacity_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Most bytes of entries; the least recently used go first. null: as much as the file system has, of which
    5 % always stay free."""

    timeout_s: Seconds = 5.0
    """Deadline of one call on the store; later it counts as a miss and the engine recomputes."""


def store_settings(store: StoreConfig, state_dir: Path) -> dict[str, Any]:
    """The store as plain data, with nothing left to default: equal for all engines and the router."""
    path = store.path if store.path is not None else state_dir / "store"
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    settings: dict[str, Any] = {
        "kind": str(store.kind),
        "path": str(path),
        "id": store.id if store.id is not None else f"{store.kind}-{digest}",
        "timeout_s": store.timeout_s,
    }
    if store.capacity_bytes is not None:
        settings["capacity_bytes"] = store.capacity_bytes
    return settings


def read_store(settings: Mapping[str, object]) -> StoreConfig:
    """A store from plain data, as an engine gets it. Raises ConfigError naming each key that is wrong."""
    try:
        store = StoreConfig.model_validate(settings)
    except ValidationError as error:
        problems = from_pydantic(error.errors(include_url=False), StoreConfig)
        texts = [f"{dotted(('store', *problem.path))} {problem.message}" for problem in problems]
        raise ConfigError("; ".join(texts)) from None
    if store.kind is StoreKind.FILES and store.path is None:
        raise ConfigError("store.path is required and not given")
    return store
