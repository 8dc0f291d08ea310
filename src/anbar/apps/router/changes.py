"""What routers tell each other of their requests: small changes, each about a number of the sender's.

No prompt and no token: lengths, seconds, names of engines and adapters, and chain hashes of blocks.
"""

from typing import TypeAlias, TypeVar

import msgspec

from anbar.core.errors import WireError


class Held(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A request goes to an engine; the members are those of `QueuedPrompt`."""

    number: int
    engine: str
    tokens: int
    pairs: int
    seconds: float
    shows_first_token: bool
    loads: bool


class Answered(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Its answer begins; not `well`: with an error, so that there is no prefill."""

    number: int
    well: bool


class Ended(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """It is over."""

    number: int


class Placed(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A prompt with these blocks goes to an engine. `chain` are the chain hashes as uint64, little-endian."""

    number: int
    engine: str
    chain: bytes


class Computed(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """The engine has it; not `well`: it has failed."""

    number: int
    well: bool


class Left(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """That request is over."""

    number: int


class Anew(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """What follows is all that there is: forget what was said before."""


class Drains(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """Somebody drains an engine, or no longer, since `at_s` (seconds since 1970): the latest word counts."""

    engine: str
    draining: bool
    at_s: float


_T = TypeVar("_T")

Change: TypeAlias = Held | Answered | Ended | Placed | Computed | Left | Anew | Drains

encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Change])


def decode(data: bytes) -> list[Change]:
    """Raises WireError."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a peer's changes cannot be read: {error}") from error


def read_message(data: bytes, kind: type[_T]) -> _T:
    """One message that is no list of changes. Raises WireError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"a peer says no {kind.__name__}: {error}") from error
