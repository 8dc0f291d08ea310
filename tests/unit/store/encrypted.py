"""Encrypted stores of the tests, and the data keys that they ask for."""

from collections.abc import Collection

from anbar.adapters.store.encrypted import EncryptedStore
from anbar.core.errors import KeyFileError
from anbar.testing.store_contract import SCOPES
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Scope, Store

NAMESPACE = b"namespace"
DATA_KEY = bytes(range(32))


class KeyRing:
    """Data keys of scopes, taken away and replaced at any time. None can be made."""

    def __init__(self, scopes: Collection[Scope] = SCOPES) -> None:
        self.keys = dict.fromkeys(scopes, DATA_KEY)

    def data_key(self, scope: Scope) -> bytes | None:
        return self.keys.get(scope)

    def make_data_key(self, scope: Scope) -> bytes:
        if (key := self.keys.get(scope)) is None:
            raise KeyFileError("keys/tenant.key cannot be used: read-only file system")
        return key


def encrypted(inner: Store, ring: KeyRing | None = None, namespace: bytes = NAMESPACE) -> EncryptedStore:
    """Over `inner`, for every scope that the ring has now."""
    ring = ring or KeyRing()
    scopes = Scopes(named=dict.fromkeys(ring.keys, ScopeRules(encrypt=True)))
    return EncryptedStore(inner, namespace, scopes, ring)
