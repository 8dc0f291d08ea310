"""Telling weights apart without reading them all.

A model's name or path says nothing: fine-tuned weights are saved under the same names. Two files are
taken for equal when name, size, safetensors header (names, shapes and types of all tensors) and a sample
of pages agree. Training changes practically every page, so 64 pages per file find it; 100 GB in 25 files
cost 7 MB of reads."""

import hashlib
import os
from pathlib import Path

from anbar.core.errors import ConfigError

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
PAGE_BYTES = 4096
PAGES_PER_FILE = 64
MAX_HEADER_BYTES = 100 * 1024 * 1024
"""What the safetensors format allows for its header."""


def weights_digest(path: Path) -> str:
    """Hex digest of the weights in a directory, or of one file.

    Raises ConfigError when there are none or they cannot be read.
    """
    files = [path] if path.is_file() else sorted(p for p in path.glob("*") if p.suffix in WEIGHT_SUFFIXES)
    if not files:
        raise ConfigError(f"no weights in {path}: set weights_id to a name that changes with the weights")
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file_digest(file))
    except OSError as error:
        raise ConfigError(f"weights cannot be read: {error}") from error
    return digest.hexdigest()


def file_digest(path: Path) -> bytes:
    """Digest of one file's name, size, header and sampled pages. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(f"{path.name}\x00{size}\x00".encode())
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(length, MAX_HEADER_BYTES)))
        for page in _sampled_pages(size):
            digest.update(os.pread(file.fileno(), PAGE_BYTES, page * PAGE_BYTES))
    return digest.digest()


def _sampled_pages(num_bytes: int) -> list[int]:
    """Page numbers spread evenly over a file, the first and the last among them."""
    num_pages = -(-num_bytes // PAGE_BYTES)
    if num_pages <= PAGES_PER_FILE:
        return list(range(num_pages))
    return [round(i * (num_pages - 1) / (PAGES_PER_FILE - 1)) for i in range(PAGES_PER_FILE)]
