"""A route from an order of engines."""

from collections.abc import Mapping, Sequence

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.predict import predict_all


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
        fallbacks=tuple(engine.id for engine in order[1:]),
        predictions=predict_all(query, order, matches),
        policy=policy,
        reason=reason,
    )
