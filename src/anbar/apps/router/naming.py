"""From the name in a request to a model on some engines: aliases and canaries of `router.models`."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from anbar.adapters.http.message import Request
from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.rewrite import with_member
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.standing import Rank, Standing
from anbar.core.ids import EngineId
from anbar.route.targets import Target, Targets

_ALL: frozenset[EngineId] = frozenset()


class Naming:
    """Puts the served name into requests, and the other names into the list of models."""

    def __init__(self, targets: Targets, fleet: Fleet, standing: Standing) -> None:
        self.targets = targets
        self._fleet = fleet
        self._standing = standing

    def resolved(
        self, request: Request, api: ApiRequest, key: str
    ) -> tuple[Request, ApiRequest, frozenset[EngineId]]:
        """A request as it goes on, and the engines that may get it (none named: all that serve the model).
        `key` draws where there are several: the session, so that one stays where it is, or else the request's
        id. Only the model's name in the body is another, and only if it is one."""
        if api.model not in self.targets:
            return request, api, _ALL
        target = self._chosen(self.targets.of(api.model, key))
        if target.model == api.model:
            return request, api, target.engines
        name = msgspec.json.encode(target.model)
        request = replace(request, body=with_member(request.body, "model", name))
        api = replace(api, model=target.model, body={**api.body, "model": target.model})
        return request, api, target.engines

    def cards(self) -> dict[str, Mapping[str, object]]:
        """By name, the entry of each model of a ready engine, as the first engine describes it; a name that
        stands for another has the entry of the first target that is there, under its own name."""
        cards: dict[str, Mapping[str, object]] = {}
        for engine in self._fleet.ready():
            cards = {**engine.facts.cards, **cards}
        for name in self.targets.names:
            found = next((cards[t.model] for t in self.targets.of(name, "") if t.model in cards), None)
            if found is not None:
                cards[name] = {**found, "id": name}
        return cards

    def _chosen(self, targets: tuple[Target, ...]) -> Target:
        """The first target with an engine that may be asked freely. If there is none, the first of those that
        come nearest to it: the one that was drawn, if all are alike."""
        return targets[0] if len(targets) == 1 else max(targets, key=self._rank)

    def _rank(self, target: Target) -> Rank:
        ranks = (self._standing.rank(engine) for engine in self._fleet if _serves(target, engine))
        return max(ranks, default=Rank.AWAY)


def _serves(target: Target, engine: Engine) -> bool:
    return target.model in engine.facts.names and (not target.engines or engine.id in target.engines)
