"""What a request asks of the shared tier: `kv_transfer_params.anbar`, parsed so that nothing can raise.

A field that this version does not understand must not cost isolation: a wish that cannot be read keeps the
request out of the shared tier altogether (it is computed, and served from device and host as always).
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeGuard

from anbar.core.cost import PrefillCost
from anbar.tier.store import Scope

VERSION = 1
MAX_SCOPE_CHARS = 256
MAX_WAIT_MS = 60_000
MAX_EXPECT_TOKENS = 1 << 24
"""More than any model's context."""
MAX_S_PER_TOKEN = 100.0
"""Slower than any engine."""


class Storing(Enum):
    """Whether a request's blocks go to the shared store."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Wish:
    """`scope` names the sharing group; `wait_s` bounds how long lookups may delay the request (None: the
    tier's own bound); `expect_tokens`: another engine is storing so many of the prompt's first tokens just
    now, so what of them is missing is asked for again until then; `prefill`: what its tokens cost to compute,
    None: as the tier has found; `sealed`: its scope is encrypted; `bypass` keeps the request out of the
    shared tier."""

    scope: Scope = ""
    storing: Storing = Storing.AUTO
    wait_s: float | None = None
    expect_tokens: int = 0
    bypass: bool = False
    prefill: PrefillCost | None = None
    sealed: bool = False

    @property
    def may_store(self) -> bool:
        return not self.bypass and self.storing is not Storing.NEVER

    def granted(self, *, seals: bool) -> "Wish":
        """The same, for an engine that encrypts the scope or does not. An engine hears of scopes when it
        starts: one that the router has been told to encrypt since must not lie in the store plain."""
        return replace(self, bypass=True) if self.sealed and not seals else self


DEFAULT = Wish()
BYPASS = Wish(storing=Storing.NEVER, bypass=True)


def parse(params: object) -> Wish:
    """The wish in a request's `kv_transfer_params` (None or a mapping from JSON)."""
    fields = params.get("anbar") if isinstance(params, dict) else None
    if fields is None:
        return DEFAULT
    if not isinstance(fields, dict) or not _is_int(fields.get("v")) or fields["v"] != VERSION:
        return BYPASS
    scope = fields.get("scope", "")
    if not isinstance(scope, str) or len(scope) > MAX_SCOPE_CHARS or not _encodable(scope):
        return BYPASS
    storing = _storing(fields.get("store", "auto"))
    return Wish(
        scope,
        storing,
        _wait_s(fields.get("wait_ms")),
        _expected(fields.get("expect_tokens")),
        prefill=_prefill(fields.get("prefill_s_per_token"), fields.get("prefill_s_per_token2", 0.0)),
        sealed=fields.get("sealed", False) not in (False, None),
    )


def _storing(value: object) -> Storing:
    try:
        return Storing(value)
    except ValueError:
        return Storing.NEVER


def _wait_s(value: object) -> float | None:
    if isinstance(value, int) and _is_int(value) and 0 <= value <= MAX_WAIT_MS:
        return value / 1000
    return None


def _expected(value: object) -> int:
    """Whoever expects something that cannot be read waits for nothing."""
    return value if isinstance(value, int) and _is_int(value) and 0 <= value <= MAX_EXPECT_TOKENS else 0


def _prefill(linear: object, quadratic: object) -> PrefillCost | None:
    """Whoever says something senseless has said nothing."""
    if not (_is_number(linear) and _is_number(quadratic)):
        return None
    if not (0 < linear <= MAX_S_PER_TOKEN and 0 <= quadratic <= MAX_S_PER_TOKEN):
        return None
    return PrefillCost(float(linear), float(quadratic))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _encodable(text: str) -> bool:
    """JSON may carry lone surrogates, which have no bytes to hash."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
