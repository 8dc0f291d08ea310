"""What the index believes of one engine, as bytes: for a router that comes late, from one that was there.

An engine replays its last 10,000 batches, and blocks older than these are in no event any more. A snapshot
has them. It names blocks by the engine's hash and by Anbar's chain hash, 16 bytes a block, and says where
they are with 4 more for each place. Blocks of the stores that the engine reads are in it too, with their
ages.

The bytes are msgpack; the first element is the version. What another version wrote is refused, as are blocks
of another model, block size or fingerprint: chain hashes and places would mean something else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from anbar.core.errors import WireError
from anbar.core.events import Tier
from anbar.core.ids import ChainHash
from anbar.route.profile import EngineProfile

VERSION = 1

RESTORE_BLOCKS = 1000
"""Blocks that are restored between two pauses: a few milliseconds."""

_KEY = np.dtype("<u8")
_INDEX = np.dtype("<u4")


class HeldPlace(msgspec.Struct, array_like=True, frozen=True):
    """The blocks of one place."""

    owner: str
    """"" for the engine itself, else the store's name."""
    tier: Tier
    group: int
    age: int
    """Epochs since the store announced them; 0 for other tiers."""
    blocks: bytes
    """Which of the snapshot's blocks, as uint32, little-endian."""
    copies: dict[int, int]
    """block → copies beyond the first."""


class EngineSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """All of it; see the module's text."""

    version: int
    model: str
    block_size: int
    fingerprint: str
    groups: list[int]
    """Cache groups that the engine announced on its device."""
    keys: bytes
    """The engine's hashes, as uint64, little-endian."""
    chains: bytes
    """The chain hashes of the first of them, likewise; no event has explained the others yet."""
    places: list[HeldPlace]


@dataclass(frozen=True, slots=True)
class Held:
    """One block in one place."""

    key: int
    chain: ChainHash | None
    """None: no device event has explained the key."""
    copies: int
    """Beyond the first."""


def encode(snapshot: EngineSnapshot) -> bytes:
    return msgspec.msgpack.encode(snapshot)


def decode(data: bytes, profile: EngineProfile) -> EngineSnapshot:
    """Read a snapshot for an engine with this profile; WireError if it is none, or of something else."""
    try:
        version = msgspec.msgpack.decode(data, type=list[msgspec.Raw])[:1]
        if [msgspec.msgpack.decode(raw) for raw in version] != [VERSION]:
            raise WireError(f"the snapshot is not of version {VERSION}")
        snapshot = msgspec.msgpack.decode(data, type=EngineSnapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a snapshot: {error}") from error
    ours = (profile.model, profile.block_size, profile.fingerprint)
    theirs = (snapshot.model, snapshot.block_size, snapshot.fingerprint)
    if ours != theirs:
        raise WireError(f"the snapshot is of {theirs}, the engine is {ours}")
    _check(snapshot)
    return snapshot


def held(snapshot: EngineSnapshot, place: HeldPlace) -> Iterator[list[Held]]:
    """The blocks of a place, some at a time."""
    keys, chains = np.frombuffer(snapshot.keys, _KEY), np.frombuffer(snapshot.chains, _KEY)
    blocks = np.frombuffer(place.blocks, _INDEX)
    for first in range(0, len(blocks), RESTORE_BLOCKS):
        some: list[Held] = []
        for block in blocks[first : first + RESTORE_BLOCKS].tolist():
            chain = ChainHash(int(chains[block])) if block < len(chains) else None
            some.append(Held(int(keys[block]), chain, place.copies.get(block, 0)))
        yield some


def _check(snapshot: EngineSnapshot) -> None:
    sizes = (len(snapshot.keys), len(snapshot.chains), *(2 * len(place.blocks) for place in snapshot.places))
    if any(size % _KEY.itemsize for size in sizes) or len(snapshot.chains) > len(snapshot.keys):
        raise WireError("the snapshot's columns do not fit together")
    num_blocks = len(snapshot.keys) // _KEY.itemsize
    for place in snapshot.places:
        blocks = np.frombuffer(place.blocks, _INDEX)
        if blocks.size and int(blocks.max()) >= num_blocks:
            raise WireError("the snapshot names a block that it does not have")
        if place.age < 0 or any(count < 1 for count in place.copies.values()):
            raise WireError("the snapshot has an impossible age or count")
