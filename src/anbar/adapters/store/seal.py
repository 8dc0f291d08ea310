"""Encryption of one value: AES-256-GCM, bound to its key, scope and namespace.

    sealed value = nonce (12 bytes) | ciphertext | tag (16 bytes)

- The *data key* of a scope encrypts nothing itself. Each entry has a key of its own, derived from it by
  HMAC-SHA256 over what the entry is called, so that the bound on random nonces (2^32 messages under one key,
  NIST SP 800-38D 8.3) holds for the writes of one entry, not for all of a fleet: no nonce comes twice.
- Namespace, scope and key are the associated data: a value that was moved to another name does not open.
- A name says, by eight bytes, which data key sealed it. Values of an earlier data key are never found, so
  that a key can be replaced while engines run: nothing looks damaged to those who know the new one sooner.
"""

import hashlib
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from anbar.adapters.store.buffers import Bytes
from anbar.tier.store import Scope

DATA_KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
EXTRA_BYTES = NONCE_BYTES + TAG_BYTES
"""A sealed value is so much longer."""

_MARK = b"\0gcm"
_ID_BYTES = 8
_SUFFIX_BYTES = len(_MARK) + _ID_BYTES
_DIGEST_BYTES = 32


class Seal:
    """What seals the values of one scope in one namespace. Thread-safe: it never changes."""

    def __init__(self, data_key: bytes, scope: Scope, namespace: bytes) -> None:
        assert len(data_key) == DATA_KEY_BYTES, "whoever reads keys checks them"
        self.data_key = data_key
        self._suffix = _MARK + _derive(data_key, b"anbar name 1")[:_ID_BYTES]
        self._bound = b"anbar value 1" + _digest(namespace) + _digest(scope.encode())

    def name(self, key: bytes) -> bytes:
        """What the sealed value of a key is called."""
        return key + self._suffix

    def close(self, key: bytes, plain: Bytes, sealed: Bytes) -> None:
        """Seal a value into a buffer that is `EXTRA_BYTES` longer."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        view = sealed.data
        view[:NONCE_BYTES] = nonce
        bound = self._bound + key
        self._cipher(bound).encrypt_into(nonce, plain.data, bound, view[NONCE_BYTES:])

    def open(self, key: bytes, sealed: Bytes, plain: Bytes) -> bool:
        """Write the value into `plain`; False, and `plain` is undefined, when this key did not seal it so."""
        view = sealed.data
        bound = self._bound + key
        try:
            self._cipher(bound).decrypt_into(bytes(view[:NONCE_BYTES]), view[NONCE_BYTES:], bound, plain.data)
        except InvalidTag:
            return False
        return True

    def _cipher(self, bound: bytes) -> AESGCM:
        return AESGCM(_derive(self.data_key, bound))


def key_of_name(name: bytes) -> bytes:
    """The key that a sealed value's name stands for; any other name stands for itself."""
    is_sealed = name[-_SUFFIX_BYTES:-_ID_BYTES] == _MARK
    return name[:-_SUFFIX_BYTES] if is_sealed else name


def _derive(data_key: bytes, label: bytes) -> bytes:
    return hmac.digest(data_key, label, "sha256")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
