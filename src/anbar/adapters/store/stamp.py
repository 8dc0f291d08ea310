"""A file's modification time as the place of what eviction must know, so that nobody has to open the file.

Whole seconds: when the entry was last used. The fraction: what it saves, as a class of 16 per doubling from
one microsecond on, in milliseconds, and a mark in the microseconds. A file system that cuts fractions off, or
a file that someone else has touched, loses the mark and with it only the class: the worth is unknown then.
"""

import math
from typing import NamedTuple

_S = 1_000_000_000
_MS = 1_000_000
_MARK_NS = 424_000
_CLASSES_PER_DOUBLING = 16
_MAX_CLASS = 999
_LEAST_S = 1e-6
_SAVES_S = (0.0, *(_LEAST_S * 2 ** (number / _CLASSES_PER_DOUBLING) for number in range(1, _MAX_CLASS + 1)))


class Stamp(NamedTuple):
    """When an entry was last used, in seconds of the store's clock, and how many seconds it saves; 0.0: not
    known."""

    used_s: int
    saves_s: float


def to_ns(used_s: float, saves_s: float) -> int:
    """The modification time that says so."""
    return int(used_s) * _S + _class(saves_s) * _MS + _MARK_NS


def from_ns(mtime_ns: int) -> Stamp:
    """What a modification time says; `saves_s` within 3 % of what was given."""
    used_s, fraction = divmod(mtime_ns, _S)
    number, rest = divmod(fraction, _MS)
    return Stamp(used_s, _SAVES_S[number] if rest == _MARK_NS else 0.0)


def _class(saves_s: float) -> int:
    if not saves_s > 0:
        return 0
    number = (
        round(_CLASSES_PER_DOUBLING * math.log2(saves_s / _LEAST_S)) if math.isfinite(saves_s) else _MAX_CLASS
    )
    return min(max(number, 1), _MAX_CLASS)
