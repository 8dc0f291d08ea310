"""Ends the series of engines that have left: where pods come and go they would grow in number for good."""

from collections.abc import Callable, Iterable, Set
from typing import Protocol

KEPT_S = 600.0
"""How long they stay: time for whatever reads them to have read the last of it."""

ENGINE = "engine"


class PerEngine(Protocol):
    """Metrics with engines for labels: `tallies.Family`, or several of them."""

    def values(self, label: str) -> set[str]: ...

    def forget(self, label: str, value: str) -> None: ...


class GoneEngines:
    """Call `sweep` before each reading. `now_s` never goes back."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s: dict[str, float] = {}
        """When each was first seen to be gone."""

    def sweep(self, families: Iterable[PerEngine], present: Set[str]) -> None:
        """Drop what is named after engines that were not `present` for `KEPT_S`. "": no engine."""
        now_s, families = self._now_s(), tuple(families)
        named = {value for family in families for value in family.values(ENGINE)}
        gone = named - present - {""}
        self._since_s = {engine: self._since_s.get(engine, now_s) for engine in gone}
        for engine in [engine for engine, since_s in self._since_s.items() if now_s - since_s >= KEPT_S]:
            for family in families:
                family.forget(ENGINE, engine)
