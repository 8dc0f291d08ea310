"""What entries are called in the server.

    anbar:1:<namespace>:<scope>:<key>

Namespace and scope are digests in hex, so a list of names tells nothing of tenants. A key of up to 96 bytes
stands there in hex (an engine's have 36), so that whoever hears of a name's end knows what it held; a longer
one is named by its digest. There is no hash tag: the entries of one prompt are to be spread over a cluster.

    anbar:1:damaged:<scope>:{<the entry's name>}

What a damaged entry is called when it is kept aside. The hash tag leaves it in the entry's slot.
"""

import binascii

from anbar.adapters.store.layout import scope_dir
from anbar.adapters.store.record import key_digest, short_digest

NUM_SLOTS = 16384
_START = b"anbar:1:"
_DAMAGED = b"damaged"
_MAX_NAMED_KEY_BYTES = 96
_DIGEST_MARK = b"~"


class Names:
    """Names of one namespace."""

    def __init__(self, namespace: bytes) -> None:
        self._start = _START + _hex(short_digest(namespace)) + b":"

    def name(self, key: bytes, scope: str) -> bytes:
        """The name of one entry."""
        is_named = len(key) <= _MAX_NAMED_KEY_BYTES
        last = _hex(key) if is_named else _DIGEST_MARK + _hex(key_digest(key))
        return self._start + _hex(short_digest(scope.encode())) + b":" + last

    def key_of(self, name: bytes) -> bytes | None:
        """The key of an entry of this namespace; None when the name is another's, or does not tell it."""
        if not name.startswith(self._start):
            return None
        try:
            return binascii.unhexlify(name.rpartition(b":")[2])
        except binascii.Error:
            return None


ALL_ENTRIES = _START + b"*"
"""What the names of all entries look like, for SCAN."""


def scope_pattern(scope: str) -> bytes:
    """What the names of a scope's entries in every namespace look like."""
    return dir_pattern(scope_dir(scope))


def dir_pattern(directory: str) -> bytes:
    """The same, by what directories of the scope are called."""
    return _START + b"*:" + directory.encode() + b":*"


def dir_of(name: bytes) -> str:
    """What directories of an entry's scope are called; "" when the name is no entry's, or a damaged one's:
    those have a bound of their own."""
    match name.removeprefix(_START).split(b":", 2):
        case [namespace, scope, _] if namespace != _DAMAGED:
            return scope.decode("ascii", "replace")
    return ""


def damaged_name(name: bytes) -> bytes:
    """Where an entry is kept when it is damaged; `scope_pattern` fits it too."""
    scope = name.split(b":")[3]
    return _START + _DAMAGED + b":" + scope + b":{" + name + b"}"


def slot(name: bytes) -> int:
    """The cluster's slot of a name without a hash tag (Valkey's cluster specification: CRC-16/XMODEM)."""
    return binascii.crc_hqx(name, 0) % NUM_SLOTS


def _hex(data: bytes) -> bytes:
    return binascii.hexlify(data)
