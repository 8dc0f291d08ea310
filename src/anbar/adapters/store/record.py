"""One stored value: a fixed header, then the payload. Everything that is stored is verified when it is read.

| bytes | field |
|---|---|
| 8 | magic `ANBARKV1`; the last character is the format version |
| 16 | digest of the namespace (what the values mean: model, weights, layout, ...) |
| 16 | digest of the scope |
| 32 | digest of the key |
| 8 | payload length, little-endian |
| 16 | xxh3-128 of all of the above and the payload |

The checksum binds the payload to its key, scope and namespace: a file copied over another one does not
verify. It finds damage, not forgery: who may write into the store can make entries that verify.
"""

import hashlib
import struct
from functools import lru_cache

import xxhash

from anbar.adapters.store.buffers import Bytes

MAGIC = b"ANBARKV1"
_PREFIX = struct.Struct("<8s16s16s32sQ")
CHECKSUM_BYTES = 16
HEADER_BYTES = _PREFIX.size + CHECKSUM_BYTES


@lru_cache(maxsize=1024)
def short_digest(data: bytes) -> bytes:
    """16 bytes that stand for a namespace or a scope. Those few are asked for with every key."""
    return hashlib.blake2b(data, digest_size=16).digest()


def key_digest(key: bytes) -> bytes:
    """32 bytes that stand for a key."""
    return hashlib.blake2b(key, digest_size=32).digest()


def record_bytes(value: memoryview) -> int:
    """What a value takes of a store."""
    return HEADER_BYTES + value.nbytes


class RecordFormat:
    """Headers of one namespace."""

    def __init__(self, namespace: bytes) -> None:
        self._namespace = short_digest(namespace)

    def header(self, key: bytes, scope: str, payload: Bytes) -> bytes:
        """The header that goes before `payload`."""
        running = self.begin(key, scope, payload.nbytes)
        running.add(payload.data)
        return running.header()

    def verifies(self, header: bytes, key: bytes, scope: str, payload: Bytes) -> bool:
        """Whether `header` and `payload`, as read, are what was stored for this key and scope."""
        prefix = self._prefix(key, scope, payload.nbytes)
        return header[: len(prefix)] == prefix and header == self.header(key, scope, payload)

    def begin(self, key: bytes, scope: str, num_bytes: int) -> "RunningHeader":
        """The header of a payload that comes in pieces."""
        return RunningHeader(self._prefix(key, scope, num_bytes))

    def _prefix(self, key: bytes, scope: str, num_bytes: int) -> bytes:
        return _PREFIX.pack(MAGIC, self._namespace, short_digest(scope.encode()), key_digest(key), num_bytes)


class RunningHeader:
    """Takes a payload piece by piece, while it lies in the processor's cache."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._state = xxhash.xxh3_128(prefix)

    def add(self, piece: memoryview) -> None:
        """The next bytes."""
        self._state.update(piece)

    def header(self) -> bytes:
        """Of all that was added."""
        return self._prefix + self._state.digest()
