"""Names that clients use and what stands behind them: aliases, and shares of one name's traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anbar.core.ids import EngineId
from anbar.route.rendezvous import lot


@dataclass(frozen=True, slots=True)
class Target:
    """A model on some engines. `engines` empty: on all that serve it. `weight`: its share of the traffic,
    relative to the others'; 0: only when the others cannot serve."""

    model: str
    engines: frozenset[EngineId] = frozenset()
    weight: float = 1.0


class Targets:
    """What each name stands for; a name that is not here stands for itself."""

    def __init__(self, names: Mapping[str, Sequence[Target]]) -> None:
        for name, targets in names.items():
            if not any(target.weight > 0 for target in targets):
                raise ValueError(f"{name!r} has no target with a weight above 0")
        self._names = {name: tuple(targets) for name, targets in names.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that stand for others."""
        return tuple(self._names)

    def __contains__(self, name: str) -> bool:
        """Whether it stands for others."""
        return name in self._names

    def of(self, name: str, key: str) -> tuple[Target, ...]:
        """The targets of `name` in the order in which they are to be tried: the one that `key` draws, with
        the odds that the weights give, then the others as they are listed. The same key always draws the
        same."""
        targets = self._names.get(name)
        if targets is None:
            return (Target(name),)
        if len(targets) == 1:
            return targets
        drawn = _drawn(targets, lot(f"{name}\0{key}"))
        return (drawn, *(target for target in targets if target is not drawn))


def _drawn(targets: Sequence[Target], share: float) -> Target:
    """The target in whose part of the whole `share`, from [0, 1), lies."""
    left = share * sum(target.weight for target in targets)
    drawn = targets[0]
    for target in targets:
        if target.weight == 0:
            continue
        drawn = target
        left -= target.weight
        if left < 0:
            break
    return drawn
