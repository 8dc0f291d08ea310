"""Keys of the engine model as the tier's policies know them: bytes that end with the layers' cache."""

import xxhash

from anbar.sim.engine.request import BlockKey
from anbar.tier.found import GROUP_BYTES

_GROUP = bytes(GROUP_BYTES)
"""The only cache that the model has."""


class Names:
    """Shared by all engines that share a store. What is bytes already needs no memory."""

    def __init__(self) -> None:
        self._names: dict[BlockKey, bytes] = {}
        self._keys: dict[bytes, BlockKey] = {}

    def name(self, key: BlockKey) -> bytes:
        """Equal for equal keys."""
        if isinstance(key, bytes):
            return key + _GROUP
        name = self._names.get(key)
        if name is None:
            name = xxhash.xxh3_128_digest(repr(key).encode()) + _GROUP
            self._names[key], self._keys[name] = name, key
        return name

    def key(self, name: bytes) -> BlockKey:
        """Whose name it is."""
        key = self._keys.get(name)
        return name[:-GROUP_BYTES] if key is None else key
