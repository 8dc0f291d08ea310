"""How glibc's malloc keeps memory, for a process that runs for months and whose caches change all the time.

Left to itself it does two things that let such a process grow, though it holds no more than before:

- Each thread may get an arena of its own, eight for each processor, and what one has free no other one uses.
- Every large buffer that is freed raises the size from which on memory comes from the kernel and goes back to
  it, up to 32 MiB. From then on tables of megabytes are cut from the heap, and what is put into the hole that
  one of them leaves keeps it from ever being whole again.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Setting:
    """A parameter of `mallopt` (malloc.h), the variable by which a user sets it, and ours."""

    parameter: int
    variable: str
    value: int


_SETTINGS = (
    _Setting(-8, "MALLOC_ARENA_MAX", 2),
    _Setting(-3, "MALLOC_MMAP_THRESHOLD_", 256 * 2**10),
    _Setting(-1, "MALLOC_TRIM_THRESHOLD_", 4 * 2**20),  # it follows the one above no more
)
"""A second arena lets the tokenizer's threads allocate beside the event loop. From 256 KiB on the
kernel is asked: nearly all requests have less, whose buffers come and go, and tables of caches have more."""


def settle_allocator(environ: Mapping[str, str]) -> None:
    """Apply the settings to this process, but for those that the user has made; where the C library is not
    glibc, do nothing. To be called before threads start: arenas that are there stay."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    if "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return
    for setting in _SETTINGS:
        if setting.variable not in environ:
            mallopt(setting.parameter, setting.value)
