"""The policy port.

What makes a class here a Policy
--------------------------------
- `decide` is synchronous, pure but for its random source, and never looks at a clock, a socket or a setting.
- It never names an engine that the filters (`anbar.route.filters`) drop, neither as target nor as fallback.
- Equal inputs and an equal state of the random source give an equal decision.
- `Route.reason` is one sentence that a person can read, with the numbers the choice was made from.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery


class Policy(Protocol):
    """See the module's text for the contract."""

    @property
    def name(self) -> str:
        """The name in `anbar.yaml`, in `x-anbar-policy` and in metrics."""
        ...

    @property
    def needs_tokens(self) -> bool:
        """Whether it looks at a prompt's tokens or at what engines hold of them. If not, nobody computes
        them: `decide` gets a query without ids, and no matches."""
        ...

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """Choose an engine; an engine without an entry in `matches` is taken to hold nothing.

        Raises `RequestError` when no engine could ever serve the request (unknown model: 404, longer than
        every context: 400) and `NoEngine` when none can serve it now (503).
        """
        ...
