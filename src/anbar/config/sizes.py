"""Sizes in bytes as people write them: `2GiB`, `512 MiB`, `1048576`."""

import re

_UNITS = {
    "": 1,
    "B": 1,
    "K": 1024,
    "M": 1024**2,
    "G": 1024**3,
    "T": 1024**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
SIZE_HINT = (
    "a whole number of bytes from 0, or such a number with a unit, as 512MiB, 2GiB (1024s) or 2GB (1000s)"
)


def parse_size(value: object) -> int:
    """Bytes of `value`; raises ValueError with what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        unit = _UNITS.get(match[2].upper())
        if unit is not None:
            return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    raise ValueError(f"allowed: {SIZE_HINT}")


def format_size(num_bytes: int) -> str:
    """A short text for people, which `parse_size` reads back when nothing was rounded: 2GiB, 1.5GiB, 700B."""
    for unit, size in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if num_bytes >= size:
            amount = num_bytes / size
            return f"{amount:.0f}{unit}" if amount == int(amount) else f"{amount:.1f}{unit}"
    return f"{num_bytes}B"
