"""Short ways to say what engines announce and clients ask, for tests of routing."""

import hashlib
from collections.abc import Mapping, Sequence

from anbar.core.cost import LoadCost, PrefillCost
from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, ExtraKeys, KvBatch, KvEvent, Tier
from anbar.core.fleet import EngineState, EngineView
from anbar.core.ids import EngineHash, EngineId, RequestId
from anbar.core.request import RouteQuery

BLOCK = 2
"""Tokens of a block in these tests."""


def engine_hash(
    tokens: Sequence[int], salt: str | None = None, lora: str | None = None, seed: str = ""
) -> EngineHash:
    """What an engine (its hash seed being `seed`) calls the block that ends `tokens`."""
    return EngineHash(hashlib.sha256(repr((seed, lora, salt, tuple(tokens))).encode()).digest())


def hashes(tokens: Sequence[int], first: int, last: int, **kinds: str | None) -> tuple[EngineHash, ...]:
    """The hashes of blocks `first`..`last` (exclusive) of a prompt."""
    return tuple(
        engine_hash(tokens[: BLOCK * (index + 1)], **kinds)  # type: ignore[arg-type]
        for index in range(first, last)
    )


def stored(
    tokens: Sequence[int],
    first: int = 0,
    last: int | None = None,
    *,
    salt: str | None = None,
    lora: str | None = None,
    group: int = 0,
    seed: str = "",
) -> BlocksStored:
    """A device event of blocks `first`..`last` of a prompt, as vLLM 0.32 writes it."""
    end = len(tokens) // BLOCK if last is None else last
    extra: list[ExtraKeys] = []
    for index in range(first, end):
        keys = ((lora,) if lora else ()) + ((salt,) if salt and index == 0 else ())
        extra.append(keys)
    return BlocksStored(
        hashes=hashes(tokens, first, end, salt=salt, lora=lora, seed=seed),
        parent=engine_hash(tokens[: BLOCK * first], salt, lora, seed) if first else None,
        token_ids=tuple(tokens[BLOCK * first : BLOCK * end]),
        block_size=BLOCK,
        tier=Tier.DEVICE,
        group=group,
        lora=lora,
        extra_keys=tuple(extra),
    )


def offloaded(
    tokens: Sequence[int], index: int, tier: Tier, *, owner: str = "", group: int = 0, salt: str | None = None
) -> BlocksStored:
    """A placeholder event of an offload tier: one hash, no tokens, no extra keys."""
    name = hashes(tokens, index, index + 1, salt=salt)
    return BlocksStored(name, None, (), 0, tier, group, owner=owner)


def removed(
    tokens: Sequence[int],
    index: int,
    tier: Tier = Tier.DEVICE,
    *,
    owner: str = "",
    group: int = 0,
    salt: str | None = None,
) -> BlocksRemoved:
    """The removal of one block."""
    return BlocksRemoved(hashes(tokens, index, index + 1, salt=salt), tier, group, owner)


def cleared() -> AllCleared:
    return AllCleared()


def batch(*events: KvEvent) -> KvBatch:
    return KvBatch(0, events)


def query(
    tokens: Sequence[int],
    *,
    salt: str | None = None,
    lora: str | None = None,
    model: str = "m",
) -> RouteQuery:
    return RouteQuery(RequestId("r"), model, tuple(tokens), len(tokens), lora, salt)


def view(
    name: str,
    *,
    state: EngineState = EngineState.READY,
    models: Sequence[str] = ("m",),
    rate: float = 1000.0,
    prefill: PrefillCost | None = None,
    queued: int = 0,
    pairs: int = 0,
    done_s: float = 0.0,
    loads: Mapping[Tier, LoadCost] | None = None,
    decoding: int = 0,
    in_flight: int = 0,
    context: int = 100_000,
) -> EngineView:
    """An engine that computes `rate` prompt tokens a second, unless `prefill` says what it costs."""
    return EngineView(
        id=EngineId(name),
        state=state,
        models=frozenset(models),
        block_size=BLOCK,
        max_model_len=context,
        prefill=prefill or PrefillCost(1 / rate),
        queued_prefill_tokens=queued,
        queued_prefill_pairs=pairs,
        prefill_done_s=done_s,
        loads=loads or {},
        num_decoding=decoding,
        num_in_flight=in_flight,
    )
