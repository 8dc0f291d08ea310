"""Keyed names for blocks and sessions: who reads a record cannot try out which prompt a name stands for."""

import os
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from anbar.core.errors import StackError
from anbar.core.ids import ChainHash

KEY_FILE = "record.key"
_KEY_BYTES = 32
_TOP = 1 << 63


class KeyedIds:
    """Names made with `key`, by keyed BLAKE2b."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def blocks(self, chain: Iterable[ChainHash]) -> list[int]:
        """A number of 63 bits for each block of a chain: any JSON reader takes it for an integer."""
        return [self._number(b"block", value.to_bytes(8, "little")) for value in chain]

    def name(self, kind: str, value: bytes) -> str:
        """16 hexadecimal digits."""
        return f"{self._number(kind.encode(), value):016x}"

    def share(self, name: str) -> float:
        """A number from 0 to 1 that belongs to a name, evenly spread, and tells nothing of it."""
        return self._number(b"share", name.encode()) / _TOP

    def _number(self, kind: bytes, value: bytes) -> int:
        digest = blake2b(value, digest_size=8, key=self._key, person=kind).digest()
        return int.from_bytes(digest, "little") >> 1


def record_key(state_dir: Path) -> bytes:
    """The key in `state_dir`, made when there is none. Raises StackError."""
    path = state_dir / KEY_FILE
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        if path.stat().st_mode & 0o077:
            raise StackError(
                f"{path} can be read by others: chmod 600 it, or delete it to begin with a new key"
            )
        key = path.read_bytes()
    except OSError as error:
        raise StackError(f"{path}: {error.strerror}") from error
    if len(key) != _KEY_BYTES:
        raise StackError(f"{path} is no key of {_KEY_BYTES} bytes: delete it to begin with a new one")
    return key


def _make(path: Path) -> None:
    """Whole or not at all, also when two routers start at once."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(_KEY_BYTES))
        os.fsync(descriptor)
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        os.close(descriptor)
        draft.unlink()
