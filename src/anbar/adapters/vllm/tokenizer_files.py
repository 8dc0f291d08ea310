"""Which files a tokenizer is made of, and whether they are still the same."""

from pathlib import Path
from typing import TypeAlias

Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Of each file its path, inode, size and time of change in ns; empty: there is no such directory."""


def tokenizer_folder(path: str | Path) -> Path:
    """The directory behind a path or the name of a model in the local hub cache. Raises OSError or ValueError
    when there is none. Never reaches out to a network."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - half a second, and rarely needed

    return Path(snapshot_download(str(path), local_files_only=True))


def signature(path: str | Path) -> Signature:
    """What changes when any file of a model does, its weights included: it is cheaper to load a tokenizer
    again than to know which files each kind of tokenizer reads."""
    found: list[tuple[str, int, int, int]] = []
    try:
        for file in sorted(tokenizer_folder(path).rglob("*")):
            about = file.stat()
            found.append((str(file), about.st_ino, about.st_size, about.st_mtime_ns))
    except (OSError, ValueError):  # none, or one that is being replaced just now: the next look sees it
        return ()
    return tuple(found)
