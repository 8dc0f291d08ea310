"""What one router hands to another that comes late: its index of an engine, and how far it had heard the
engine.

The index's part is `anbar.route.snapshot`. With the position the stream goes on where the snapshot ends, and
a snapshot of an engine's former life is recognised, because the bytes of its last batch are not what the
engine replays.
"""

import msgspec

from anbar.adapters.vllm.kv_sequence import StreamPosition
from anbar.core.errors import WireError

VERSION = 1


class KvSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """Version, position (`StreamPosition`), and the bytes of `PrefixIndex.snapshot`."""

    version: int
    seq: int
    fingerprint: int
    partial: bool
    index: bytes


def encode(position: StreamPosition, index: bytes) -> bytes:
    snapshot = KvSnapshot(VERSION, position.seq, position.fingerprint, position.partial, index)
    return msgspec.msgpack.encode(snapshot)


def decode(data: bytes) -> tuple[StreamPosition, bytes]:
    """Position and index; raises WireError."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=KvSnapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a snapshot: {error}") from error
    if snapshot.version != VERSION or snapshot.seq < 0:
        raise WireError(f"not a snapshot of version {VERSION}")
    return StreamPosition(snapshot.seq, snapshot.fingerprint, snapshot.partial), snapshot.index
