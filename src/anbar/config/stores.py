"""The models of `cache.store`, and what engines and router make of it."""

import hashlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from anbar.config.fields import Bytes, ConfigModel, Int, Name, NamedPath, Seconds
from anbar.config.problems import KeyPath
from anbar.config.s3 import S3Config
from anbar.config.valkey import ValkeyStoreConfig, files_of_valkey


class StoreKind(StrEnum):
    """What holds the shared tier."""

    FILES = "files"
    S3 = "s3"
    LAYERED = "layered"
    REPLICATED = "replicated"
    VALKEY = "valkey"


COMPOSED = frozenset({StoreKind.LAYERED, StoreKind.REPLICATED})
"""Kinds that are made of other stores."""


class WriteOrder(StrEnum):
    """When a layered store has written."""

    THROUGH = "through"
    BACK = "back"


class StoreConfig(ConfigModel):
    """The shared store: one per stack, the same for all engines."""

    kind: StoreKind = StoreKind.FILES
    """files: a directory, on a local disk or a file system that all machines mount. s3: a bucket of S3, Ceph
    RGW, MinIO or the like. layered: several stores, the nearest in front; what a nearer one lacks is copied
    there when it was found further away. replicated: each entry in `copies` of several stores.
    valkey: a server or a cluster of Valkey or Redis."""

    path: NamedPath | None = None
    """Directory of a `files` store. null: `<state_dir>/store`; a member needs one."""

    id: Name | None = None
    """Stable name of the store in KV events; equal on every machine that shares it. null: the kind and a
    digest of the absolute path, of the servers' names, of endpoint, bucket and prefix, or of the members'
    ids. A replicated store places entries by its members' ids: where machines mount a member under different
    paths, give it one."""

    capacity_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Most bytes of entries of a `files` store; first go those whose bytes are expected to save the least
    computing: by the seconds that they save and the time since their last use. null: as much as the file
    system has, of which 5 % always stay free. Of a layered or replicated store each member has its own."""

    ttl_s: Seconds | None = None
    """Entries of a `files` store that were not used for so long are misses, and are removed. null: they stay
    while there is room. Other kinds have their own."""

    timeout_s: Seconds = 5.0
    """Deadline of one call on the store; later it counts as a miss and the engine recomputes. A member's
    bounds its part of the whole store's."""

    s3: S3Config | None = None
    """The bucket of an `s3` store."""
    valkey: ValkeyStoreConfig | None = None
    """Needed for a `valkey` store."""

    members: tuple["StoreConfig", ...] = ()
    """The stores that a layered or replicated one is made of, each with the keys of this table. They may be
    made of others again, three levels in all."""

    copies: Annotated[Int, Field(ge=1)] = 2
    """Of a replicated store: how many members hold each entry. All but one may be lost without losing it."""

    write: WriteOrder = WriteOrder.THROUGH
    """Of a layered store. through: writes go to all layers at the same time. back: to the first, and to the
    others in the background, from memory (64 MiB at most, past which they go through); a killed engine loses
    what waits there."""


def members_of(
    store: StoreConfig, path: KeyPath = ("cache", "store")
) -> Iterator[tuple[KeyPath, StoreConfig]]:
    """The store and all that it is made of, each with its key."""
    yield path, store
    for index, member in enumerate(store.members):
        yield from members_of(member, (*path, "members", index))


def with_paths(
    store: StoreConfig, place: Callable[[Path], Path], link: Callable[[Path], Path]
) -> StoreConfig:
    """The store with every path put through `place`, but files that are read again through `link`."""
    return store.model_copy(
        update={
            "s3": None if store.s3 is None else store.s3.with_files(link),
            "path": None if store.path is None else place(store.path),
            "valkey": None if store.valkey is None else files_of_valkey(store.valkey, link),
            "members": tuple(with_paths(member, place, link) for member in store.members),
        }
    )


def store_settings(store: StoreConfig, state_dir: Path) -> dict[str, Any]:
    """The store as plain data, with nothing left to default: equal for all engines and the router."""
    settings: dict[str, Any] = {"kind": str(store.kind), "timeout_s": store.timeout_s}
    if store.kind in COMPOSED:
        members = [store_settings(member, state_dir) for member in store.members]
        ids = [member["id"] for member in members]
        if store.kind is StoreKind.LAYERED:
            settings["write"] = str(store.write)
        else:
            settings["copies"] = store.copies
            ids.sort()
        settings["members"] = members
        identity = "\n".join(ids)
    elif store.s3 is not None:
        identity = store.s3.identity
        settings["s3"] = store.s3.model_dump(mode="json")
    elif store.valkey is not None:
        settings["valkey"] = store.valkey.model_dump(mode="json")
        identity = f"{','.join(sorted(store.valkey.nodes))}/{store.valkey.db}"
    else:
        identity = str(store.path if store.path is not None else state_dir / "store")
        settings["path"] = identity
        if store.capacity_bytes is not None:
            settings["capacity_bytes"] = store.capacity_bytes
        if store.ttl_s is not None:
            settings["ttl_s"] = store.ttl_s
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    settings["id"] = store.id if store.id is not None else f"{store.kind}-{digest}"
    return settings
