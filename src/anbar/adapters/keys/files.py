"""The directory of secrets, `<state_dir>/keys`: flat, mode 0700, each file 0600.

    salt.secret      32 random bytes: makes the salts of all scopes
    <scope>.epoch    16 random bytes: goes into the scope's salt; there is none before the first purge
    <scope>.key      32 random bytes: seals the scope's entries in the store; only with `encrypt: true`

`<scope>` is a hash of the scope's name. All routers and all engines that share a store must share this
directory too: entries of a scope are readable where its key is, and routers agree on salts where the secret
is one. Files appear whole or not at all, however many processes make them at once, and are never written to
again: a new value is a new file.
"""

import os
import secrets
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from anbar.core.errors import KeyFileError
from anbar.tier.store import Scope

KEYS_DIR = "keys"
"""In the state directory."""
SECRET_BYTES = KEY_BYTES = 32
EPOCH_BYTES = 16

_Seen = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge found: whether there was a data key to delete."""

    had_key: bool


class KeyFiles:
    """Reads and makes the files of one directory, which is made when something is to be put there. May be
    called from several threads. Every call raises KeyFileError where a file is there and cannot be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict[Scope, str] = {}
        self._keys: dict[Scope, tuple[_Seen, bytes]] = {}

    def secret(self) -> bytes:
        """What all salts are made with; made now if there is none."""
        return self._made(self._directory / "salt.secret", SECRET_BYTES)

    def epoch(self, scope: Scope) -> bytes:
        """Changes with every purge of the scope; empty before the first."""
        return self._read(self._path(scope, "epoch"), EPOCH_BYTES) or b""

    def data_key(self, scope: Scope) -> bytes | None:
        """The scope's key as it is now, by one look at the file; None when there is none. For what is to be
        opened: a key that is not there must not be made for that."""
        path = self._path(scope, "key")
        try:
            found = os.stat(path)  # a Path would cost more than the call
        except FileNotFoundError:
            self._keys.pop(scope, None)
            return None
        except OSError as error:
            raise _unusable(path, error) from error
        seen = found.st_ino, found.st_mtime_ns, found.st_size
        known = self._keys.get(scope)
        if known is not None and known[0] == seen:
            return known[1]
        if (key := self._read(path, KEY_BYTES)) is not None:
            # If it was replaced in between, `seen` is not the new file's, and the next call reads it again.
            self._keys[scope] = seen, key
        return key

    def make_data_key(self, scope: Scope) -> bytes:
        """The scope's key, made now if there is none. For what is to be sealed."""
        return self.data_key(scope) or self._made(Path(self._path(scope, "key")), KEY_BYTES)

    def knows(self, scope: Scope) -> bool:
        """Whether the scope has a key, usable or not, or was purged before."""
        return any(os.path.lexists(self._path(scope, kind)) for kind in ("key", "epoch"))

    def purge(self, scope: Scope) -> Purged:
        """Delete the scope's key and begin a new epoch, both before this returns, also on the disk. What was
        sealed with the key can be read by nobody, and what was computed with the old salt is asked for by
        nobody, as soon as routers have seen the new epoch."""
        self._keys.pop(scope, None)
        key = Path(self._path(scope, "key"))
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                key.unlink()
                had_key = True
            except FileNotFoundError:
                had_key = False
            draft = _draft(Path(self._path(scope, "epoch")), secrets.token_bytes(EPOCH_BYTES))
            draft.replace(self._path(scope, "epoch"))
            _sync(self._directory)
        except OSError as error:
            raise _unusable(self._directory, error) from error
        return Purged(had_key)

    def changed(self) -> int:
        """Differs from what it was before when a file was made, replaced or deleted since, but for a change
        within the same tick of the file system's clock (4 ms) as the last; 0 while there is no directory."""
        try:
            return self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _unusable(self._directory, error) from error

    def _path(self, scope: Scope, kind: str) -> str:
        name = self._names.get(scope)
        if name is None:
            name = sha256(b"anbar scope\n" + scope.encode()).hexdigest()[:32]
            self._names[scope] = name
        return f"{self._directory}/{name}.{kind}"

    def _made(self, path: Path, num_bytes: int) -> bytes:
        """What the file has; if there is none, random bytes are put there, or another process' are taken."""
        try:
            while (found := self._read(path, num_bytes)) is None:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                draft = _draft(path, secrets.token_bytes(num_bytes))
                try:
                    os.link(draft, path)
                    _sync(self._directory)
                except FileExistsError:
                    continue
                finally:
                    draft.unlink()
        except OSError as error:
            raise _unusable(path, error) from error
        return found

    def _read(self, path: str | Path, num_bytes: int) -> bytes | None:
        try:
            with open(path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise KeyFileError(f"{path} can be read by others: chmod 600 it")
                found = file.read(num_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, error) from error
        if len(found) != num_bytes:
            raise KeyFileError(f"{path} does not have the {num_bytes} bytes that it should: it was damaged")
        return found


def _draft(path: Path, content: bytes) -> Path:
    """A file beside `path`, on the disk. Its time of change is exact, not that of the kernel's last tick: a
    file in its place that comes at once can be told from it even if it gets the same inode."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        now_ns = time.time_ns()
        os.utime(descriptor, ns=(now_ns, now_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return draft


def _sync(directory: Path) -> None:
    """What was made, renamed and deleted there is so after a loss of power too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: str | Path, error: OSError) -> KeyFileError:
    return KeyFileError(f"{path} cannot be used: {(error.strerror or type(error).__name__).lower()}")
