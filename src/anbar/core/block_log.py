"""The block log: one line of JSON for each recorded request, in the fields of Mooncake's public traces and
some more. Written by the router (`router.record`), read by the planner.

- `hash_ids` are names of blocks without their content: a keyed hash of the block hash chain. Two prompts
have as
  many ids in common from the start as they have blocks in common. As in those traces the last block has an id
  even if it is not full, though engines reuse full blocks only.
- Blocks have `block_size` tokens, the engine's own; in Mooncake's traces they have 512.
- Ids of logs written with one key (`<state_dir>/record.key`) can be compared, others not.
"""

from collections.abc import Iterable, Iterator

import msgspec

from anbar.core.blocks import extend_many, first_extra, root
from anbar.core.ids import ChainHash
from anbar.core.request import RouteQuery

UNKNOWN_BLOCK_SIZE = 16
"""For engines that do not tell theirs: vLLM's default on GPUs."""


class PredictedTokens(msgspec.Struct, frozen=True):
    """Tokens that were expected from each tier of the engine that answered."""

    device: int = 0
    host: int = 0
    shared: int = 0


class BlockLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    timestamp: int
    """Arrival, in milliseconds since 1970 UTC. (Mooncake's begin at 0.)"""
    input_length: int
    """Tokens."""
    output_length: int = 0
    """Tokens; 0: not known."""
    hash_ids: list[int] = []
    """Empty with a longer prompt: it could not be tokenized."""
    block_size: int = 512
    """Tokens that one of `hash_ids` stands for."""
    model: str = ""
    scope: str = ""
    """Who may share blocks: nothing is reused between scopes."""
    session: str = ""
    """A keyed hash: requests of one conversation have the same."""
    engine: str = ""
    predicted: PredictedTokens = PredictedTokens()
    cached: int | None = None
    """Tokens that the engine reported as cached; null: it did not."""
    stream: bool = False
    ttft_ms: float | None = None
    """To the first byte; of an answer that is not a stream that is its end."""
    e2e_ms: float | None = None
    status: int = 200


class BlockLogReader:
    """Reads lines of a block log, or of a Mooncake trace. `num_skipped` counts lines that are not whole,
    such as the last one of a router that was killed."""

    def __init__(self) -> None:
        self.num_skipped = 0
        self._decode = msgspec.json.Decoder(BlockLogEntry).decode

    def entries(self, lines: Iterable[bytes]) -> Iterator[BlockLogEntry]:
        """The entries in the order of their lines; empty lines are nothing."""
        for line in lines:
            if not line.strip():
                continue
            try:
                yield self._decode(line)
            except msgspec.DecodeError:
                self.num_skipped += 1


def trace_chain(model: str, query: RouteQuery, block_size: int) -> list[ChainHash]:
    """The hash chain of a whole prompt, a last block that is not full included."""
    tokens = query.token_ids
    parent, extra = root(model, query.lora), first_extra(query.cache_salt)
    chain = extend_many(parent, tokens, block_size, extra)
    rest = len(tokens) % block_size
    if rest:
        first = not chain
        last = extend_many(parent if first else chain[-1], tokens[-rest:], rest, extra if first else None)
        chain += last
    return chain
