"""The policy port.

What makes a class here a Policy
--------------------------------
- `decide` is synchronous, pure but for its random source, and never looks at a clock, a socket or a setting.
- It names every engine that the filters (`anbar.route.filters`) let through exactly once, as target or as
  fallback, and no other; there is a prediction for each.
- It serves also when there are no tokens and no matches, whatever its `sight`.
- Equal inputs and an equal state of the random source give an equal decision.
- `Route.reason` is one sentence that a person can read, with the numbers the choice was made from. It is
  kept for a while, so what it is made from holds no tokens.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery


class Sight(Enum):
    """What a policy is shown of prompts and caches."""

    NOTHING = "nothing"
    """`decide` gets a query without token ids, and no matches; what it predicts of caches is nothing."""
    PLACEMENTS = "placements"
    """Token ids, and what this router itself sent to engines (`anbar.route.placements`)."""
    CACHES = "caches"
    """Token ids, and what engines tell of their caches (`anbar.route.index`), placements included."""


class Policy(Protocol):
    """See the module's text for the contract."""

    @property
    def name(self) -> str:
        """The name in `anbar.yaml`, in `x-anbar-policy` and in metrics."""
        ...

    @property
    def sight(self) -> Sight:
        """What it looks at, so that nobody computes what it does not."""
        ...

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """Choose an engine; an engine without an entry in `matches` is taken to hold nothing.

        Raises `RequestError` when no engine could ever serve the request (unknown model: 404, longer than
        every context: 400) and `NoEngine` when none can serve it now (503).
        """
        ...
