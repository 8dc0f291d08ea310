"""What scopes may hold of a directory, and do: each counted for itself, as exactly as the whole is.

What this process writes counts before it is written, so that its threads together never go past a quota; what
others write counts from the next look on. Several engines may be over by what they wrote since then: each a
twentieth of the quota, after which it looks, and what comes in the second that a look may take.
"""

import threading
from collections.abc import Collection, Iterable, Mapping

from anbar.adapters.store.layout import scope_dir
from anbar.adapters.store.occupancy import Occupancy
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Scope, ScopeStats

_LOOKS_PER_QUOTA = 20


def excess(num_bytes: int, capacity: float, low_fraction: float, refused_bytes: int) -> int:
    """What is above the low mark, once it is above the high one, half way between that and the capacity. For
    a value of `refused_bytes` there was no room: where it fits at all, there is to be some."""
    low, high = low_fraction * capacity, (1 + low_fraction) / 2 * capacity
    if refused_bytes <= capacity:
        fits = capacity - refused_bytes
        low, high = min(low, fits), min(high, fits)
    return num_bytes - int(low) if num_bytes > high else 0


class Ration:
    """One scope's. Thread-safe."""

    def __init__(self, quota_bytes: int | None, low_fraction: float) -> None:
        self.quota_bytes = quota_bytes
        self.occupancy = Occupancy()
        self.num_evicted = 0
        """Entries that this process has evicted, of all namespaces."""
        self.is_changed = True
        """Since `stats` was asked last."""
        self._low_fraction = low_fraction
        self._lock = threading.Lock()
        self._refused_bytes = 0
        self._written_bytes = 0
        """Since a look was asked for."""

    def admits(self, part: int, num_bytes: int) -> bool:
        """Whether there is room for an entry, which counts from now on."""
        with self._lock:
            quota = self.quota_bytes
            if quota is not None and self.occupancy.used_bytes + num_bytes > quota:
                if num_bytes <= quota:  # no room can be made for more, and what fits must not wait for that
                    self._refused_bytes = max(self._refused_bytes, num_bytes)
                return False
            self.occupancy.wrote(part, num_bytes)
            self.is_changed = True
            self._written_bytes += num_bytes
            return True

    def withdrew(self, part: int, num_bytes: int) -> None:
        """The entry could not be written."""
        self.occupancy.wrote(part, -num_bytes, -1)
        self.is_changed = True

    def stats(self) -> ScopeStats:
        """As of now; what it holds is not known before the first look."""
        num_entries, used_bytes = self.occupancy.num_entries, self.occupancy.used_bytes
        known_bytes = None if num_entries is None else used_bytes
        return ScopeStats(num_entries, known_bytes, self.quota_bytes, self.num_evicted)

    def wants_look(self) -> bool:
        """Whether a value was refused, or a twentieth of the quota was written; told once."""
        with self._lock:
            quota = self.quota_bytes
            wants = quota is not None and _LOOKS_PER_QUOTA * self._written_bytes > quota
            if wants:
                self._written_bytes = 0
            return wants or self._refused_bytes > 0

    def need(self, num_bytes: int, share: float) -> int:
        """Bytes to evict of the `num_bytes` that the scope has in a share of the directory: over the quota
        must be both the share and the whole."""
        if self.quota_bytes is None:
            return 0
        shared = excess(num_bytes, share * self.quota_bytes, self._low_fraction, self._refused_bytes)
        used, quota = self.occupancy.used_bytes, self.quota_bytes
        return min(shared, excess(used, quota, self._low_fraction, self._refused_bytes))

    def looked(self) -> None:
        """A look is over: what was refused may find room."""
        with self._lock:
            self._refused_bytes = 0


class Rations:
    """Of all scopes that are listed, and of those others that have a quota. Thread-safe."""

    def __init__(self, scopes: Scopes, ttl_s: float | None, low_fraction: float) -> None:
        self._scopes = scopes
        self._ttl_s = ttl_s
        self._low_fraction = low_fraction
        self._dirs: Mapping[str, Scope] = {scope_dir(scope): scope for scope in scopes.named}
        self._rations = {name: self._new(scopes.of(scope)) for name, scope in self._dirs.items()}
        self._stats: Mapping[Scope, ScopeStats] = {}

    def ttl_s(self, name: str) -> float | None:
        """How long entries in a scope's directory live unused; None: as long as there is room."""
        ttl_s = self._rules(name).ttl_s
        return self._ttl_s if ttl_s is None else ttl_s

    def of_scope(self, scope: Scope) -> Ration | None:
        """A scope's; None: nobody counts."""
        if not self._rations and self._scopes.default.quota_bytes is None:
            return None
        return self.of(scope_dir(scope))

    def of(self, name: str) -> Ration | None:
        """By the name of the scope's directory."""
        ration = self._rations.get(name)
        if ration is None and self._scopes.default.quota_bytes is not None:
            ration = self._rations.setdefault(name, self._new(self._scopes.default))
        return ration

    def each(self) -> list[tuple[str, Ration]]:
        """With the names of the scopes' directories."""
        return list(self._rations.items())

    def begin(self) -> None:
        """A look begins."""
        for ration in list(self._rations.values()):
            ration.occupancy.begin()

    def counted(self, parts: Collection[int], found: Iterable[tuple[str, int, int]]) -> None:
        """What a look has found in some parts: of each entry the scope's directory, the part and the size."""
        sizes = {name: dict.fromkeys(parts, (0, 0)) for name in list(self._rations)}
        for name, part, num_bytes in found:
            if name not in sizes and self.of(name) is not None:
                sizes[name] = dict.fromkeys(parts, (0, 0))
            if (mine := sizes.get(name)) is not None:
                before = mine[part]
                mine[part] = before[0] + num_bytes, before[1] + 1
        for name, mine in sizes.items():
            self._rations[name].occupancy.counted(mine)
            self._rations[name].is_changed = True

    def looked(self) -> None:
        """A look is over."""
        for name, ration in list(self._rations.items()):
            ration.looked()
            if name not in self._dirs and not ration.occupancy.num_entries:
                self._rations.pop(name, None)

    def stats(self) -> Mapping[Scope, ScopeStats]:
        """Of the scopes that are listed. Asked after every call on the store: those that have not changed are
        not looked at."""
        changed = {}
        for name, scope in self._dirs.items():
            ration = self._rations[name]
            if ration.is_changed:
                ration.is_changed = False
                changed[scope] = ration.stats()
        if changed:
            self._stats = {**self._stats, **changed}
        return self._stats

    def _rules(self, name: str) -> ScopeRules:
        scope = self._dirs.get(name)
        return self._scopes.default if scope is None else self._scopes.of(scope)

    def _new(self, rules: ScopeRules) -> Ration:
        return Ration(rules.quota_bytes, self._low_fraction)
