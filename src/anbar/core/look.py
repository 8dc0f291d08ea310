"""How a look at where engines are listed may fail."""

from enum import Enum


class LookFailure(Enum):
    """Why a look has told nothing of the engines, or that there are none."""

    MISSING = "missing"
    """There is no such file."""
    INVALID = "invalid"
    """The file cannot be understood."""
    NAME_UNKNOWN = "nxdomain"
    """There is no such name in the DNS."""
    EMPTY = "empty"
    """The name has no such record."""
    TIMEOUT = "timeout"
    """No name server answered in time."""
    SERVER = "servfail"
    """No name server could answer: SERVFAIL, REFUSED, or what cannot be understood."""
    DEFECT = "defect"
    """An error nobody expected."""

    @property
    def nobody(self) -> bool:
        """Whether it says that there is no engine."""
        return self in (LookFailure.NAME_UNKNOWN, LookFailure.EMPTY)
