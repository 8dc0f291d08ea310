"""What a configuration says of prefill and decode on different engines (docs/concepts/disaggregation.md)."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from anbar.config.fields import ConfigModel, Int, Seconds


class Role(StrEnum):
    """What an engine is for where prefill and decode are split."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class SplitVia(StrEnum):
    """How KV gets from the engine that computes a prompt to the one that answers."""

    NONE = "none"
    SHARED = "shared"
    NIXL = "nixl"


_NIXL_OFFSET = 10_000


def nixl_port(port: int) -> int:
    """Where a launched engine tells others of its KV, on 127.0.0.1; `port` is its HTTP port."""
    return port + _NIXL_OFFSET if port + _NIXL_OFFSET <= 65535 else port - _NIXL_OFFSET


class SplitConfig(ConfigModel):
    """Prefill and decode on different engines, for the prompts where that is worth it."""

    via: SplitVia = SplitVia.NONE
    """none: every engine computes what it answers. shared: through the shared store; needs `cache.mode:
    shared`. nixl: straight from engine to engine, with vLLM's NixlConnector, which launched engines get in
    the place of the cache's (`cache.mode: none`) and attached ones must have. What it needs besides:
    `engines[].role`."""

    min_uncached_tokens: Annotated[Int, Field(ge=1)] = 512
    """Prompts of which the engine that answers would compute fewer tokens than this are not split: they are
    short, or it has most of them."""

    min_gain_s: Seconds | None = None
    """Seconds that a split must be predicted to win, the delay of answers that run on the decode engine
    included: with nothing else to do there, that is mostly nothing. null: every prompt that is long enough is
    split."""

    wait_ms: Annotated[Int, Field(ge=0, le=60_000)] = 1000
    """Milliseconds, with `via: shared`, that the decode engine waits for blocks that the prefill engine is
    still storing; what is not there by then it computes itself."""
