"""Where entries lie below a store's root.

    <root>/v1/<namespace>/<scope>/<fan-out>/<key>.kv
    <root>/v1/<namespace>/<scope>/<fan-out>/.<writer>-<number>.tmp     being written

    <root>/v1/.trash-<scope>-<writer>-<number>/                       a removed scope, see `scope_removal`
    <root>/v1/.damaged/                                               see `quarantine`
    <root>/v1/damaged/<scope>/<namespace>/<key>.kv                    the same in a bucket, see `s3.damaged`
    <root>/.sweep.lock, <root>/.clock                                 see `sweep`, `store_clock`

Namespace and scope are digests in hex, so a directory listing tells nothing about tenants. The fan-out is
one byte of the key's digest: 256 directories, 27,000 files each for 10 TB of 1.5 MB values. The directories
of one fan-out in all namespaces and scopes are a *part*: a fair sample of the whole, since digests are even.
A key of up to 96 bytes is its own file name (an engine's keys have 36), so that whoever evicts a file knows
what it held; a longer one is named by its digest.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from anbar.adapters.store.record import key_digest, short_digest

VERSION_DIR = "v1"
SUFFIX = ".kv"
TEMP_SUFFIX = ".tmp"
TRASH_PREFIX = ".trash-"
NUM_PARTS = 256
_MAX_NAMED_KEY_BYTES = 96
_DIGEST_MARK = "~"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one namespace's entries."""

    root: Path
    namespace: bytes

    @property
    def version_dir(self) -> Path:
        """Parent of all namespaces."""
        return self.root / VERSION_DIR

    @property
    def namespace_dir(self) -> Path:
        """Parent of this namespace's scopes."""
        return self.version_dir / short_digest(self.namespace).hex()

    def directory(self, part: int, scope: str) -> str:
        """Where the entries of a part are. Plain text, as it is wanted for each of thousands of keys."""
        namespace = short_digest(self.namespace).hex()
        return f"{self.root}/{VERSION_DIR}/{namespace}/{scope_dir(scope)}/{part_dir(part)}"

    def entry(self, key: bytes, scope: str) -> str:
        """The file of one entry."""
        digest = key_digest(key)
        is_named = len(key) <= _MAX_NAMED_KEY_BYTES
        name = key.hex() if is_named else _DIGEST_MARK + digest.hex()
        return f"{self.directory(digest[0], scope)}/{name}{SUFFIX}"


def version_of(name: str) -> int | None:
    """The format version whose directory has this name; None when it is none's."""
    found = re.fullmatch(r"v(\d+)", name)
    return None if found is None else int(found[1])


def part_dir(part: int) -> str:
    """Name of a fan-out directory."""
    return f"{part:02x}"


def part_of(path: str) -> int:
    """The part that an entry's file is in."""
    return int(path.rsplit("/", 2)[1], 16)


def scope_dir(scope: str) -> str:
    """Name of a scope's directory."""
    return short_digest(scope.encode()).hex()


def scope_of(name: str) -> str:
    """The name of the scope's directory in the path of an entry; "" in any other."""
    parts = name.rsplit("/", 3)
    return parts[1] if len(parts) == 4 else ""


def key_of(name: str) -> bytes | None:
    """The key that a file name stands for, or None when it cannot be told from the name."""
    try:
        return bytes.fromhex(name.removesuffix(SUFFIX))
    except ValueError:
        return None
