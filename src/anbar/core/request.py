"""A client's request as the router's policies see it: no HTTP, no text."""

from collections.abc import Sequence

import msgspec

from anbar.core.ids import EngineId, RequestId

MAX_CHARS_PER_TOKEN = 256
"""No token of a real vocabulary stands for more text."""


class RouteQuery(msgspec.Struct, frozen=True):
    """What routing depends on.

    `token_ids` is empty when the request could not be tokenized: routing is then by load alone. Where no
    engine is known to hold more of the prompt than its beginning, it may be that beginning.
    `num_tokens` is the prompt's length in tokens, an estimate unless `is_whole`.
    `engines` names those that may serve it, all when it is empty.
    `session` is a digest of what the client calls its session, "" when it names none.
    """

    request_id: RequestId
    model: str
    token_ids: Sequence[int]
    num_tokens: int
    lora: str | None = None
    cache_salt: str | None = None
    session: str = ""
    engines: frozenset[EngineId] = frozenset()
    is_whole: bool = True
    """Whether `token_ids` are those of the whole prompt, or none."""
