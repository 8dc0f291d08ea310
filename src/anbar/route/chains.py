"""The hash chains of the prompt that is being routed, computed once for all who ask."""

from anbar.core.blocks import prompt_chain
from anbar.core.ids import ChainHash
from anbar.core.request import RouteQuery


class PromptChains:
    """Remembers the chains of the query it was asked about last, and no other.

    A request is matched, decided and sent without a pause between, so the last is enough. Not thread-safe.
    """

    def __init__(self) -> None:
        self._query: RouteQuery | None = None
        self._chains: dict[tuple[str, int], list[ChainHash]] = {}

    def of(self, query: RouteQuery, model: str, block_size: int) -> list[ChainHash]:
        """`prompt_chain`; the list is shared, nobody may change it."""
        if self._query is not query:
            self._query, self._chains = query, {}
        key = model, block_size
        known = self._chains.get(key)
        if known is None:
            known = self._chains[key] = prompt_chain(model, query, block_size)
        return known
