"""Whether a directory takes values, as the last writes have shown."""

import errno
from collections.abc import Callable

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_RETRY_S = 1.0
"""After a refusal others are refused for so long without being tried. It bounds what a full disk costs, and
how long after there is space again nothing is written."""


class Writable:
    """Called from any thread; what two of them notice at once, either may be true."""

    def __init__(self, steady_s: Callable[[], float]) -> None:
        self._steady_s = steady_s
        self._until_s = float("-inf")
        self.is_allowed = True
        """False while a directory can be read only."""

    def refuses(self) -> bool:
        """Whether a write would be in vain, as far as is known."""
        return self._steady_s() < self._until_s

    def accepted(self) -> None:
        """A value was written."""
        self.is_allowed = True

    def refused(self, error: OSError) -> bool:
        """Whether the error means that the directory takes nothing now, though it can be read."""
        if error.errno not in _NO_SPACE | _NOT_ALLOWED:
            return False
        self.is_allowed = error.errno not in _NOT_ALLOWED
        self._until_s = self._steady_s() + _RETRY_S
        return True
