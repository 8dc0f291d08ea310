"""What each scope may have of the shared store. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anbar.tier.store import Scope

OTHER = "(other)"
"""What metrics call scopes that are not listed; no tenant can have the name."""


@dataclass(frozen=True, slots=True)
class ScopeRules:
    """Of one scope."""

    quota_bytes: int | None = None
    """Most bytes of its entries; None: as much as there is room."""
    ttl_s: float | None = None
    """Seconds after which an entry that nobody used is gone; None: the store's own rule."""
    encrypt: bool = False
    """Whether its entries are encrypted."""


@dataclass(frozen=True, slots=True)
class Scopes:
    """Rules by scope; those that are not listed have each the default ones."""

    default: ScopeRules = field(default_factory=ScopeRules)
    named: Mapping[Scope, ScopeRules] = field(default_factory=dict)

    def of(self, scope: Scope) -> ScopeRules:
        return self.named.get(scope, self.default)

    def label(self, scope: Scope) -> str:
        """What metrics call a scope: there are no more names than are listed, and two."""
        return scope if not scope or scope in self.named else OTHER

    @property
    def every(self) -> tuple[ScopeRules, ...]:
        """All rules that there are."""
        return (self.default, *self.named.values())

    @property
    def has_quota(self) -> bool:
        """Whether anybody is bounded."""
        return any(rules.quota_bytes is not None for rules in self.every)

    def with_quotas(self, share: float) -> "Scopes":
        """The same with a share of each quota, at least one byte."""

        def part(rules: ScopeRules) -> ScopeRules:
            quota = rules.quota_bytes
            return rules if quota is None else replace(rules, quota_bytes=max(1, int(share * quota)))

        return Scopes(part(self.default), {scope: part(rules) for scope, rules in self.named.items()})


NO_SCOPES = Scopes()
"""Every scope may have what there is."""
