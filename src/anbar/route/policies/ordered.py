"""A route from an order of engines, and the order that knows load alone."""

from collections.abc import Mapping, Sequence
from random import Random

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.adapters import adapter_wait_s
from anbar.route.predict import LatePredictions


def by_load(query: RouteQuery, engine: EngineView, rng: Random) -> tuple[int, float, int, float]:
    """Orders engines: fewest requests in flight; then those that have the request's adapter, if it has one;
    then fewest prompt tokens queued; then at random."""
    wait_s = adapter_wait_s(query, engine) if query.lora is not None else 0.0
    return engine.num_in_flight, wait_s, engine.queued_prefill_tokens, rng.random()


def in_order(
    policy: str,
    query: RouteQuery,
    order: Sequence[EngineView],
    matches: Mapping[EngineId, PrefixMatch],
    reason: str,
) -> Route:
    """The first engine of `order`, which is not empty, then the others as fallbacks; with the predictions
    that `matches` allow."""
    return Route(
        target=order[0].id,
        fallbacks=tuple([engine.id for engine in order[1:]]),
        predictions=LatePredictions(query, order, matches),
        policy=policy,
        why=reason,
    )
